//! Attempts that failed.

use bson::RawDocumentBuf;

use super::super::error::{ClientError, FailedOperation};
use super::super::in_session::InSession;
use super::super::operation::Kind;
use super::{Answer, FailedAttempt, Running, UnmetConcern};
use crate::client::deployment::Selected;
use crate::client::session::{Fault, FaultKind, Retryability, SessionServer};
use crate::endpoint::OperationError;
use crate::endpoint::wire::reply::MAX_TIME_MS_EXPIRED;
use crate::pool::error::Labels;

impl Running<'_> {
    /// Returns the failure of a write that was executed, but whose write concern was not met.
    #[cold]
    pub(super) fn concern_unmet(
        &self,
        reply: RawDocumentBuf,
        server: Selected,
        known: SessionServer,
        fault: Fault,
    ) -> Box<FailedAttempt> {
        let retries = self.transaction_number.is_some();
        let labels = fault.write_labels(retries, Some(known.max_wire_version), known.is_mongos);
        let error = ClientError::unreadable("a write", "its write concern was not met");
        let address = server.address.clone();
        let is_timeout = self.limit().is_set() && fault.write_concern_code == MAX_TIME_MS_EXPIRED;
        let unmet = Some(UnmetConcern { labels, is_timeout });
        let answer =
            Answer { reply, connection: None, server, session: InSession::Never, unmet, is_acknowledged: true };
        Box::new(FailedAttempt { error, fault, labels, server: Some(address), answer: Some(answer) })
    }

    pub(super) fn failed(
        &mut self,
        error: OperationError,
        server: Option<&Selected>,
        known: Option<SessionServer>,
        is_connection_reusable: bool,
    ) -> Box<FailedAttempt> {
        if known.is_none()
            && let Some(server) = server
        {
            self.client.deployment().operation_failed(server, &error);
        }
        let fault = Fault::of_error(&error, is_connection_reusable);
        let labels = self.note_failure(&fault, known);
        let error = match self.transaction_number {
            Some(_) => FailedOperation::numbered_write(error, labels).into(),
            None => FailedOperation::operation(error, labels).into(),
        };
        let server = server.map(|server| server.address.clone());
        Box::new(FailedAttempt { error, fault, labels, server, answer: None })
    }

    /// Notes a failed attempt in the session, and returns the error's labels.
    pub(super) fn note_failure(&mut self, fault: &Fault, known: Option<SessionServer>) -> Labels {
        let retries_writes = self.retryability == Retryability::Write;
        match &mut self.session {
            InSession::Explicit(explicit) if self.operation.is_beside_transaction => {
                explicit.lock().cursor_failed(fault, None).labels
            }
            InSession::Explicit(explicit) => {
                let consequence = explicit.lock().failed(fault, known, retries_writes);
                consequence.labels
            }
            InSession::Implicit(session) => {
                if let Some(session) = session
                    && matches!(fault.kind, FaultKind::Network | FaultKind::Malformed)
                {
                    session.mark_dirty();
                }
                let (version, is_mongos) =
                    known.map_or((None, false), |known| (Some(known.max_wire_version), known.is_mongos));
                match self.operation.kind {
                    Kind::Write { .. } => fault.write_labels(retries_writes, version, is_mongos),
                    Kind::Read | Kind::Command => fault.labels,
                }
            }
            InSession::Never => fault.labels,
        }
    }
}
