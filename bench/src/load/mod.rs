//! The load generator of `corelane-bench`: a scenario is read, scaled and made into a plan; a conductor leads workers, a thread per
//! core, through its phases; what they counted and measured becomes a report.
//!
//! | module | what |
//! |---|---|
//! | [`scenario`], [`library`] | what is run, as written in TOML, and what comes with the program |
//! | [`plan`], [`template`] | the same as the workers use it |
//! | [`conductor`], [`control`], [`counts`] | phases, commands, numbers |
//! | [`worker`], [`packets`], [`buffers`], [`stamp`] | the clients |
//! | [`report`], [`html`], [`slab`] | what a run says at its end |
//! | [`comparison`] | several brokers' cases side by side |
//! | [`socket`] | system calls |

pub mod buffers;
pub mod comparison;
pub mod conductor;
pub mod control;
pub mod counts;
pub mod html;
pub mod library;
pub mod packets;
pub mod plan;
pub mod report;
pub mod scenario;
pub mod slab;
pub mod socket;
pub mod stamp;
pub mod template;
pub mod worker;
