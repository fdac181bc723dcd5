//! The server that the pool connects to.

use std::error::Error;
use std::fmt;

use bson::{RawArrayBuf, rawdoc};
use wharf::{DirectConnection, Endpoint, OperationError, Options, PoolOptions};
use wharf_servers::embedded::{COLLECTION, DATABASE, EmbeddedOptions, EmbeddedServer};
use wharf_servers::mongod::{Mongod, MongodOptions};

use crate::arguments::Place;

/// The number of documents in the collection that is searched.
pub const DOCUMENTS: u32 = 100;

/// A running server.
pub enum Server {
    Embedded(EmbeddedServer),
    Mongod(Mongod),
    Given(Box<Options>),
}

impl Server {
    pub async fn start(place: Place) -> Result<Self, Box<dyn Error>> {
        match place {
            Place::Given(options) => Ok(Self::Given(options)),
            Place::Embedded => {
                let options = EmbeddedOptions { documents: DOCUMENTS, ..EmbeddedOptions::default() };
                Ok(Self::Embedded(EmbeddedServer::start(options).await?))
            }
            Place::Mongod => {
                eprintln!("Starting mongod. The first time this downloads it, which may take minutes.");
                let mongod = tokio::task::spawn_blocking(|| Mongod::start(MongodOptions::default())).await??;
                fill(&Endpoint::new(&mongod.address().to_string())?).await?;
                Ok(Self::Mongod(mongod))
            }
        }
    }

    /// Returns how to connect to the server.
    pub fn options(&self) -> Result<Options, Box<dyn Error>> {
        let options = match self {
            Self::Embedded(server) => Options::new([&*server.address()])?,
            Self::Mongod(mongod) => Options::new([&*mongod.address().to_string()])?,
            Self::Given(options) => (**options).clone(),
        };
        Ok(if options.app_name.is_none() { options.app_name("wharf quickstart") } else { options })
    }

    /// Stops the server if this process started it. Returns a description of the outcome.
    pub async fn stop(self) -> Result<&'static str, Box<dyn Error>> {
        match self {
            Self::Embedded(server) => {
                server.stop().await;
                Ok("The embedded server is stopped. Nothing is left.")
            }
            Self::Mongod(mongod) => {
                let status = tokio::task::spawn_blocking(|| mongod.stop()).await??;
                if !status.success() {
                    return Err(format!("mongod has ended by itself: {status}").into());
                }
                Ok("mongod is stopped and its folder removed. Its download stays in .cache.")
            }
            Self::Given(_) => Ok("The server goes on. Nothing is left."),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded(server) => {
                write!(f, "embedded in this process, at {} (MONGODB_URI names another)", server.address())
            }
            Self::Mongod(mongod) => {
                write!(f, "mongod, started for this run at {} (process {})", mongod.address(), mongod.pid())
            }
            Self::Given(options) => {
                let tls = if options.tls.is_some() { "with" } else { "without" };
                write!(f, "at {}, {tls} TLS, from MONGODB_URI", options.hosts[0])
            }
        }
    }
}

/// Checks that the server answers and lets the user in. Uses a pool's connection, because a load balancer accepts no
/// other.
pub async fn ping(endpoint: &Endpoint) -> Result<(), OperationError> {
    let options = PoolOptions::default().max_pool_size(1).load_balanced(endpoint.options().is_load_balanced());
    let pool =
        endpoint.clone().pool().options(options).build().expect("the options are invalid, or there is no runtime");
    pool.ready();
    pool.run_command("admin", &rawdoc! { "ping": 1 }).await.map(drop)
}

/// Creates the collection that the embedded server has from the start.
async fn fill(endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
    let mut connection: DirectConnection = endpoint.connect().await?;
    let mut documents = RawArrayBuf::new();
    for n in 0..DOCUMENTS {
        documents.push(rawdoc! { "_id": i64::from(n), "name": format!("document {n}") });
    }
    connection.run_command(DATABASE, &rawdoc! { "insert": COLLECTION, "documents": documents }).await?;
    Ok(())
}
