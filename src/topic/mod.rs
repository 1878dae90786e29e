//! Topic Names and Topic Filters (MQTT 5.0 section 4.7): what is valid, what matches, and the structures that answer "who wants
//! this topic" for one core. Nothing here knows sessions, connections or the mesh.
//!
//! Where to find what: `name`, `filter` (what is valid, what matches) · `hash` (keyed hashes of topics) · `index` and
//! `fingerprints` (filters that match a topic), on it `subscriptions` (of sessions) and `interest` (of other cores) · `retained`
//! (messages by topic).

pub mod filter;
mod fingerprints;
pub mod hash;
pub mod index;
pub mod interest;
pub mod name;
#[cfg(test)]
pub(crate) mod random;
pub mod retained;
pub mod subscriptions;

pub use filter::{Filter, is_wildcard, matches};
pub use hash::{Hasher, TopicKey};
pub use index::FilterIndex;
pub use interest::{Interest, InterestKey};
pub use name::{TopicError, check_made_name, check_name, check_size, is_of_broker, is_reserved, levels};
pub use retained::{Page, RetainedTree};
pub use subscriptions::{Subscribed, Subscriptions, Unsubscribed};
