//! Where records go: one core batches what the shards' actions made to Kafka, MongoDB, HTTP servers and files, and brings messages back
//! from Kafka. It touches the world and never a shard: rings are all that lies between.

pub mod options;
pub mod target;
