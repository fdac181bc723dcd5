//! What the tests and examples of wharf run against.

pub mod embedded;
pub mod mongod;
pub mod provision;
pub mod scripted;
