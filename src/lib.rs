//! A lock-free, many-core MongoDB connection pool, on tokio.
//!
//! ```no_run
//! use bson::rawdoc;
//! use wharf::Options;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let options = Options::from_uri("mongodb://app:secret@localhost/?tls=true&maxPoolSize=50").await?;
//!     let pool = options.endpoint()?.pool().build()?;
//!     pool.ready();
//!     let reply = pool.run_command("admin", &rawdoc! { "ping": 1 }).await?;
//!     println!("ok: {}", reply.get_f64("ok")?);
//!     Ok(())
//! }
//! ```
//!
//! - [`Options`]: what to connect to and how, from a connection string or in code.
//! - [`Endpoint`]: one server of it, which opens connections.
//! - [`Pool`]: its connections, checked out, or used by [`Pool::run_command`] for one command each.
//! - [`Command`]: a command with a time limit, document sequences, a stream of replies, or no reply at all.
//! - [`telemetry`]: what to do with a pool's events.
//!
//! [`Establish`] is how to pool connections of another kind, and [`pool`] how it all works. The [`guide`] has what belongs
//! around a pool: a monitor, retries, cursors, transactions, sizes, new certificates.
//!
//! # What to know first
//!
//! - A pool starts paused, and wharf has no monitor that would mark it ready: call [`Pool::ready`].
//! - A pool is for one server. [`Options::endpoints`] makes an [`Endpoint`] of each of several.
//! - Connections are in TLS only if the options say so: see [`Options::tls`](Options#structfield.tls).
//! - A command waits for its reply without a limit, unless [`Options::timeout`](Options#structfield.timeout) or
//!   [`Command::timeout`] sets one.
//! - [`OperationError`] and [`CheckOutError`] tell whether to try again. Nothing that was sent is tried again by
//!   itself, and no pool is cleared by itself.
//! - A pool's tasks and sockets belong to one tokio runtime, and when that ends to the next one that uses the pool: see
//!   ["Runtimes"](Pool#runtimes).
//! - Dropping the last handle of a pool closes it; [`Pool::closed`] waits for its last connection.
//!
//! # Features
//!
//! All on by default: `snappy`, `zlib` and `zstd`, one for each [`Compressor`]; `srv`, for `mongodb+srv://`; `aws` and
//! `oidc`, for the mechanisms `MONGODB-AWS` and `MONGODB-OIDC`. Off by default is `event-listener-queue`, which puts
//! another queue of waiters in the place of wharf's own, for comparison.
// The documentation says which feature an item needs. Nightly rustdoc only, which is what builds it for publication.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(docsrs, doc(auto_cfg(hide(loom, shuttle))))]
#![cfg_attr(loom, allow(dead_code, reason = "what only the I/O modules use, which loom's build leaves out"))]

#[cfg(not(loom))]
mod boxed;
mod condition;
// Public where the models need it.
#[cfg(any(loom, shuttle))]
pub mod delivery;
#[cfg(not(any(loom, shuttle)))]
mod delivery;
#[cfg(not(loom))]
pub mod endpoint;
pub mod error;
pub mod event;
mod milliseconds;
pub mod options;
pub mod pool;
mod printable;
#[cfg(not(loom))]
pub mod runtime;
#[cfg(not(loom))]
pub mod selection;
mod sentence;
mod sync;
#[cfg(not(loom))]
pub mod telemetry;
#[cfg(not(loom))]
pub mod topology;
#[cfg(not(loom))]
pub mod wire;

#[cfg(not(loom))]
#[doc(inline)]
pub use endpoint::{Command, CommandError, Endpoint, EndpointConnection, OperationError, ResolveError, ServerError};
#[doc(inline)]
pub use error::{
    Cause, CheckInError, CheckOutError, ClearError, EstablishError, Holders, Labels, NoRuntimeError, PoolClearedError,
    PoolClosedError, Stage, TimeLimit, WaitQueueTimeoutError,
};
#[doc(inline)]
pub use event::{CheckOutFailedReason, ConnectionClosedReason, EventError, PoolEvent};
#[cfg(not(loom))]
#[doc(inline)]
pub use options::{
    Acknowledgement, Compressor, Credential, DriverInfo, Host, InvalidAddress, Mechanism, Options, ProxyOptions,
    ReadPreference, ReadPreferenceMode, Secret, ServerAddress, ServerApi, ServerApiVersion, ServerMonitoringMode,
    SrvName, TlsOptions, TlsVersion, UriWarning, WriteConcern,
};
#[cfg(all(not(loom), feature = "aws"))]
#[doc(inline)]
pub use options::{AwsCredentialProvider, AwsCredentials};
#[doc(inline)]
pub use options::{BackgroundInterval, InvalidOption, MAX_CONNECTIONS, OptionValue, PoolOptions};
#[cfg(all(not(loom), any(feature = "aws", feature = "oidc")))]
#[doc(inline)]
pub use options::{CallbackError, CallbackFuture, CloudEnvironment};
#[cfg(all(not(loom), feature = "oidc"))]
#[doc(inline)]
pub use options::{IdpInfo, OidcCallback, OidcContext, OidcToken};
/// What the pool is built of, for models of it alone.
#[cfg(loom)]
#[doc(hidden)]
pub mod primitives {
    pub use crate::sync::{ModelledBriefLock as BriefLock, Watch};
}
#[doc(inline)]
pub use condition::Condition;
#[doc(inline)]
pub use pool::{Clear, Phase, PoolStatus, Purpose};
#[cfg(not(loom))]
#[doc(inline)]
pub use runtime::{BuildError, Connection, Establish, Establishing, FailedConnection, Pool, PoolBuilder, Subscriber};
/// The version of rustls that wharf uses, for [`TlsOptions::client_config`] and [`TlsOptions::crypto_provider`].
#[cfg(not(loom))]
#[doc(no_inline)]
pub use tokio_rustls::rustls;

/// The README's examples, compiled.
#[cfg(all(doctest, not(loom)))]
#[doc = include_str!("../README.md")]
struct Readme;

// Of two definitions of a link the first one counts: these are for readers of the documentation, and the guide's own,
// which name files, for readers of the repository.
//
/// [readme]: crate
/// [monitor]: guide::monitor
///
#[cfg(not(loom))]
#[doc = include_str!("guide.md")]
pub mod guide {
    /// The example's monitor, to take over.
    ///
    #[doc = concat!("```rust,no_run\n", include_str!("../examples/monitor/monitor.rs"), "\n# fn main() {}\n```")]
    pub mod monitor {}
}
