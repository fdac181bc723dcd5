//! What the tests and examples of wharf run against.

pub mod mongod;
pub mod provision;
