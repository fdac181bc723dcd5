//! The subjects: ways to send a `ping` and receive its reply.

mod floor;
mod official;
mod wharf;

pub use floor::Floor;
pub use official::Official;
pub use wharf::Wharf;

use std::fmt;
use std::future::Future;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// A pool of connections that runs one command.
pub trait Subject: Send + Sync + Sized + 'static {
    /// Prepares everything, but opens no connections of the pool yet.
    fn open(server: &str, connections: u32) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// Opens the connections, for subjects that do not do so by themselves under load.
    fn fill(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        async { Ok(()) }
    }

    /// Sends a `ping` on a connection of the pool and waits for a successful reply.
    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Closes everything.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// The subjects, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Bare streams that share a semaphore.
    Floor,
    /// This library.
    Wharf,
    /// The official driver.
    Official,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Floor => "floor",
            Self::Wharf => "wharf",
            Self::Official => "official",
        })
    }
}
