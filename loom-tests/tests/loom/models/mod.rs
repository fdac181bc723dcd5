//! The models by subject, and their shared code.

mod checking;
mod clearing;
pub mod controls;
mod delivery;
mod drain_queue;
mod draining;
pub mod harness;
mod hits;
mod holders;
mod inline;
mod limits;
mod openers;
mod opening;
mod primitives;
mod renewal;
mod resizing;
mod services;
mod shards;
mod sharing;
mod stack;
mod waiting;
mod world;
