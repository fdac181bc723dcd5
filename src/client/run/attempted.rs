//! Implements the interface through which the engine runs operations.

use super::super::Client;
use super::super::engine::{Attempted, Common, Target, Tried, found_no_server, refused};
use super::super::in_session::{InSession, Pinned};
use super::super::operation::Kind;
use super::Running;
use crate::client::deployment::{Demand, Selected};
use crate::client::selection::Access;
use crate::client::session::{Fault, ReplyTimes, Retryability, SessionServer, write_labels};
use crate::client::topology::TopologyType;
use crate::endpoint::options::{PRIMARY, ServerAddress};
use crate::endpoint::{Command, Endpoint};
use crate::pool::error::Labels;
use crate::pool::runtime::Connection;

impl Attempted for Running<'_> {
    type Server = Selected;

    #[inline]
    fn common(&self) -> Common<'_> {
        Common { client: self.client, observation: &self.observation, limit: self.limit(), site: self.site }
    }

    #[inline]
    fn session(&mut self) -> (&mut InSession, &Client) {
        (&mut self.session, self.client)
    }

    /// Selects a server in the usual case: the server is known, nothing is pinned, and there is no observer.
    #[inline]
    fn select_at_once(&self, avoid: &[ServerAddress]) -> Option<Selected> {
        let is_usual = avoid.is_empty() && !self.is_in_transaction && !self.observation.is_observed();
        is_usual.then(|| self.client.deployment().select_at_once(self.access()))?
    }

    async fn select(&mut self, avoid: &[ServerAddress]) -> Tried<Target<Selected>, Self> {
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
        let operation = self.observation.logged(self.operation.command.body());
        let (access, only_at) = (self.access(), only.as_ref());
        let wait_logged = self.operation.part_of.map_or(&self.wait_logged, |whole| &whole.wait_logged);
        let demand = Demand { access, deprioritized: avoid, only: only_at, operation, wait_logged };
        let selected = self.client.deployment().select(demand, self.limit().deadline()).await;
        let server = selected.map_err(|error| found_no_server(self, error))?;
        if self.is_in_transaction && only.is_none() {
            self.pin_to_mongos(&server);
        }
        Ok((server, None))
    }

    #[inline]
    fn may_move(&self) -> bool {
        !self.is_in_transaction
    }

    #[inline]
    fn may_reconnect(&self) -> bool {
        !self.is_in_transaction
    }

    #[inline]
    fn append(&mut self, to: &mut Vec<u8>, connection: &Connection<Endpoint>, known: SessionServer) -> Tried<(), Self> {
        self.encode(to, connection, known)
    }

    #[inline]
    fn closes_if_cut_short(&self, known: SessionServer) -> bool {
        self.is_in_transaction && known.is_load_balanced
    }

    #[inline]
    fn has_no_reply(&self) -> bool {
        self.has_no_reply
    }

    #[inline]
    fn command(&self) -> Command<'_> {
        self.operation.command.with_body(self.split.as_ref().map_or_else(|| self.body(), |split| &split.body))
    }

    #[inline]
    fn replied(&self, times: &ReplyTimes<'_>) {
        if let InSession::Explicit(explicit) = &self.session
            && !self.operation.is_beside_transaction
        {
            explicit.lock().succeeded(times);
        }
    }

    /// Any operation other than a read may write. An aggregation that writes its result is of the kind `Read`, but must
    /// not be executed twice.
    #[inline]
    fn may_write(&self) -> bool {
        self.operation.kind != Kind::Read || self.retryability == Retryability::OtherWrite
    }

    #[inline]
    fn fails_without_concern(&self) -> bool {
        self.operation.kind != Kind::Command
    }

    #[inline]
    fn keep(&mut self, server: &Selected, connection: Connection<Endpoint>) -> Option<Connection<Endpoint>> {
        if !self.is_in_transaction {
            return Some(connection);
        }
        let InSession::Explicit(explicit) = &self.session else { return Some(connection) };
        explicit.keep_connection(server, connection)
    }

    fn note(&mut self, fault: &Fault, known: Option<SessionServer>) -> Labels {
        let retries_writes = self.retryability == Retryability::Write;
        match &mut self.session {
            InSession::Explicit(explicit) if self.operation.is_beside_transaction => {
                explicit.note(|state| state.failed_beside(fault))
            }
            InSession::Explicit(explicit) => explicit.note(|state| state.failed(fault, known, retries_writes)),
            session => {
                session.mark_dirty_after(fault);
                match self.operation.kind {
                    Kind::Write { .. } => write_labels(fault, known, retries_writes),
                    Kind::Read | Kind::Command => fault.labels,
                }
            }
        }
    }

    fn is_numbered(&self) -> bool {
        self.transaction_number.is_some()
    }

    fn retryability(&self) -> Retryability {
        self.retryability
    }
}

impl Running<'_> {
    /// Returns what the operation requires of its server.
    #[inline]
    fn access(&self) -> Access<'_> {
        match (self.operation.kind, self.operation.read_preference) {
            _ if self.is_in_transaction => Access::Write,
            (Kind::Write { .. }, _) => Access::Write,
            (Kind::Command, own) => Access::Read(own.unwrap_or(&PRIMARY)),
            (Kind::Read, own) => {
                let preference = own.unwrap_or(&self.client.options().read_preference);
                // Among reads, only aggregations that write their results are `OtherWrite`.
                let writes = self.retryability == Retryability::OtherWrite;
                if writes { Access::Output(preference) } else { Access::Read(preference) }
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
