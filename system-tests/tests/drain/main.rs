//! Connections whose commands were cancelled or timed out: they are drained in the background instead of being closed.
#![cfg(not(loom))]

use std::time::Duration;

mod bounds;
mod by_pool;
mod panics;
mod starvation;
mod storm;

/// The time after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);
