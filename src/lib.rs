//! A lock-free, many-core MongoDB connection pool.
#![cfg_attr(loom, allow(dead_code, reason = "what only the I/O modules use, which loom's build leaves out"))]

pub mod error;
pub mod event;
pub mod options;
pub mod pool;
#[cfg(not(loom))]
pub mod runtime;
mod sync;

#[doc(inline)]
pub use error::{
    Cause, CheckOutError, ClearError, ConnectionError, EstablishError, ForeignConnection, Holders, Labels, PoolCleared,
    Stage, WaitQueueTimeout,
};
#[doc(inline)]
pub use event::{CheckOutFailedReason, ConnectionClosedReason, PoolEvent};
#[doc(inline)]
pub use options::{BackgroundInterval, InvalidOption, MAX_CONNECTIONS, OptionValue, PoolOptions};
#[doc(inline)]
pub use pool::{Clear, Phase, PoolStatus, Purpose};
#[cfg(not(loom))]
#[doc(inline)]
pub use runtime::{BuildError, Connection, Establish, Establishing, Failure, Pool, PoolBuilder, Subscriber};
