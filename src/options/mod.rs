//! The options of a deployment, and the connection strings that carry them.
//!
//! Each option is documented at its field, with its name in connection strings, its unit and its default. A method of
//! the same name sets it. The [guide](crate::guide#options) lists all options.
//!
//! Options from code and from connection strings pass the same validation. A value that cannot work is an
//! [`InvalidOption`], which names the option, the value and what is allowed. Where the specification asks for it, a
//! connection string's value is ignored with a [`UriWarning`] instead. A password is a [`Secret`], which prints as stars
//! and is wiped from memory when it is dropped.

#[cfg(not(loom))]
mod address;
#[cfg(all(not(loom), feature = "aws"))]
pub(crate) mod aws;
#[cfg(all(not(loom), any(feature = "aws", feature = "oidc")))]
mod cloud;
#[cfg(not(loom))]
mod compressor;
#[cfg(not(loom))]
mod credential;
#[cfg(not(loom))]
mod deployment;
#[cfg(not(loom))]
mod driver_info;
mod invalid;
#[cfg(not(loom))]
mod monitoring;
#[cfg(all(not(loom), feature = "oidc"))]
mod oidc;
mod pool;
#[cfg(not(loom))]
mod proxy;
#[cfg(not(loom))]
mod read_preference;
#[cfg(not(loom))]
mod secret;
#[cfg(all(not(loom), feature = "serde"))]
mod serialize;
#[cfg(not(loom))]
mod server_api;
#[cfg(not(loom))]
mod srv;
#[cfg(not(loom))]
mod strict;
#[cfg(not(loom))]
mod tls;
#[cfg(not(loom))]
mod uri;
#[cfg(not(loom))]
mod validation;
#[cfg(not(loom))]
mod warning;
#[cfg(not(loom))]
mod write_concern;

#[cfg(not(loom))]
pub(crate) use address::split_zone;
#[cfg(not(loom))]
pub use address::{Host, ServerAddress};
#[cfg(all(not(loom), feature = "aws"))]
pub use aws::{AwsCredentialProvider, AwsCredentials};
#[cfg(all(not(loom), any(feature = "aws", feature = "oidc")))]
pub use cloud::{CallbackError, CallbackFuture, CloudEnvironment};
#[cfg(not(loom))]
pub use compressor::Compressor;
#[cfg(not(loom))]
pub use credential::{Credential, Mechanism};
#[cfg(not(loom))]
pub use deployment::Options;
#[cfg(not(loom))]
pub use driver_info::DriverInfo;
pub use invalid::InvalidOption;
#[cfg(not(loom))]
pub use monitoring::ServerMonitoringMode;
#[cfg(all(not(loom), feature = "oidc"))]
pub(crate) use oidc::{Callback, DEFAULT_ALLOWED_HOSTS, OidcOptions};
#[cfg(all(not(loom), feature = "oidc"))]
pub use oidc::{IdpInfo, OidcCallback, OidcContext, OidcToken};
pub use pool::{BackgroundInterval, MAX_CONNECTIONS, OptionValue, PoolOptions};
#[cfg(not(loom))]
pub use proxy::ProxyOptions;
#[cfg(not(loom))]
pub(crate) use read_preference::PRIMARY;
#[cfg(not(loom))]
pub use read_preference::{ReadPreference, ReadPreferenceMode};
#[cfg(not(loom))]
pub use secret::Secret;
#[cfg(not(loom))]
pub use server_api::{ServerApi, ServerApiVersion};
#[cfg(not(loom))]
pub use srv::SrvName;
#[cfg(not(loom))]
pub(crate) use tls::{CaCertificates, ClientCertificate};
#[cfg(not(loom))]
pub use tls::{TlsOptions, TlsVersion};
#[cfg(not(loom))]
pub(crate) use validation::SHORTEST_HEARTBEAT;
#[cfg(not(loom))]
pub use warning::UriWarning;
#[cfg(not(loom))]
pub use write_concern::{Acknowledgement, WriteConcern};
