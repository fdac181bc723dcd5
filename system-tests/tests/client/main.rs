//! The client on real servers.
#![cfg(not(any(loom, shuttle)))]

mod cursors;
mod events;
mod faas;
mod forks;
mod limits;
mod monitoring;
mod prose;
mod prose_retries;
mod repetitions;
mod scripted;
mod sessions;
mod srv;
mod standalone;
mod typed;
mod writes;
