//! Servers for tests and examples: [`embedded`] runs a server in this process, [`mongod`] starts a real server, and
//! [`replica_set`] starts several that form a set. [`provision`] downloads the real server and the official test
//! suites.
//!
//! The quickstart depends on this crate, so this crate has few dependencies.

pub mod embedded;
pub mod mongod;
pub mod provision;
pub mod replica_set;
