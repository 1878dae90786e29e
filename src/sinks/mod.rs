//! Where records go: one core batches what the shards' actions made to Kafka, MongoDB, HTTP servers and files, and brings
//! messages back from Kafka. It touches the world and never a shard: rings are all that lies between.
//!
//! Where to find what: `core` (the thread and its passes) · `sink` (the life of a record, and what counts its end) · `buffer`,
//! `disk`, `segment` (where it waits, and which is dropped when there is no room) · `target` (what a sink of batches implements), `batches`
//! (what feeds it), `file`, `mongodb`, `http` · `kafka`, `kafka_config` (the producer) · `source`, `source_topic` (the consumer)
//! · `dead_letter` · `status`, `log_limit` · `options`.

mod batches;
mod buffer;
mod core;
mod dead_letter;
mod disk;
mod file;
pub mod http;
mod kafka;
pub mod kafka_config;
mod log_limit;
pub mod mongodb;
pub mod options;
mod segment;
mod sink;
mod source;
mod source_topic;
mod status;
pub mod target;
#[cfg(test)]
mod testing;

pub use self::buffer::gate_bytes_max;
pub use self::core::{CoreOptions, Handle, start};
