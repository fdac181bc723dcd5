//! The server of an operation.

use super::super::error::{FailedOperation, fault_of_selection};
use super::super::in_session::{InSession, Pinned};
use super::super::operation::Kind;
use super::appended::refused;
use super::{FailedAttempt, Running};
use crate::client::deployment::{Demand, Selected};
use crate::client::selection::Access;
use crate::client::session::Retryability;
use crate::client::topology::TopologyType;
use crate::endpoint::Endpoint;
use crate::endpoint::options::{PRIMARY, ServerAddress};
use crate::pool::runtime::Connection;

impl Running<'_> {
    /// Selects the server without waiting, in the usual case: it is known, nothing is pinned, and no observer is there.
    #[inline]
    pub(super) fn select_at_once(&self, avoid: &[ServerAddress]) -> Option<Selected> {
        let is_usual = avoid.is_empty() && !self.is_in_transaction && !self.id.is_observed();
        is_usual.then(|| self.client.deployment().select_at_once(self.access()))?
    }

    /// Returns what the operation asks of its server.
    #[inline]
    fn access(&self) -> Access<'_> {
        match (self.operation.kind, self.operation.read_preference) {
            _ if self.is_in_transaction => Access::Write,
            (Kind::Write { .. }, _) => Access::Write,
            (Kind::Command, own) => Access::Read(own.unwrap_or(&PRIMARY)),
            (Kind::Read, own) => {
                let preference = own.unwrap_or(&self.client.options().read_preference);
                // An aggregation that writes its result.
                let writes = self.retryability == Retryability::OtherWrite;
                if writes { Access::Output(preference) } else { Access::Read(preference) }
            }
        }
    }

    /// Selects the server, or takes what the transaction is pinned to.
    pub(super) async fn select(
        &mut self,
        avoid: &[ServerAddress],
    ) -> Result<(Selected, Option<Connection<Endpoint>>), Box<FailedAttempt>> {
        let mut only = None;
        if let InSession::Explicit(explicit) = &self.session
            && self.is_in_transaction
        {
            explicit.cursors_closed(self.limit()).await.map_err(refused)?;
            match explicit.take_pin(None).map_err(refused)? {
                Some(Pinned::Connection(server, connection)) => return Ok((server, Some(*connection))),
                Some(Pinned::Server(address)) => only = Some(address),
                None => {}
            }
        }
        let purpose = self.id.purpose(self.operation.command.body());
        let (access, only_at) = (self.access(), only.as_ref());
        let wait_logged = self.operation.part_of.map_or(&self.wait_logged, |whole| &whole.wait_logged);
        let demand = Demand { access, deprioritized: avoid, only: only_at, purpose, wait_logged };
        match self.client.deployment().select(demand, self.limit().deadline()).await {
            Ok(server) => {
                if self.is_in_transaction && only.is_none() {
                    self.pin_to_mongos(&server);
                }
                Ok((server, None))
            }
            Err(error) => {
                let fault = fault_of_selection(&error);
                let labels = self.note_failure(&fault, None);
                let error = FailedOperation::selection(error, labels).into();
                Err(Box::new(FailedAttempt { error, fault, labels, server: None, answer: None }))
            }
        }
    }

    /// Pins the transaction to its mongos (Transactions, "Sharded transactions").
    fn pin_to_mongos(&self, server: &Selected) {
        if let InSession::Explicit(explicit) = &self.session
            && self.client.deployment().snapshot().topology.topology_type() == TopologyType::Sharded
        {
            explicit.lock().pin(Pinned::Server(server.address.clone()));
        }
    }
}
