//! A MongoDB client, and the lock-free, many-core connection pool under it, on tokio.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use wharf::Client;
//! use wharf::bson::doc;
//!
//! #[derive(Debug, Serialize, Deserialize)]
//! struct Order {
//!     customer: String,
//!     price: i64,
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::from_uri("mongodb://localhost:27017/?maxPoolSize=50")?;
//!     let orders = client.database("shop").collection::<Order>("orders");
//!     orders.insert_one(Order { customer: "Ada".into(), price: 20 }).await?;
//!
//!     let mut expensive = orders.find(doc! { "price": { "$gte": 10 } }).await?;
//!     while let Some(order) = expensive.next().await? {
//!         println!("{order:?}");
//!     }
//!     Ok(())
//! }
//! ```
//!
//! | to do this | begin here |
//! | --- | --- |
//! | use a MongoDB deployment | [`Client`], which monitors the servers, selects one for each operation, and retries |
//! | read and write documents of your own types | [`Collection`], from [`Client::database`] and [`Database::collection`] |
//! | run transactions | [`client::Session::with_transaction`] |
//! | react to changes of data | [`Collection::watch`] |
//! | store files of any length | `gridfs` |
//! | work without async | [`blocking::Client`], which starts one thread, or [`single::Client`], which starts none |
//! | set options, TLS, credentials | [`Options`], from a connection string or in code |
//! | pool connections of your own type | [`Establish`] and [`Pool`] |
//! | pool connections to one MongoDB server | [`Endpoint`] and [`Command`] |
//! | see what a pool does | [`Pool::metrics`] and [`metrics`]; [`telemetry`] for exporters, events and logs |
//! | learn how, one subject at a time | the [`guide`]: [first steps](guide::first_steps), [documents](guide::documents), [transactions](guide::transactions), [failures](guide::failures), [time limits](guide::time_limits), [metrics and traces](guide::metrics_and_traces), … |
//! | move from another crate | [`guide::coming_from_elsewhere`] |
//!
//! # Before you start
//!
//! - Set `timeoutMS` ([`Options::timeout`](Options#structfield.timeout)) in a service: it limits each operation as a
//!   whole. Without it, there is no limit on how long a command waits for its reply.
//! - Connections use TLS only if the options turn it on: see [`Options::tls`](Options#structfield.tls).
//! - A pool that you build yourself starts paused: call [`Pool::ready`]. Such a pool connects to one server.
//!   [`Options::endpoints`] returns an [`Endpoint`] for each of several servers.
//! - [`OperationError`] and [`CheckOutError`] tell you whether to retry. A pool sends a command twice only if the
//!   server refused it and required reauthentication (error 391), and it never clears itself. A client retries commands
//!   and clears its pools, as the specifications require.
//! - A pool's tasks and sockets belong to one tokio runtime. When that runtime shuts down, the pool moves to the next
//!   runtime that uses it: see ["Runtimes"](Pool#runtimes).
//! - Dropping the last handle to a pool closes it. [`Pool::closed`] waits for its last connection to close.
//!
//! # Features
//!
//! On by default: `mongodb`, for everything that connects to MongoDB. Without the default features, wharf is only the
//! pool for connections of any type, without BSON or TLS.
//!
//! These are also on by default, and each implies `mongodb`:
//!
//! - `tls`: TLS, with rustls. Without it, options that turn TLS on are refused.
//! - `gridfs`: files of any length.
//! - `snappy` and `zlib`: each is a [`Compressor`].
//! - `srv`: the `mongodb+srv://` scheme.
//! - `aws` and `oidc`: the `MONGODB-AWS` and `MONGODB-OIDC` mechanisms.
//! - `ocsp`: asks OCSP responders whether certificates have been revoked.
//!
//! Off by default:
//!
//! - `zstd`: the third [`Compressor`]. It builds a C library.
//! - `cert-key-password`: reads clients' password-protected private keys (the option
//!   [`certificate_key_file_password`](TlsOptions#structfield.certificate_key_file_password)).
//! - `serde`: implements its traits for [`PoolStatus`], [`ServiceStatus`], [`metrics`], [`Holder`], [`PoolOptions`] and
//!   [`Options`]. Serialization writes no secrets. Options can also be [read from files and environment
//!   variables](guide::options#from-files-and-environment-variables).
//! - `opentelemetry` and `metrics-facade`: export a pool's metrics (see [`telemetry`]). `opentelemetry` also exports a
//!   client's spans (see [the guide](guide::metrics_and_traces#traces)).
//! - `log`: also sends log messages to the `log` crate when `tracing` has no subscriber.
//! - `event-listener-queue`: makes waiters park on event-listener events, for comparison.
// Shows which feature each item needs. This requires nightly rustdoc, which builds the published documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(docsrs, doc(auto_cfg(hide(loom, shuttle, simulated))))]
#![cfg_attr(
    not(all(feature = "tls", feature = "unstable")),
    allow(
        dead_code,
        unused_imports,
        reason = "used only through `unstable`, by the wings that `mongodb` adds, or by `tls`"
    )
)]

// Declared first, because rustdoc shows the methods of `Pool` in the order of the modules.
mod pool;

#[cfg(feature = "mongodb")]
pub mod client;
#[cfg(feature = "mongodb")]
pub mod endpoint;
#[cfg(feature = "mongodb")]
pub mod guide;
// Parts of the `client` wing, although users know them as `wharf::blocking` and `wharf::single`.
#[cfg(feature = "mongodb")]
#[path = "client/blocking.rs"]
pub mod blocking;
#[cfg(feature = "mongodb")]
#[doc(alias = "sync")]
#[path = "client/single/mod.rs"]
pub mod single;
#[cfg(not(loom))]
pub mod telemetry;
mod text;

/// Version 3 of the `bson` crate, whose documents the API uses. A crate that depends on `bson` directly needs the same
/// major version.
#[cfg(feature = "mongodb")]
#[doc(no_inline)]
pub use bson;
#[cfg(feature = "gridfs")]
#[doc(inline)]
pub use client::gridfs;
#[cfg(feature = "mongodb")]
#[doc(inline)]
pub use client::{Client, ClientBuilder, ClientError, Collection, Database, Operation, Result};
#[cfg(feature = "mongodb")]
#[doc(inline)]
pub use endpoint::options::{
    Acknowledgement, Compressor, Credential, DriverInfo, Host, Mechanism, Options, ProxyOptions, ReadPreference,
    ReadPreferenceMode, Secret, ServerAddress, ServerApi, ServerApiVersion, ServerMonitoringMode, SrvName, TlsOptions,
    TlsVersion, UriWarning, WriteConcern,
};
#[cfg(feature = "aws")]
#[doc(inline)]
pub use endpoint::options::{AwsCredentialProvider, AwsCredentials};
#[cfg(any(feature = "aws", feature = "oidc"))]
#[doc(inline)]
pub use endpoint::options::{CallbackError, CallbackFuture, CloudEnvironment};
#[cfg(feature = "oidc")]
#[doc(inline)]
pub use endpoint::options::{IdpInfo, OidcCallback, OidcContext, OidcToken};
#[cfg(feature = "mongodb")]
#[doc(inline)]
pub use endpoint::{
    Command, CommandError, DirectConnection, Endpoint, EndpointConnection, OperationError, ResolveError, ServerError,
};
#[doc(inline)]
pub use pool::condition::Condition;
#[doc(inline)]
pub use pool::core::{Budget, Clear, Phase, PoolStatus, ServiceStatus, Usage};
#[doc(inline)]
pub use pool::error::{
    BudgetStatus, Cause, CheckInError, CheckOutError, ConnectTimeoutError, EstablishError, Holders, Labels,
    PoolClearedError, PoolClosedError, Stage, TimeLimit, TooLate, WaitQueueFull, WaitQueueTimeoutError,
};
#[doc(inline)]
pub use pool::event::{CheckOutFailedReason, ConnectionClosedReason, EventError, PoolEvent};
#[doc(inline)]
pub use pool::holder::{Holder, Purpose};
#[doc(inline)]
pub use pool::metrics;
#[doc(inline)]
pub use pool::options::{BackgroundInterval, CheckBeforeUse, InvalidOption, MAX_CONNECTIONS, OptionValue, PoolOptions};
#[cfg(not(loom))]
#[doc(inline)]
pub use pool::runtime::{
    CheckResult, Connection, Establish, Establishing, FailedConnection, LongHold, Pool, PoolBuilder, Subscriber,
    WeakPool,
};
#[doc(inline)]
pub use pool::service_id::ServiceId;
/// The version of rustls that wharf uses, for [`TlsOptions::client_config`] and [`TlsOptions::crypto_provider`].
#[cfg(feature = "tls")]
#[doc(no_inline)]
pub use tokio_rustls::rustls;

/// Items for this repository's tests, models, benchmarks, fuzz targets and test servers, behind the `unstable` feature.
/// They come without a stability guarantee.
#[cfg(feature = "unstable")]
#[doc(hidden)]
pub mod unstable {
    #[cfg(any(loom, shuttle))]
    pub mod delivery {
        pub use crate::pool::delivery::*;
    }
    pub mod pool {
        pub use crate::pool::core::*;
    }
    /// Lets the simulator in `scale/` observe the pool.
    #[cfg(simulated)]
    pub mod simulated {
        pub use crate::pool::sync::simulated::*;
    }
    /// Parts of the pool, so that models can test them in isolation.
    #[cfg(loom)]
    pub mod primitives {
        pub use crate::pool::sync::atomic::AtomicU32;
        pub use crate::pool::sync::{
            Front, ModelledBriefLock as BriefLock, Placed, SlotStack, Slots, Watch, unexplored,
        };
    }
    #[cfg(feature = "mongodb")]
    pub mod endpoint {
        pub use crate::endpoint::causes::*;
    }
    #[cfg(feature = "mongodb")]
    pub mod selection {
        pub use crate::client::selection::*;
    }
    #[cfg(feature = "mongodb")]
    pub mod topology {
        pub use crate::client::topology::*;
    }
    #[cfg(feature = "mongodb")]
    pub mod wire {
        pub use crate::endpoint::wire::*;
    }
}

/// Compiles the README's examples.
#[cfg(all(doctest, feature = "mongodb"))]
#[doc = include_str!("../README.md")]
struct Readme;
