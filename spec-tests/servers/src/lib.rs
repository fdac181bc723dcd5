//! Servers for tests and examples: [`embedded`] runs one in this process, and [`mongod`] starts a real one.
//! [`provision`] downloads the real one and the official test suites.
//!
//! The quickstart depends on this crate, so this crate has few dependencies.

pub mod embedded;
pub mod mongod;
pub mod provision;
