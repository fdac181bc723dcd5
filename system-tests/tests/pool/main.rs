//! Behaviour of a pool that the specification's test format cannot express.
//!
//! # The prose tests of CMAP
//!
//! | Number | Requires | Where |
//! |---|---|---|
//! | 1 | All ConnectionPoolOptions can be given to the client. | In the tests of the client, because a pool is given its options directly. |
//! | 2 | All pools of a client have the same options. | In the tests of the client, because a pool does not know other pools. |
//! | 3 | All ConnectionPoolOptions can be given in a URI. | In the tests of the client, because a pool is not built from a URI. |
//! | 4 | Any number of subscribers can listen to the events. | `errors::every_subscriber_gets_the_events` |
//! | 5 | A check-out fails with the reason `connectionError` when set-up fails. | `errors::failed_set_up_fails_the_check_out_with_connection_error` |
//!
//! Most tests run in virtual time: the clock advances only when all tasks are idle.

#![cfg(not(loom))]

mod budget;
mod cancellation;
mod checks;
mod closing;
mod control;
mod errors;
mod event_errors;
mod events;
mod holders;
mod interleavings;
mod late;
mod lifecycle;
mod limits;
mod metrics;
mod mock;
mod nearby;
mod openers;
mod overload;
mod panics;
mod renewal;
mod resizing;
mod runtimes;
mod soak;
mod stages;
mod suspension;
mod threads;
mod warm_up;
