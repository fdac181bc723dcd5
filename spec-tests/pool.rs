//! What the specification's test format cannot say about a pool.
//!
//! # The prose tests of CMAP
//!
//! | Number | Wants | Where |
//! |---|---|---|
//! | 1 | All ConnectionPoolOptions can be given to the client. | With the client: a pool is given its options directly. |
//! | 2 | All pools of a client have the same options. | With the client: a pool knows of no others. |
//! | 3 | All ConnectionPoolOptions can be given in a URI. | With the client: a pool is not built from a URI. |
//! | 4 | Whoever wants can subscribe to the events. | `errors::who_subscribes_gets_the_events` |
//! | 5 | A check-out fails with the reason `connectionError` when set-up fails. | `errors::a_failed_set_up_fails_the_check_out_with_connection_error` |
//!
//! Most tests run in virtual time: the clock moves only when all tasks are at rest.

#![cfg(not(loom))]

#[path = "pool/cancellation.rs"]
mod cancellation;
#[path = "pool/errors.rs"]
mod errors;
#[path = "pool/event_errors.rs"]
mod event_errors;
#[path = "pool/events.rs"]
mod events;
#[path = "pool/interleavings.rs"]
mod interleavings;
#[path = "pool/lifecycle.rs"]
mod lifecycle;
#[path = "pool/limits.rs"]
mod limits;
#[path = "pool/mock.rs"]
mod mock;
#[path = "pool/openers.rs"]
mod openers;
#[path = "pool/panics.rs"]
mod panics;
#[path = "pool/runtimes.rs"]
mod runtimes;
