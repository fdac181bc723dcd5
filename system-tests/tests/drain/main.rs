//! Connections whose commands were cancelled or timed out: they are brought to the end of the command in the background,
//! instead of being closed.
#![cfg(not(loom))]

use std::time::Duration;

mod bounds;
mod by_pool;
mod starvation;
mod storm;

/// What ends a test that would otherwise never end.
const AGES: Duration = Duration::from_secs(60);
