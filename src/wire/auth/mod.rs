//! What is said when a client proves who it is (Authentication specification), without any I/O.
//!
//! - [`sasl`]: the commands `saslStart` and `saslContinue`, which carry the messages of most mechanisms, and their
//!   replies.
//! - [`scram`]: the messages of SCRAM-SHA-1 and SCRAM-SHA-256.
//! - [`plain`]: the message of PLAIN.
//! - [`x509`]: the command of MONGODB-X509.
//! - `aws`: the messages of MONGODB-AWS.
//! - `oidc`: the messages of MONGODB-OIDC.

#[cfg(feature = "aws")]
pub mod aws;
#[cfg(feature = "oidc")]
pub mod oidc;
pub mod plain;
pub mod sasl;
pub mod scram;
pub mod x509;
