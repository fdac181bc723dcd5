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

mod cancellation;
mod errors;
mod event_errors;
mod events;
mod interleavings;
mod lifecycle;
mod limits;
mod mock;
mod openers;
mod panics;
mod runtimes;
