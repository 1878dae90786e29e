//! Corelane, a dense MQTT broker: one shard per core, nothing shared, everything about a client on its home core.
//!
//! The map, from the world inwards. Imports go down only.
//!
//! | module | what |
//! |---|---|
//! | [`cli`], [`config`], [`boot`], [`wiring`] | the command; the configuration; the start screen and the log; from the configuration to what the runtime is started with |
//! | [`trial`] | a rule tried without a broker |
//! | [`doctor`] | whether the host is fit for so many connections |
//! | [`runtime`] | the ring, the turn, listeners, the mesh's memory: all that touches the world |
//! | [`sinks`] | the sink core: records to Kafka, MongoDB, HTTP and files, and messages back from Kafka |
//! | [`shard`] | the state of one core: clients, wills, subscriptions, fan-out, retained, groups, parking, timers. The line: no I/O, clock, lock or thread from here down |
//! | [`rules`] | SQL over messages and events: parsed and planned once, then only computed |
//! | [`session`] | one client: windows, queue, acknowledgements that wait, will |
//! | [`wire`] | the MQTT codec, all versions in one set of types |
//! | [`topic`] | names, filters, and the structures that match them |
//! | [`message`], [`record`], [`segments`], [`limits`], [`ids`], [`time`], [`nearest`] | what all of them speak in |
//! | [`fault`] | deliberate mistakes, to test the tests; nothing of it is in a release build |
//!
//! The `mod.rs` of each larger folder says where to find what in it.

pub mod boot;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod fault;
pub mod ids;
pub mod limits;
pub mod message;
pub mod nearest;
pub mod record;
pub mod rules;
pub mod runtime;
pub mod segments;
pub mod session;
pub mod shard;
pub mod sinks;
pub mod time;
pub mod topic;
pub mod trial;
pub mod wire;
pub mod wiring;
