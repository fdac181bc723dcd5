//! The pool, which holds connections of any type and does not depend on MongoDB.
//!
//! The floors, from lowest to highest; each uses only the floors below it:
//!
//! - `sync`: the facade for shared memory. `options`, `error`, `event`, `condition`, `holder`, `service_id` and
//!   `by_stage`: the pool's vocabulary. `delivery`: the delivery of events to subscribers.
//! - `core`: the pool without I/O, a clock or tasks. `metrics`: the pool's counts and measurements.
//! - `runtime`: the part that runs the core on tokio.

pub(crate) mod by_stage;
pub(crate) mod condition;
pub(crate) mod core;
pub(crate) mod delivery;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod holder;
pub mod metrics;
pub(crate) mod options;
#[cfg(not(loom))]
pub(crate) mod runtime;
pub(crate) mod service_id;
pub(crate) mod sync;
