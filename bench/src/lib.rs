//! What the load generators share: an epoll set, a blocking MQTT client with an encoder of its own, a look at another process's
//! memory and CPU, and a random source that a seed repeats.

pub mod epoll;
pub mod mqtt;
pub mod process;
pub mod random;
