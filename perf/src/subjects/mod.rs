//! The subjects: ways to send a `ping` and receive its reply, or to run an operation on one document.

mod floor;
mod official;
mod typed;
mod wharf;

pub use floor::Floor;
pub use official::{Official, OfficialRaw};
pub use typed::{FIND_ONE, Handle, INSERT_ONE, OfficialTyped, Raw, UPDATE_ONE};
pub use wharf::{BusyPollingCommand, ClientCommand, PoolCommand, PoolInSession, Wharf};

use std::fmt;
use std::future::Future;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// A pool of connections that runs one operation.
pub trait Subject: Send + Sync + Sized + 'static {
    /// Prepares everything, but does not open any of the pool's connections yet.
    fn open(server: &str, connections: u32) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// Opens the connections, for subjects that do not open them on their own under load.
    fn fill(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Runs the operation, usually a `ping`, on a connection from the pool, and waits for a successful reply.
    fn run(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Closes everything.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Code that can run with any subject.
pub trait Visitor {
    type Output;

    fn visit<S: Subject>(self) -> Self::Output;
}

/// How long a client may take to shut down.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the connection string for both clients.
pub fn uri(server: &str, connections: u32) -> String {
    format!("mongodb://{server}/?directConnection=true&maxPoolSize={connections}")
}

/// The subjects, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Bare streams that share a semaphore.
    Floor,
    /// This library.
    Wharf,
    /// The official driver.
    Official,
    /// This library's `Pool::run_command`.
    Pool,
    /// The same pool, with commands that carry a session ID.
    PoolInSession,
    /// This library's client.
    Client,
    /// The same client, but its thread stays awake while it waits for a reply.
    ClientBusyPolling,
    /// The official driver with its cheapest calls: raw commands, raw documents, raw batches.
    OfficialRaw,
    /// `find_one` by `_id`: with wharf's handles, with wharf's raw operations and serde, and with the official driver.
    HandleFindOne,
    RawFindOne,
    OfficialFindOne,
    /// `insert_one`, in the same three ways.
    HandleInsertOne,
    RawInsertOne,
    OfficialInsertOne,
    /// `update_one` by `_id`, in the same three ways.
    HandleUpdateOne,
    RawUpdateOne,
    OfficialUpdateOne,
}

impl Kind {
    /// Runs the visitor with the subject that has this name.
    pub fn accept<V: Visitor>(self, visitor: V) -> V::Output {
        match self {
            Self::Floor => visitor.visit::<Floor>(),
            Self::Wharf => visitor.visit::<Wharf>(),
            Self::Official => visitor.visit::<Official>(),
            Self::Pool => visitor.visit::<PoolCommand>(),
            Self::PoolInSession => visitor.visit::<PoolInSession>(),
            Self::Client => visitor.visit::<ClientCommand>(),
            Self::ClientBusyPolling => visitor.visit::<BusyPollingCommand>(),
            Self::OfficialRaw => visitor.visit::<OfficialRaw>(),
            Self::HandleFindOne => visitor.visit::<Handle<FIND_ONE>>(),
            Self::RawFindOne => visitor.visit::<Raw<FIND_ONE>>(),
            Self::OfficialFindOne => visitor.visit::<OfficialTyped<FIND_ONE>>(),
            Self::HandleInsertOne => visitor.visit::<Handle<INSERT_ONE>>(),
            Self::RawInsertOne => visitor.visit::<Raw<INSERT_ONE>>(),
            Self::OfficialInsertOne => visitor.visit::<OfficialTyped<INSERT_ONE>>(),
            Self::HandleUpdateOne => visitor.visit::<Handle<UPDATE_ONE>>(),
            Self::RawUpdateOne => visitor.visit::<Raw<UPDATE_ONE>>(),
            Self::OfficialUpdateOne => visitor.visit::<OfficialTyped<UPDATE_ONE>>(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A hidden subject would have no name here, but no subject is hidden.
        f.pad(self.to_possible_value().as_ref().map_or("", |value| value.get_name()))
    }
}
