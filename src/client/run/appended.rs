//! The elements that the client appends to an attempt's command.

use super::super::appending::{
    append_preference, append_read_concern, append_write_concern, has_field, session_use, usual_preference,
};
use super::super::engine::{Tried, refused};
use super::super::in_session::{InSession, has_sessions, timeout_of};
use super::super::operation::{Kind, Operation};
use super::Running;
use crate::client::session::{Moment, Retryability, ServerSession, SessionError, SessionServer};
use crate::client::topology::TopologyType;
use crate::endpoint::Endpoint;
use crate::endpoint::options::InvalidOption;
use crate::endpoint::wire::reply;
use crate::pool::runtime::Connection;

/// The wire version of MongoDB 4.4.
const FIRST_4_4: i32 = 9;

/// Room for the session and the cluster time, which most commands carry.
const USUALLY_APPENDED: usize = 192;

impl Running<'_> {
    /// Encodes the elements that the client appends to the command.
    pub(super) fn encode(
        &mut self,
        appended: &mut Vec<u8>,
        connection: &Connection<Endpoint>,
        known: SessionServer,
    ) -> Tried<(), Self> {
        let Self { client, operation, session, split, is_in_transaction, is_unacknowledged, .. } = self;
        // Refused before the session records the command as sent.
        let is_write = matches!(operation.kind, Kind::Write { .. });
        if is_write
            && known.max_wire_version < FIRST_4_4
            && let Some(option) = ignored_before_4_4(operation, *is_unacknowledged)
        {
            return Err(refused(InvalidOption::because(option, "needs MongoDB 4.4")));
        }
        appended.reserve(USUALLY_APPENDED);
        let has_sessions = has_sessions(connection);
        let now = Moment::now();
        if let InSession::Implicit(implicit @ None) = session
            && has_sessions
        {
            *implicit = Some(client.sessions().acquire(now, timeout_of(connection)));
        }
        if self.retryability == Retryability::Write && self.transaction_number.is_none() && known.has_cluster_time {
            self.transaction_number = session.next_transaction_number();
        }
        if self.retryability == Retryability::Write && self.transaction_number.is_none() {
            // Without a number, the server could not recognise a repetition.
            self.retryability = Retryability::OtherWrite;
        }
        let client_time = known.has_cluster_time.then(|| client.cluster_time().load());
        let client_time = client_time.as_ref().and_then(|time| time.as_deref());
        let appending = match session {
            InSession::Explicit(explicit) if !has_sessions && !explicit.is_implicit() => Err(SessionError::Unsupported),
            InSession::Explicit(explicit) if has_sessions => {
                let (number, split) = (self.transaction_number, split.as_deref());
                let session_use = session_use(client, operation, *is_unacknowledged, number, split);
                let mut state = explicit.lock();
                state.give_server(|| client.sessions().acquire(now, timeout_of(connection)));
                state.append_to(appended, now, &session_use, known, client_time)
            }
            InSession::Explicit(_) | InSession::Implicit(_) | InSession::Never => {
                if let InSession::Implicit(Some(session)) = session {
                    session.append_to(appended, now);
                    if let Some(number) = self.transaction_number {
                        ServerSession::append_transaction_number(appended, number);
                    }
                }
                append_read_concern(appended, client, operation);
                if let Some(time) = client_time {
                    time.append_to(appended);
                }
                Ok(())
            }
        };
        if let Err(error) = appending {
            return Err(refused(error));
        }
        let writes_its_result = operation.kind == Kind::Read && self.retryability == Retryability::OtherWrite;
        if (is_write || writes_its_result) && !*is_in_transaction {
            append_write_concern(appended, client, operation);
        }
        // A standalone server does not support read preferences.
        if !*is_in_transaction
            && known.has_cluster_time
            && let Some(preference) = usual_preference(client, operation)
        {
            let snapshot = client.deployment().snapshot();
            // The read preference that the server was selected with.
            let preference = if writes_its_result { snapshot.topology.for_output(preference) } else { preference };
            let is_single = snapshot.topology.topology_type() == TopologyType::Single && !known.is_mongos;
            append_preference(appended, preference, is_single);
        }
        Ok(())
    }
}

/// If the write has an option that servers before MongoDB 4.4 would silently ignore, returns the option's name (Index
/// Management, "CreateIndexOptions"; CRUD, "DeleteOptions" and "FindOneAndUpdateOptions").
#[cold]
fn ignored_before_4_4(operation: &Operation<'_>, is_unacknowledged: bool) -> Option<&'static str> {
    let in_statements =
        || operation.command.all_in_sequences().any(|(_, statement)| reply::has_field(statement, "hint"));
    match operation.command.name() {
        "createIndexes" if has_field(operation, "commitQuorum") => Some("commitQuorum"),
        "delete" if is_unacknowledged && in_statements() => Some("hint"),
        "findAndModify" if is_unacknowledged && has_field(operation, "hint") => Some("hint"),
        _ => None,
    }
}
