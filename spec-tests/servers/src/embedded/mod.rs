//! A small in-process MongoDB server, which speaks the real wire protocol over TCP, for tests, benchmarks and the
//! quickstart example.
//!
//! It reads `OP_MSG`, and answers `hello`, `isMaster`, `ping`, `buildInfo` and `endSessions`. It answers `find`,
//! `getMore` and `killCursors` on one fixed collection. It also answers `configureFailPoint` for `failCommand`, like a
//! mongod with test commands enabled. Any other command gets `CommandNotFound`. An invalid message closes the
//! connection.
//!
//! It also misbehaves on request ([`Faults`]), in ways that a mongod cannot.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bson::Document;
use bson::oid::ObjectId;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

mod collection;
mod commands;
mod connection;
mod fail_point;
mod faults;
mod hello;

pub use collection::{COLLECTION, DATABASE};
pub use faults::Faults;

use collection::Collection;
use fail_point::FailPoint;

/// The configuration of an [`EmbeddedServer`].
///
/// ```
/// use wharf_servers::embedded::EmbeddedOptions;
///
/// let options = EmbeddedOptions { documents: 1_000, ..EmbeddedOptions::default() };
/// assert_eq!(options.max_wire_version, 21);
/// ```
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    /// The number of documents in the collection: `{ _id: n, name: "document n" }` for n from 0. Default 100.
    pub documents: u32,
    /// The services behind the load balancer that the server simulates. The server assigns them to its connections in
    /// rotation. A connection whose first hello does not ask for load balancing counts in the rotation, but is assigned
    /// no service. By default there are none, and the server does not support load balancing.
    pub service_ids: Vec<ObjectId>,
    /// `minWireVersion` in the reply to hello. Default 0.
    pub min_wire_version: i32,
    /// `maxWireVersion` in the reply to hello. Default 21, as in MongoDB 7.0.
    pub max_wire_version: i32,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { documents: 100, service_ids: Vec::new(), min_wire_version: 0, max_wire_version: 21 }
    }
}

/// How long the server pauses after it failed to accept a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// A running server. Dropping it stops the server.
#[derive(Debug)]
pub struct EmbeddedServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl EmbeddedServer {
    /// Starts a server on 127.0.0.1, on a port that the operating system chooses. It runs on the current tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if no port can be bound.
    ///
    /// # Panics
    ///
    /// Panics if polled outside a tokio runtime.
    pub async fn start(options: EmbeddedOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            collection: Collection::new(options.documents),
            options,
            faults: Faults::default(),
            fail_point: FailPoint::default(),
            counters: watch::Sender::new(Counters::default()),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, accepting })
    }

    /// Returns the server's address, `127.0.0.1:port`.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns the faults of this server, which can be changed while it runs.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counters.borrow().clone()
    }

    /// Waits until the counters satisfy `condition`, and returns them.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn until(&self, mut condition: impl FnMut(&Counters) -> bool) -> Counters {
        // `self` holds the sender, so the channel cannot close during the wait, and the wait cannot fail.
        match self.shared.counters.subscribe().wait_for(|counters| condition(counters)).await {
            Ok(counters) => counters.clone(),
            Err(_) => unreachable!("BUG: the server's counters were dropped while it was borrowed"),
        }
    }

    /// Stops the server: closes its port and all its connections, and waits until they are closed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the server still stops, but later.
    pub async fn stop(mut self) {
        self.accepting.abort();
        // An error only says that the task was aborted.
        let _ = (&mut self.accepting).await;
        self.until(|counters| counters.connections_open == 0).await;
    }
}

impl Drop for EmbeddedServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The numbers of connections and commands that a server has received since it started.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    /// The number of connections accepted so far.
    pub connections_opened: u64,
    /// The number of connections that are open now.
    pub connections_open: u64,
    /// How many times each command was received, sorted by name.
    commands: Vec<(String, u64)>,
    /// The last handshake command received.
    pub last_handshake: Option<Document>,
}

impl Counters {
    /// Returns how many times the command with this name was received.
    #[must_use]
    pub fn commands(&self, name: &str) -> u64 {
        let found = self.commands.binary_search_by(|(known, _)| known.as_str().cmp(name));
        found.map_or(0, |index| self.commands[index].1)
    }

    fn count_command(&mut self, name: &str) {
        match self.commands.binary_search_by(|(known, _)| known.as_str().cmp(name)) {
            Ok(index) => self.commands[index].1 += 1,
            Err(index) => self.commands.insert(index, (name.to_owned(), 1)),
        }
    }
}

/// The state that one server's connections share.
#[derive(Debug)]
struct Shared {
    options: EmbeddedOptions,
    collection: Collection,
    faults: Faults,
    fail_point: FailPoint,
    counters: watch::Sender<Counters>,
}

/// Accepts connections until the task is aborted, which also closes them.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut next_id = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else {
                    // The client gave up before its connection was accepted, or this process is out of file
                    // descriptors. In the latter case, the pause prevents a busy loop.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                next_id += 1;
                let open = connection::OpenConnection::count(&shared);
                if !shared.faults.current().close_after_accept {
                    connections.spawn(connection::serve(stream, next_id, open));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
