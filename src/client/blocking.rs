//! The client with pools for plain threads: its calls block, and any number of threads can use it at the same time.
//!
//! ```no_run
//! use bson::{Document, doc};
//! use wharf::blocking::{Client, Collection};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = Client::from_uri("mongodb://localhost,db2.example.com/?replicaSet=rs0")?;
//!     let orders: Collection<Document> = client.database("shop").collection("orders");
//!     std::thread::scope(|scope| {
//!         for id in 0..8 {
//!             let insert = orders.insert_one(doc! { "_id": id, "paid": false });
//!             scope.spawn(move || insert.run());
//!         }
//!     });
//!     for order in orders.find(doc! { "paid": false }).run()? {
//!         println!("{}", order?);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! This client is a [`wharf::Client`](crate::Client), with its pools and monitors, behind the interface of a
//! [`single::Client`]:
//!
//! | | this client | [`single::Client`] |
//! | --- | --- | --- |
//! | calls from several threads | run at the same time, each on a connection of the pool | take turns |
//! | servers are checked | by monitors, all the time | by operations |
//! | threads that it starts | one, from the first call until the last clone is dropped | none |
//! | `heartbeatFrequencyMS`, `serverSelectionTryOnce`, `minPoolSize` | as for [`wharf::Client`](crate::Client) | other defaults, or not used |
//!
//! The thread that this client starts drives its monitors, sockets and timers. Calls run on the threads that make them.
//! A call inside a tokio runtime fails with [`ClientError::OnRuntime`](crate::ClientError), and never with
//! [`ClientError::InUse`](crate::ClientError). Work that a dropped cursor or session leaves behind runs on the client's
//! thread, so the drop does not wait for it. After the last clone is dropped, the thread spends at most a second on
//! such work. A forked child process starts its own thread.
//!
//! Handing each reply over from the client's thread to the calling thread costs about ten microseconds. If only one
//! thread makes calls, a [`single::Client`] is faster.

use std::fmt;
use std::ops::Deref;

pub use super::single::{ChangeStream, Collection, Cursor, Database, Prepared, Session};
#[cfg(feature = "gridfs")]
pub use super::single::{GridFsBucket, GridFsDownloadStream, GridFsUploadStream};

use super::single;
use crate::client::{self, ClientBuilder, ClientError};
use crate::endpoint::options::{InvalidOption, Options};

#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
use crate::telemetry::{Source, sealed};

/// A client of a MongoDB deployment whose calls block. Any number of threads can use it at the same time.
///
/// The [module documentation](self) describes this client. The client dereferences to [`single::Client`], and so has
/// its methods. Creating the client does no I/O: it connects on first use. Clones share everything, and dropping the
/// last one closes all connections.
///
/// To build a client with subscribers, use [`ClientBuilder::build_blocking`].
#[derive(Clone)]
pub struct Client(single::Client);

impl Client {
    /// Creates a client from a connection string. Does not look anything up or connect.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidOption`] in the same cases as [`Options::parse`] and [`Client::new`].
    #[doc(alias = "with_uri_str")]
    pub fn from_uri(uri: &str) -> Result<Self, InvalidOption> {
        Self::new(Options::parse(uri)?)
    }

    /// Creates a client with these options. Does not connect.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first option that is invalid, its value and what is allowed.
    #[doc(alias = "with_options")]
    pub fn new(options: Options) -> Result<Self, InvalidOption> {
        client::Client::builder(options).build_blocking()
    }

    /// Opens connections before they are needed: see [`wharf::Client::warm_up`](crate::Client::warm_up).
    ///
    /// # Errors
    ///
    /// [`ClientError`]: no server was found, or a connection could not be opened. The other connections stay open.
    #[doc(alias = "warm_connection_pool")]
    pub fn warm_up(&self, connections: u32) -> Result<(), ClientError> {
        self.0.warm_up_to(connections)
    }

    /// Replaces the credential, TLS and the compressors: see
    /// [`wharf::Client::replace_options`](crate::Client::replace_options).
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names an option that is invalid, or that cannot change while the client is in use.
    pub fn replace_options(&self, options: Options) -> Result<(), InvalidOption> {
        self.0.client().replace_options(options)
    }
}

impl ClientBuilder {
    /// Builds a [`blocking::Client`](Client) instead, for plain threads. Does not connect.
    ///
    /// # Errors
    ///
    /// The same as for [`build`](Self::build).
    pub fn build_blocking(self) -> Result<Client, InvalidOption> {
        Ok(Client(single::Client::with_pools(self.build()?)))
    }
}

impl Deref for Client {
    type Target = single::Client;

    fn deref(&self) -> &single::Client {
        &self.0
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
impl sealed::Metered for Client {
    fn source(&self) -> Source {
        self.0.source()
    }
}
