//! Running an operation: selection, check-out, command, retries.

use std::panic::Location;

use bson::{RawDocument, RawDocumentBuf, rawdoc};

use super::Client;
use super::command_events::{CommandEvents, OperationId};
use super::error::ClientError;
use super::operation::{Kind, Operation};
use super::write::is_unacknowledged;
use crate::boxed::boxed;
use crate::deployment::{Demand, Selected, Server};
use crate::endpoint::{Command, CommandError, Endpoint, Limit, OperationError, StateChange};
use crate::options::{ReadPreference, ReadPreferenceMode, ServerAddress};
use crate::runtime::Connection;
use crate::selection::Access;
use crate::topology::{ServerType, TopologyType};

/// The read preference of operations that name none and are no reads.
static PRIMARY: ReadPreference =
    ReadPreference { mode: ReadPreferenceMode::Primary, tag_sets: Vec::new(), max_staleness: None };

impl Client {
    /// Runs `command` on `database`, on the primary, and returns the server's successful reply. Short for
    /// [`run`](Self::run) with [`Operation::new`].
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// That of [`run`](Self::run).
    #[track_caller]
    pub fn run_command<'c>(
        &'c self,
        database: &'c str,
        command: &'c RawDocument,
    ) -> impl Future<Output = Result<RawDocumentBuf, ClientError>> + Send + 'c {
        let answering = self.answer(Operation::new(database, command), Location::caller());
        async { Ok(answering.await?.reply) }
    }

    /// Runs an operation on a server that it selects, and returns the server's successful reply.
    ///
    /// # Errors
    ///
    /// [`ClientError`] tells how far the operation came.
    ///
    /// # Cancel safety
    ///
    /// That of [`Pool::run`](crate::Pool::run): nothing is lost, and whether the server executes the command is unknown.
    #[track_caller]
    pub fn run<'c>(
        &'c self,
        operation: impl Into<Operation<'c>>,
    ) -> impl Future<Output = Result<RawDocumentBuf, ClientError>> + Send + 'c {
        let answering = self.answer(operation.into(), Location::caller());
        async { Ok(answering.await?.reply) }
    }

    /// Runs an operation, and returns its reply with the connection that it came on.
    pub(super) async fn answer(
        &self,
        operation: Operation<'_>,
        site: &'static Location<'static>,
    ) -> Result<Answer, ClientError> {
        let limit = operation.command.limit(self.options());
        let id = operation.id.unwrap_or_else(|| self.command_events().operation());
        let attempt = Attempt { operation: &operation, id, limit, site };
        let server = self.select_for(&attempt, &[]).await?;
        match self.attempt(&server, &attempt).await {
            Ok((reply, connection)) => Ok(Answer { reply, connection, server }),
            Err(error) if self.may_retry(&operation, &error) => boxed(|| self.retry(&attempt, &server, error)).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn select_for(&self, attempt: &Attempt<'_>, avoid: &[ServerAddress]) -> Result<Selected, ClientError> {
        let operation = attempt.operation;
        let access = match (operation.kind, operation.read_preference) {
            (Kind::Write { .. }, _) => Access::Write,
            (_, Some(preference)) => Access::Read(preference),
            (Kind::Read, None) => Access::Read(&self.options().read_preference),
            (Kind::Command, None) => Access::Read(&PRIMARY),
        };
        let deadline = match attempt.limit {
            Limit::Until { at, limit } => Some((at, limit)),
            Limit::Unset | Limit::Infinite | Limit::For(_) => None,
        };
        Ok(self.deployment().select(Demand { access, deprioritized: avoid }, deadline).await?)
    }

    /// Returns whether the operation may be repeated after this error of its first attempt.
    fn may_retry(&self, operation: &Operation<'_>, error: &OperationError) -> bool {
        match operation.kind {
            Kind::Read => self.options().retry_reads && is_retryable_read(error),
            Kind::Command | Kind::Write { .. } => error.is_retryable(),
        }
    }

    /// Makes the second attempt, on another server if there is one. If it fails without reaching a server, the first
    /// error is more useful ("Executing Retryable Read Commands").
    async fn retry(
        &self,
        attempt: &Attempt<'_>,
        first: &Selected,
        error: OperationError,
    ) -> Result<Answer, ClientError> {
        let Ok(server) = self.select_for(attempt, std::slice::from_ref(&first.address)).await else {
            return Err(error.into());
        };
        match self.attempt(&server, attempt).await {
            Ok((reply, connection)) => Ok(Answer { reply, connection, server }),
            Err(OperationError::CheckOut(_) | OperationError::CheckOutTimeout { .. }) => Err(error.into()),
            Err(second) => Err(second.into()),
        }
    }

    /// Runs the operation once on a server.
    async fn attempt(&self, server: &Selected, attempt: &Attempt<'_>) -> Result<Replied, OperationError> {
        let Attempt { operation, id, limit, site } = *attempt;
        let mut appended = Vec::new();
        self.append(operation, &mut appended);
        let command = operation.command.within(limit).round_trip_time(server.least_round_trip()).appended(&appended);
        let options = self.options();
        let is_unacknowledged = matches!(operation.kind, Kind::Write { .. })
            && is_unacknowledged(options.write_concern.w.as_ref())
            && !has_field(operation, "writeConcern");
        let outcome = match is_unacknowledged {
            true => boxed(|| send_on(self.command_events(), id, server, command, limit, site)).await,
            false => run_on(self.command_events(), id, server, command, limit, site).await,
        };
        self.learn_from(server, &outcome, operation.kind);
        outcome
    }

    /// Applies what the outcome of a command says about the server.
    pub(super) fn learn_from(&self, server: &Server, outcome: &Result<Replied, OperationError>, kind: Kind) {
        match outcome {
            // Only the reply to a write can have a state change.
            Ok((reply, connection)) if kind != Kind::Read => {
                if let Some(change) = state_change(reply) {
                    let (generation, service_id) = (connection.generation(), connection.service_id());
                    self.deployment().state_changed(server, change, reply, generation, service_id);
                }
            }
            Ok(_) => {}
            Err(error) => self.deployment().operation_failed(server, error),
        }
    }

    /// Appends what the options ask of each command of this kind.
    fn append(&self, operation: &Operation<'_>, appended: &mut Vec<u8>) {
        let options = self.options();
        match operation.kind {
            Kind::Command => {}
            Kind::Read => {
                if let Some(level) = &options.read_concern
                    && !has_field(operation, "readConcern")
                {
                    append_elements(appended, &rawdoc! { "readConcern": { "level": level.as_str() } });
                }
            }
            Kind::Write { .. } => {
                if let Some(concern) = options.write_concern.document()
                    && !has_field(operation, "writeConcern")
                {
                    append_elements(appended, &rawdoc! { "writeConcern": concern });
                }
            }
        }
        let preference = match operation.kind {
            Kind::Write { .. } => None,
            Kind::Read => operation.read_preference.or(Some(&options.read_preference)),
            Kind::Command => operation.read_preference,
        };
        let snapshot = self.deployment().snapshot();
        let is_single = snapshot.topology.topology_type() == TopologyType::Single
            && snapshot.topology.servers().all(|server| server.server_type != ServerType::Mongos);
        if let Some(document) = wire_preference(preference, is_single) {
            append_elements(appended, &rawdoc! { "$readPreference": document });
        }
    }
}

/// The outcome of an operation.
pub(super) struct Answer {
    pub(super) reply: RawDocumentBuf,
    pub(super) connection: Connection<Endpoint>,
    pub(super) server: Selected,
}

/// A reply, and the connection that it came on.
pub(super) type Replied = (RawDocumentBuf, Connection<Endpoint>);

/// Runs a command on a connection of the server's pool. A connection that was lost while it was idle is replaced.
pub(super) async fn run_on(
    events: &CommandEvents,
    id: OperationId,
    server: &Server,
    command: Command<'_>,
    limit: Limit,
    site: &'static Location<'static>,
) -> Result<Replied, OperationError> {
    let pool = &server.pool;
    // The last connection that had been created when the first one was found lost.
    let mut last_old = None;
    loop {
        let mut connection = pool.check_out_for(limit, site).await?;
        match events.run(&mut connection, command, id).await {
            Err(OperationError::Command(CommandError::Lost { .. }))
                if connection.id() <= *last_old.get_or_insert_with(|| pool.last_created()) =>
            {
                pool.count_retry();
            }
            outcome => return outcome.map(|reply| (reply, connection)),
        }
    }
}

/// Sends a command to which there is no reply. Returns what stands for one.
async fn send_on(
    events: &CommandEvents,
    id: OperationId,
    server: &Server,
    command: Command<'_>,
    limit: Limit,
    site: &'static Location<'static>,
) -> Result<Replied, OperationError> {
    let mut connection = server.pool.check_out_for(limit, site).await?;
    let reply = events.send(&mut connection, command, id).await?;
    Ok((reply, connection))
}

/// One operation, with what all its attempts share.
struct Attempt<'a> {
    operation: &'a Operation<'a>,
    id: OperationId,
    limit: Limit,
    site: &'static Location<'static>,
}

/// Returns whether the caller's document has the field.
fn has_field(operation: &Operation<'_>, field: &str) -> bool {
    matches!(operation.command.body().get(field), Ok(Some(_)))
}

/// Returns the value of `$readPreference`, if the command needs one (Server Selection, "Passing read preference to
/// mongos and load balancers" and "Topology type Single").
fn wire_preference(preference: Option<&ReadPreference>, is_single: bool) -> Option<RawDocumentBuf> {
    let preference = preference?;
    match preference.mode {
        ReadPreferenceMode::Primary if is_single => Some(rawdoc! { "mode": "primaryPreferred" }),
        ReadPreferenceMode::Primary => None,
        _ => Some(preference.document()),
    }
}

/// Appends the elements of a document, without its length and end.
fn append_elements(appended: &mut Vec<u8>, document: &RawDocument) {
    let bytes = document.as_bytes();
    appended.extend_from_slice(&bytes[4..bytes.len() - 1]);
}

/// Returns what a successful reply says about the server's state.
fn state_change(reply: &RawDocument) -> Option<StateChange> {
    // A document without this element has no state change, and nearly no reply has it.
    reply.get("writeConcernError").ok().flatten().and_then(|_| StateChange::of_reply(reply))
}

/// Returns whether a read may be repeated after this error ("Retryable Error" of Retryable Reads).
fn is_retryable_read(error: &OperationError) -> bool {
    match error {
        OperationError::Command(failure) => {
            failure.is_retryable()
                || failure.is_network_error()
                || failure.server_error().is_some_and(|error| error.has_retryable_code() || error.code == 134)
        }
        OperationError::Interrupted(_) => true,
        OperationError::CheckOut(error) => error.is_retryable(),
        OperationError::CheckOutTimeout { .. } => false,
    }
}
