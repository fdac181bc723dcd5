//! What the tests and examples of wharf run against.

#[cfg(not(loom))]
pub mod embedded;
pub mod mongod;
pub mod provision;
