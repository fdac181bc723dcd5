//! The pool on tokio: the core with a clock, tasks and subscribers.

// This module comes first, because rustdoc shows the methods of `Pool` in the order of the modules.
mod pool;

mod alarm;
mod background;
mod blocking;
mod boxed;
mod builder;
mod check_out;
mod checking;
mod closing;
mod coarse;
mod connection;
mod control;
mod draining;
mod environment;
mod establish;
mod establishers;
mod failure;
mod failures;
mod fork;
mod holders;
mod home;
mod interest;
mod opening;
mod parked;
mod publisher;
mod random;
mod renewal;
mod stopwatch;
#[cfg(test)]
mod tests;
mod timer;
mod traced;
mod waiting;

pub(crate) use alarm::{alarm, before_alarm};
pub(crate) use blocking::{Inline, LookUps, blocking, start_blocking};
pub(crate) use boxed::{Boxed, boxed};
pub use builder::PoolBuilder;
pub use connection::Connection;
pub use control::WeakPool;
pub(crate) use environment::thread_number;
pub use establish::{CheckResult, Establish, Establishing};
pub use failure::FailedConnection;
#[cfg(all(test, unix))]
pub(crate) use fork::tests::in_child;
pub(crate) use fork::{OfThisProcess, PerProcess, Process, spawn, watch as watch_forks};
pub use holders::LongHold;
pub(crate) use interest::watch as watch_interest;
pub use pool::Pool;
pub(crate) use pool::PoolChange;
pub use publisher::Subscriber;
pub(crate) use random::{random_bytes, random_fraction, random_number};
pub(crate) use stopwatch::Stopwatch;
pub(crate) use timer::{Lapse, on_runtime, within};
pub(crate) use traced::TARGET;
