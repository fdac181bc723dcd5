//! Queries to a replica set's members, over wharf's connections.

use std::future::Future;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;
use wharf::{Command, DirectConnection, Endpoint};

use super::ReplicaSetError;

/// How long a member may take to report its role.
const ROLE_LIMIT: Duration = Duration::from_secs(1);

/// The role that a member reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Accepts writes. The value identifies the election that it won; a later election has a greater identifier.
    Primary(ObjectId),
    /// Replicates the primary's data and can be read from.
    Secondary,
    /// Is starting, is recovering, is an arbiter, or does not belong to a set yet.
    Other,
    /// Is down or does not answer in time.
    Silent,
}

/// Returns the most recently elected primary.
pub(super) fn primary(roles: &[Role]) -> Option<usize> {
    let primaries = roles.iter().enumerate().filter_map(|(member, role)| match role {
        Role::Primary(election) => Some((election.bytes(), member)),
        _ => None,
    });
    primaries.max().map(|(_, member)| member)
}

/// Runs a future to completion on a separate thread and runtime, so that the caller may itself run on a runtime.
///
/// # Errors
///
/// [`ReplicaSetError::Thread`].
pub(super) fn block_on<F: Future<Output: Send> + Send>(future: F) -> Result<F::Output, ReplicaSetError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().map_err(ReplicaSetError::Thread)?;
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, move || runtime.block_on(future));
        Ok(thread.map_err(ReplicaSetError::Thread)?.join().expect("BUG: talking to a replica set panicked"))
    })
}

/// Runs a command on a separate connection.
pub(super) async fn run(
    address: SocketAddr,
    database: &str,
    command: &RawDocument,
) -> Result<RawDocumentBuf, ReplicaSetError> {
    let mut connection = endpoint(address).connect().await?;
    // A command that changes the replica set may take any amount of time.
    Ok(connection.run(Command::new(database, command).without_max_time()).await?)
}

/// Connections to all members, kept between queries.
#[derive(Debug)]
pub(super) struct Admin {
    connections: Vec<(SocketAddr, Option<DirectConnection>)>,
}

impl Admin {
    pub(super) fn new(addresses: &[SocketAddr]) -> Self {
        Self { connections: addresses.iter().map(|&address| (address, None)).collect() }
    }

    /// Asks all members for their roles, concurrently.
    pub(super) async fn roles(&mut self) -> Vec<Role> {
        let mut asked = JoinSet::new();
        for (member, (address, connection)) in self.connections.iter_mut().enumerate() {
            let (address, mut connection) = (*address, connection.take());
            asked.spawn(async move {
                let role = timeout(ROLE_LIMIT, ask(address, &mut connection)).await;
                // If there is no answer, the connection can no longer be used.
                match role {
                    Ok(Ok(role)) => (member, role, connection),
                    Ok(Err(_)) | Err(_) => (member, Role::Silent, None),
                }
            });
        }
        let mut roles = vec![Role::Silent; self.connections.len()];
        while let Some(answer) = asked.join_next().await {
            let (member, role, connection) = answer.expect("BUG: asking a member panicked");
            roles[member] = role;
            self.connections[member].1 = connection;
        }
        roles
    }
}

async fn ask(address: SocketAddr, connection: &mut Option<DirectConnection>) -> Result<Role, ReplicaSetError> {
    let connection = match connection {
        Some(open) => open,
        none => none.insert(endpoint(address).connect().await?),
    };
    let hello = connection.run_command("admin", &rawdoc! { "hello": 1 }).await?;
    Ok(match (hello.get_bool("isWritablePrimary"), hello.get_bool("secondary")) {
        (Ok(true), _) => Role::Primary(hello.get_object_id("electionId").unwrap_or_default()),
        (_, Ok(true)) => Role::Secondary,
        _ => Role::Other,
    })
}

fn endpoint(address: SocketAddr) -> Endpoint {
    Endpoint::new(&address.to_string()).expect("a socket address is an address")
}
