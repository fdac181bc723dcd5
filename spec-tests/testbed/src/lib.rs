//! What the tests and examples of wharf run against.

pub mod provision;
