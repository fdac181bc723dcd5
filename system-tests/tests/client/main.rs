//! The client on real servers.
#![cfg(not(any(loom, shuttle)))]

mod cancelled;
mod cluster;
mod cursors;
mod cut_off;
mod events;
mod faas;
mod forks;
mod limits;
mod monitoring;
mod old_servers;
mod prose;
mod prose_logs;
mod prose_mongos;
mod prose_overload;
mod prose_retries;
mod prose_sessions;
mod prose_timeouts;
mod prose_transactions;
mod repetitions;
mod scripted;
mod sessions;
mod srv;
mod standalone;
mod typed;
mod writes;
