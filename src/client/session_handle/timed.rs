//! The time limits of sessions and transactions, including the limits of blocking calls.

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

    /// Returns the time limit of the next [`advance`](super::super::repeating::Repeating::advance) without starting it.
    /// `fails` says whether the body failed. If it failed, `advance` begins with an abort.
    pub(crate) fn limit_of_advance(&self, fails: bool) -> Limit {
        match self.explicit().limit() {
            Some(limit) if fails => limit.unstarted(),
            limit => limit.unwrap_or(Limit::Unset),
        }
    }
}
