//! What a sink received, held against what clients sent: the programs behind `sink_check`.
//!
//! | module | what |
//! |---|---|
//! | [`found`] | every message that was found: losses, duplicates, order per key, times |
//! | [`acknowledged`] | what a broker has acknowledged to its clients, as a file |
//! | [`publishing`] | QoS 1 clients that outlive their broker |
//! | [`kafka`] | a plain producer, and a topic read to its end |
//! | [`mongodb`] | a plain driver, and a collection read to its end |

pub mod acknowledged;
pub mod found;
pub mod kafka;
pub mod mongodb;
pub mod publishing;
