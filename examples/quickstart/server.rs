//! What the pool connects to.

use std::error::Error;
use std::fmt;

use bson::{RawArrayBuf, rawdoc};
use wharf::{Endpoint, EndpointConnection};
use wharf_testbed::embedded::{COLLECTION, DATABASE, EmbeddedOptions, EmbeddedServer};
use wharf_testbed::mongod::{Mongod, MongodOptions};

use crate::arguments::Place;

/// How many documents the collection has that is searched.
pub const DOCUMENTS: u32 = 100;

/// A running server.
pub enum Server {
    Embedded(EmbeddedServer),
    Mongod(Mongod),
    Given(String),
}

impl Server {
    pub async fn start(place: Place) -> Result<Self, Box<dyn Error>> {
        match place {
            Place::Given(address) => Ok(Self::Given(address)),
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

    pub fn address(&self) -> String {
        match self {
            Self::Embedded(server) => server.address(),
            Self::Mongod(mongod) => mongod.address().to_string(),
            Self::Given(address) => address.clone(),
        }
    }

    /// Stops the server, if it is ours. Returns what has become of it.
    pub async fn stop(self) -> Result<&'static str, Box<dyn Error>> {
        match self {
            Self::Embedded(server) => {
                server.stop().await;
                Ok("The embedded server is stopped. Nothing is left.")
            }
            Self::Mongod(mongod) => {
                let status = tokio::task::spawn_blocking(|| mongod.stop()).await??;
                if !status.success() {
                    return Err(format!("mongod had ended by itself: {status}").into());
                }
                Ok("mongod is stopped and its folder removed. Its download stays in .cache.")
            }
            Self::Given(_) => Ok("The server goes on. Nothing is left."),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.address();
        match self {
            Self::Embedded(_) => write!(f, "embedded in this process, at {address} (set MONGODB_URI for another)"),
            Self::Mongod(mongod) => write!(f, "mongod, started for this run at {address} (process {})", mongod.pid()),
            Self::Given(_) => write!(f, "at {address}, from MONGODB_URI"),
        }
    }
}

/// Whether the server is there.
pub async fn ping(endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
    endpoint.connect().await?.run_command("admin", &rawdoc! { "ping": 1 }).await?;
    Ok(())
}

/// Makes the collection that the embedded server has from the start.
async fn fill(endpoint: &Endpoint) -> Result<(), Box<dyn Error>> {
    let mut connection: EndpointConnection = endpoint.connect().await?;
    let mut documents = RawArrayBuf::new();
    for n in 0..DOCUMENTS {
        documents.push(rawdoc! { "_id": i64::from(n), "name": format!("document {n}") });
    }
    connection.run_command(DATABASE, &rawdoc! { "insert": COLLECTION, "documents": documents }).await?;
    Ok(())
}
