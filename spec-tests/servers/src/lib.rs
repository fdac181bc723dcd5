//! Servers for tests and examples: [`embedded`] runs one in this process, and [`mongod`] starts a real one, which
//! [`provision`] fetches together with the official test suites.
//!
//! The quickstart depends on this crate, so its dependencies are few.

pub mod embedded;
pub mod mongod;
pub mod provision;
