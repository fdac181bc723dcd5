//! Commits and aborts of transactions, which the engine runs.

use std::panic::Location;
use std::sync::Arc;

use bson::RawDocumentBuf;

use super::super::Client;
use super::super::command_events::Observation;
use super::super::engine::{self, Attempted, Common, Reached, Target, Tried, found_no_server, refused};
use super::super::error::{ClientError, FailedOperation};
use super::super::in_session::{Explicit, InSession, Pinned};
use super::super::spans::Described;
use crate::client::deployment::{Demand, Selected, WaitLogged};
use crate::client::selection::Access;
use crate::client::session::{Fault, Moment, ReplyTimes, Retryability, SessionServer};
use crate::endpoint::options::ServerAddress;
use crate::endpoint::{Command, Endpoint, Limit};
use crate::pool::error::Labels;
use crate::pool::runtime::Connection;

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Commit,
    Abort,
}

impl End {
    /// Returns the command's name.
    fn command(self) -> &'static str {
        match self {
            Self::Commit => "commitTransaction",
            Self::Abort => "abortTransaction",
        }
    }

    /// Begins observing a commit or an abort of a session's transaction.
    pub(super) fn observe(self, explicit: &Explicit, site: &'static Location<'static>) -> Observation {
        explicit.client().command_events().operation(|| Described {
            transaction: explicit.span(),
            site: Some(site),
            ..Described::named(self.command(), "admin")
        })
    }
}

/// Sends a commit or an abort, and retries it. `limit` has already started.
pub(super) async fn end_transaction(
    explicit: &Arc<Explicit>,
    end: End,
    limit: Option<Limit>,
    site: &'static Location<'static>,
    observation: &Observation,
) -> Result<(), ClientError> {
    let mut ending = Ending {
        explicit,
        session: InSession::Explicit(explicit.clone()),
        end,
        limit: limit.unwrap_or_else(|| end.limit_in(explicit).start()),
        site,
        observation,
        wait_logged: WaitLogged::new(),
        is_pinned: false,
        body: RawDocumentBuf::new(),
    };
    match engine::run(&mut ending).await {
        Ok((_, None)) => Ok(()),
        Ok((Reached { reply, server, .. }, Some(unmet))) => {
            let reason = "the commit succeeded, but its write concern was not met";
            Err(FailedOperation::concern(reason, &server.address, reply, unmet).into())
        }
        // Even if the last attempt was not sent, an earlier attempt may have been sent, so the commit should be
        // repeated.
        Err(given_up) if given_up.labels.contains(Labels::UNKNOWN_COMMIT_RESULT) => {
            Err(given_up.error.with_unknown_commit_result())
        }
        Err(given_up) => Err(given_up.error),
    }
}

/// A commit or an abort in progress.
struct Ending<'a> {
    explicit: &'a Arc<Explicit>,
    session: InSession,
    end: End,
    limit: Limit,
    site: &'static Location<'static>,
    observation: &'a Observation,
    wait_logged: WaitLogged,
    /// Whether the attempt's connection had already been pinned.
    is_pinned: bool,
    /// The command of the attempt.
    body: RawDocumentBuf,
}

impl Attempted for Ending<'_> {
    type Server = Selected;

    fn common(&self) -> Common<'_> {
        Common { client: self.explicit.client(), observation: self.observation, limit: self.limit, site: self.site }
    }

    fn session(&mut self) -> (&mut InSession, &Client) {
        (&mut self.session, self.explicit.client())
    }

    async fn select(&mut self, avoid: &[ServerAddress]) -> Tried<Target<Selected>, Self> {
        let Self { explicit, limit, .. } = *self;
        let pin = match self.end {
            End::Commit => {
                let pin = explicit.cursors_closed(limit).await.and_then(|()| explicit.take_pin(None));
                if pin.is_err() {
                    explicit.lock().commit_refused();
                }
                pin
            }
            End::Abort => {
                // An abort also ends the cursors, so it can use another connection.
                let longest = Limit::of(explicit.client().options().server_selection_timeout).start();
                let _ = explicit.cursors_closed(if limit.deadline().is_some() { limit } else { longest }).await;
                explicit.take_pin(None)
            }
        };
        let pin = pin.map_err(refused)?;
        self.is_pinned = matches!(pin, Some(Pinned::Connection(..)));
        let only = match pin {
            Some(Pinned::Connection(server, connection)) => return Ok((server, Some(*connection))),
            Some(Pinned::Server(address)) => Some(address),
            None => None,
        };
        let operation = self.observation.named(self.end.command());
        let (only, wait_logged) = (only.as_ref(), &self.wait_logged);
        let demand = Demand { access: Access::Write, deprioritized: avoid, only, operation, wait_logged };
        let selected = explicit.client().deployment().select(demand, limit.deadline()).await;
        selected.map(|server| (server, None)).map_err(|error| found_no_server(self, error))
    }

    fn append(
        &mut self,
        to: &mut Vec<u8>,
        _connection: &Connection<Endpoint>,
        _known: SessionServer,
    ) -> Tried<(), Self> {
        let time = self.explicit.client().cluster_time().load();
        let mut state = self.explicit.lock();
        self.body = match self.end {
            End::Commit => state.commit_command(self.limit.is_set()),
            End::Abort => state.abort_command(self.limit.is_set()),
        };
        state.append_ending(to, Moment::now(), time.as_deref());
        Ok(())
    }

    fn command(&self) -> Command<'_> {
        Command::new("admin", &self.body).within(self.limit)
    }

    fn replied(&self, times: &ReplyTimes<'_>) {
        self.explicit.lock().keep_token(times);
    }

    fn may_write(&self) -> bool {
        true
    }

    fn keep(&mut self, server: &Selected, connection: Connection<Endpoint>) -> Option<Connection<Endpoint>> {
        match self.end {
            // The connection stays pinned, because the commit may be repeated on it. If an error unpinned the
            // transaction, and the commit was repeated on another connection, this connection is not pinned (Load
            // Balancers, "Connection Pinning").
            End::Commit if self.is_pinned => self.explicit.keep_connection(server, connection),
            // A mongos stays pinned, because the commit may be repeated (Transactions, "When to unpin").
            End::Commit => Some(connection),
            End::Abort => {
                let unpinned = self.explicit.lock().unpin();
                drop(unpinned);
                Some(connection)
            }
        }
    }

    /// An error that leaves the outcome of a commit unknown unpins the transaction, and so does any error from an
    /// abort.
    fn note(&mut self, fault: &Fault, known: Option<SessionServer>) -> Labels {
        self.explicit.note(|state| match self.end {
            End::Commit => state.commit_failed(fault, known),
            End::Abort => state.abort_failed(fault, known),
        })
    }

    fn retryability(&self) -> Retryability {
        match self.end {
            End::Commit => Retryability::Commit,
            End::Abort => Retryability::Abort,
        }
    }
}
