//! The options of a deployment, and the connection strings that carry them.
//!
//! Each option is documented on its field, with its name in connection strings, its unit and its default. A method of
//! the same name sets it. The [guide](crate::guide::options) lists all options.
//!
//! Options from code and from connection strings pass the same validation. An invalid value is reported as an
//! [`InvalidOption`], which names the option, the value and what is allowed. Where the specification requires it, an
//! invalid value in a connection string is ignored with a [`UriWarning`] instead. A password is a [`Secret`], which
//! prints as asterisks and is wiped from memory when it is dropped.

mod address;
#[cfg(feature = "aws")]
pub(crate) mod aws;
#[cfg(any(feature = "aws", feature = "oidc"))]
mod cloud;
mod compressor;
mod credential;
mod deployment;
mod driver_info;
mod monitoring;
#[cfg(feature = "oidc")]
mod oidc;
mod proxy;
mod read_preference;
mod replacing;
mod secret;
#[cfg(feature = "serde")]
mod serialize;
mod server_api;
mod srv;
mod strict;
mod tls;
mod uri;
mod validation;
mod warning;
mod write_concern;

pub(crate) use address::split_zone;
pub use address::{Host, ServerAddress};
#[cfg(feature = "aws")]
pub use aws::{AwsCredentialProvider, AwsCredentials};
#[cfg(any(feature = "aws", feature = "oidc"))]
pub use cloud::{CallbackError, CallbackFuture, CloudEnvironment};
pub use compressor::Compressor;
pub use credential::{Credential, Mechanism};
pub use deployment::Options;
pub use driver_info::DriverInfo;
pub use monitoring::ServerMonitoringMode;
#[cfg(feature = "oidc")]
pub(crate) use oidc::{Callback, DEFAULT_ALLOWED_HOSTS, OidcOptions};
#[cfg(feature = "oidc")]
pub use oidc::{IdpInfo, OidcCallback, OidcContext, OidcToken};
pub use proxy::ProxyOptions;
pub(crate) use read_preference::PRIMARY;
pub use read_preference::{ReadPreference, ReadPreferenceMode};
pub use secret::Secret;
pub use server_api::{ServerApi, ServerApiVersion};
pub use srv::SrvName;
#[cfg(any(not(feature = "tls"), test))]
pub(crate) use tls::without_feature;
#[cfg(feature = "tls")]
pub(crate) use tls::{CaCertificates, ClientCertificate};
pub use tls::{TlsOptions, TlsVersion};
pub(crate) use validation::SHORTEST_HEARTBEAT;
pub use warning::UriWarning;
pub use write_concern::{Acknowledgement, WriteConcern};

pub use crate::pool::options::{InvalidOption, PoolOptions};
