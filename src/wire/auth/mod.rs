//! What is said when a client proves who it is (Authentication specification), without any I/O.
//!
//! - [`sasl`]: the commands `saslStart` and `saslContinue`, which carry the messages of most mechanisms, and their
//!   replies.
//! - [`aws`]: the messages of MONGODB-AWS.
//! - [`oidc`]: the messages of MONGODB-OIDC.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "oidc")]
pub mod oidc;
pub mod sasl;
