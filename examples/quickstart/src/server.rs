//! The deployment that the client uses.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use wharf::{Client, ClientError, Operation, Options};
use wharf_servers::embedded::{COLLECTION, DATABASE, EmbeddedOptions, EmbeddedServer};
use wharf_servers::mongod::{Mongod, MongodOptions};
use wharf_servers::replica_set::{ReplicaSet, ReplicaSetOptions};

use crate::arguments::Place;

/// The number of documents in the collection that the load reads.
pub const DOCUMENTS: u32 = 100;
/// How long the first command may take if the connection string sets no limit.
const FIRST: Duration = Duration::from_secs(5);

/// The deployment in use.
pub enum Server {
    Embedded(EmbeddedServer),
    Mongod(Mongod),
    ReplicaSet(ReplicaSet),
    Given(Box<Options>),
}

impl Server {
    pub async fn start(place: Place) -> Result<Self, Box<dyn Error>> {
        const DOWNLOAD: &str = "The first time this downloads it, which may take minutes.";
        match place {
            Place::Given(options) => Ok(Self::Given(options)),
            Place::Embedded => {
                let options = EmbeddedOptions { documents: DOCUMENTS, ..EmbeddedOptions::default() };
                Ok(Self::Embedded(EmbeddedServer::start(options).await?))
            }
            Place::Mongod => {
                eprintln!("Starting mongod. {DOWNLOAD}");
                Ok(Self::Mongod(blocking(|| Mongod::start(MongodOptions::default())).await??))
            }
            Place::ReplicaSet => {
                eprintln!("Starting three members of mongod. {DOWNLOAD}");
                Ok(Self::ReplicaSet(blocking(|| ReplicaSet::start(ReplicaSetOptions::default())).await??))
            }
        }
    }

    /// Returns the options with which to connect to the deployment.
    pub fn options(&self) -> Result<Options, Box<dyn Error>> {
        let options = match self {
            Self::Embedded(server) => Options::new([&*server.address()])?,
            Self::Mongod(mongod) => Options::new([&*mongod.address().to_string()])?,
            Self::ReplicaSet(set) => Options::parse(&set.uri())?,
            Self::Given(options) => (**options).clone(),
        };
        Ok(if options.app_name.is_none() { options.app_name("wharf quickstart") } else { options })
    }

    /// Checks that the deployment answers and accepts the user. If this process started the servers, creates the
    /// collection that the load reads.
    pub async fn prepare(&self, client: &Client) -> Result<(), ClientError> {
        let ping = rawdoc! { "ping": 1 };
        client.run(Operation::new("admin", &ping).timeout(client.options().timeout.unwrap_or(FIRST))).await?;
        if matches!(self, Self::Mongod(_) | Self::ReplicaSet(_)) {
            let documents = (0..DOCUMENTS).map(|n| doc! { "_id": i64::from(n), "name": format!("document {n}") });
            client.database(DATABASE).collection::<Document>(COLLECTION).insert_many(documents).await?;
        }
        Ok(())
    }

    /// Stops the servers if this process started them. Returns a description of the outcome.
    pub async fn stop(self) -> Result<&'static str, Box<dyn Error>> {
        match self {
            Self::Embedded(server) => {
                server.stop().await;
                Ok("The embedded server is stopped. Nothing is left.")
            }
            Self::Mongod(mongod) => {
                let status = blocking(|| mongod.stop()).await??;
                if !status.success() {
                    return Err(format!("mongod has ended by itself: {status}").into());
                }
                Ok("mongod is stopped and its folder removed. Its download stays in .cache.")
            }
            Self::ReplicaSet(set) => {
                blocking(|| drop(set)).await?;
                Ok("All members are stopped and their folders removed. The download stays in .cache.")
            }
            Self::Given(_) => Ok("The servers keep running. Nothing is left."),
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, tokio::task::JoinError> {
    tokio::task::spawn_blocking(work).await
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
            Self::ReplicaSet(set) => {
                write!(f, "replica set of three members, started for this run")?;
                for (member, address) in set.addresses().iter().enumerate() {
                    write!(f, "\n  {address} (process {})", set.pid(member))?;
                }
                Ok(())
            }
            Self::Given(options) => {
                let tls = if options.tls.is_some() { "with" } else { "without" };
                let hosts: Vec<&str> = match &options.srv {
                    Some(name) => vec![&name.host],
                    None => options.hosts.iter().map(|host| host.as_str()).collect(),
                };
                write!(f, "{}, {tls} TLS, from MONGODB_URI", hosts.join(", "))
            }
        }
    }
}
