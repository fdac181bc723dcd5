//! Commands on a connection that the application holds.

use std::pin::pin;

use bson::RawDocumentBuf;

use super::Client;
use super::command_events::Observation;
use super::error::ClientError;
use super::in_session::{InSession, known_of};
use super::spans::{Described, RUN_COMMAND};
use crate::endpoint::{Command, CommandError, Endpoint, OperationError};
use crate::pool::runtime::Connection;

impl Client {
    /// Runs a command on a connection from [`check_out`](Self::check_out) of this client, and returns the server's
    /// successful reply.
    ///
    /// The command produces events and log messages. The client adds `$clusterTime`, which the command's document must
    /// not contain, and records the `$clusterTime` from the reply. Errors have the same effect as errors from
    /// [`run`](Self::run). For instance, a network error makes the server unknown and clears its pool.
    ///
    /// The command is not retried, and does not belong to a session. The client adds no `lsid`, so the caller can send
    /// the same `lsid` with all of a cursor's commands. `timeoutMS` applies to each command.
    ///
    /// # Errors
    ///
    /// [`ClientError::Operation`] with the error from the command.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Connection::run`]. Observers are notified of the cancellation.
    pub async fn run_on(
        &self,
        connection: &mut Connection<Endpoint>,
        command: Command<'_>,
    ) -> Result<RawDocumentBuf, ClientError> {
        let appended = self.elements_of_cluster_time(connection);
        let events = self.command_events();
        let observation = events.operation(|| Described::named(RUN_COMMAND, command.database()));
        let command = command.appended(&appended);
        let run = pin!(async { Ok(self.run_observed_on(connection, command, &observation).await?) });
        observation.within(run).await
    }

    async fn run_observed_on(
        &self,
        connection: &mut Connection<Endpoint>,
        command: Command<'_>,
        observation: &Observation,
    ) -> Result<RawDocumentBuf, OperationError> {
        let outcome = self.command_events().run(connection, command, observation).await;
        let reply = match &outcome {
            Ok(reply) => Some(reply),
            Err(error) => error.command_error().and_then(CommandError::server_error).map(|error| &error.reply),
        };
        if let Some(reply) = reply {
            InSession::Never.replied(self, reply);
        }
        // An error from a stale connection says nothing about the server. The connection's pool may even have been
        // closed, and the server may have rejoined the deployment with a new pool.
        if !connection.is_stale() {
            let servers = self.deployment().servers();
            if let Some(server) = servers.iter().find(|server| server.pool.address() == connection.address()) {
                match &outcome {
                    Ok(reply) => self.learn_from_unmet_concern(server, connection, reply),
                    Err(error) => self.deployment().operation_failed(server, error),
                }
            }
        }
        outcome
    }

    /// Returns the elements for a command outside any session on this connection: `$clusterTime`, if the server accepts
    /// it.
    pub(super) fn elements_of_cluster_time(&self, connection: &Connection<Endpoint>) -> Vec<u8> {
        let mut elements = Vec::new();
        if known_of(connection).has_cluster_time
            && let Some(time) = &*self.cluster_time().load()
        {
            time.append_to(&mut elements);
        }
        elements
    }
}
