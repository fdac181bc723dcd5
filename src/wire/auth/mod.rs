//! What is said when a client proves who it is (Authentication specification), without any I/O.
//!
//! - [`sasl`]: the commands `saslStart` and `saslContinue`, which carry the messages of most mechanisms, and their
//!   replies.

pub mod sasl;
