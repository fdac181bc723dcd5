//! The time limits of sessions and transactions, including the limits of blocking calls.

use std::panic::Location;

use super::super::error::ClientError;
use super::super::in_session::Explicit;
use super::Session;
use super::ending::End;
use crate::endpoint::Limit;

impl End {
    /// Returns the time limit of the command without starting it.
    pub(super) fn limit_in(self, explicit: &Explicit) -> Limit {
        match (explicit.limit(), self) {
            (Some(limit), Self::Commit) => limit,
            // The time may have run out, but the transaction must not stay open.
            (Some(limit), Self::Abort) => limit.unstarted(),
            (None, _) => Limit::Unset.or(explicit.lock().timeout_of_end()),
        }
    }
}

impl Session {
    /// Returns the time limit of a commit without starting it.
    pub(crate) fn limit_of_commit(&self) -> Limit {
        End::Commit.limit_in(self.explicit())
    }

    /// Returns the time limit of an abort without starting it.
    pub(crate) fn limit_of_abort(&self) -> Limit {
        End::Abort.limit_in(self.explicit())
    }

    /// Commits the transaction. `limit` comes from [`limit_of_commit`](Self::limit_of_commit), and is already running.
    pub(crate) fn commit_within(
        &mut self,
        limit: Limit,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<(), ClientError>> + Send + '_ {
        self.end(End::Commit, Some(limit), site)
    }

    /// Aborts the transaction. `limit` comes from [`limit_of_abort`](Self::limit_of_abort), and is already running.
    pub(crate) fn abort_within(
        &mut self,
        limit: Limit,
        site: &'static Location<'static>,
    ) -> impl Future<Output = Result<(), ClientError>> + Send + '_ {
        self.end(End::Abort, Some(limit), site)
    }

    /// Returns the time limit of the next [`advance`](super::super::repeating::Repeating::advance) without starting it.
    /// `fails` says that the body failed, in which case `advance` begins with an abort.
    pub(crate) fn limit_of_advance(&self, fails: bool) -> Limit {
        match self.explicit().limit() {
            Some(limit) if fails => limit.unstarted(),
            limit => limit.unwrap_or(Limit::Unset),
        }
    }
}
