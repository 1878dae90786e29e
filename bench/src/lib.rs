//! What the load generators share: an epoll set, a blocking MQTT client with an encoder of its own, a look at another process's
//! memory and CPU, a random source that a seed repeats, and the load generator of `corelane-bench`.

pub mod epoll;
pub mod load;
pub mod mqtt;
pub mod process;
pub mod random;
