//! The servers, certificates and suites that wharf's tests and examples run against.

pub mod certificates;
pub mod counting;
pub mod dns;
pub mod embedded;
pub mod executor;
pub mod folder;
pub mod mongod;
pub mod ocsp;
pub mod provision;
pub mod relay;
pub mod scripted;
pub mod socks;
pub mod tls_front;
