//! The client on real servers.
#![cfg(not(any(loom, shuttle)))]

mod cursors;
mod standalone;
mod writes;
