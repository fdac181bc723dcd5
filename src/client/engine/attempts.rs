//! The attempts of one operation: whether to make another attempt, when, and on which servers.

use std::time::Duration;

use super::super::Client;
use crate::client::session::{Decision, Fault, FaultKind, Retries, RetryOptions, Retryability};
use crate::client::topology::TopologyType;
use crate::endpoint::Limit;
use crate::endpoint::options::{Options, ServerAddress};
use crate::pool::error::Labels;
use crate::pool::runtime::random_fraction;

/// The attempts of one operation, starting with the first failed attempt.
pub(super) struct Attempts {
    limit: Limit,
    retries: Retries,
    avoided: Vec<ServerAddress>,
    /// Whether the operation was attempted again.
    is_repeated: bool,
    /// Whether the attempts stopped only because of the time limit.
    is_late: bool,
}

impl Attempts {
    pub(super) fn new(options: &Options, retryability: Retryability, limit: Limit) -> Self {
        let retries = Retries::new(RetryOptions::of(options), retryability, limit.is_set());
        Self { limit, retries, avoided: Vec::new(), is_repeated: false, is_late: false }
    }

    /// Returns the servers that the next attempt avoids if possible.
    pub(super) fn avoided(&self) -> &[ServerAddress] {
        &self.avoided
    }

    /// Returns whether the attempts stopped only because of the time limit (Client Side Operations Timeout,
    /// "Retryability").
    pub(super) fn are_late(&self) -> bool {
        self.is_late
    }

    /// Decides whether to make another attempt. If so, pauses first, and then returns true. `server` is the failed
    /// attempt's server.
    ///
    /// # Cancel safety
    ///
    /// The next attempt counts even though it was not made.
    pub(super) async fn goes_on(
        &mut self,
        client: &Client,
        fault: &Fault,
        labels: Labels,
        server: Option<ServerAddress>,
    ) -> bool {
        let is_sharded = client.deployment().snapshot().topology.topology_type() == TopologyType::Sharded;
        let left = self.limit.left();
        let (after, deprioritize) = match self.retries.after(fault, labels, is_sharded, random_fraction(), left) {
            Decision::Retry { after, deprioritize } => (after, deprioritize),
            Decision::OutOfTime => {
                self.is_late = true;
                return false;
            }
            Decision::GiveUp => {
                self.is_late = self.is_repeated && ended_by_time(fault, left);
                return false;
            }
        };
        if deprioritize {
            self.avoid(server);
        }
        if !after.is_zero() {
            client.pause(after).await;
        }
        self.is_repeated = true;
        true
    }

    /// Adds a server to the avoided servers, unless it is already one of them. With a time limit, the number of
    /// attempts is not limited, so the list must not grow with each attempt.
    fn avoid(&mut self, server: Option<ServerAddress>) {
        self.avoided.extend(server.filter(|server| !self.avoided.contains(server)));
    }
}

/// Returns whether the attempt sent nothing because the operation had too little time left.
fn ended_by_time(fault: &Fault, left: Option<Duration>) -> bool {
    match fault.kind {
        _ if fault.is_unsent => left.is_some(),
        FaultKind::Selection | FaultKind::CheckOut => left.is_some_and(|left| left.is_zero()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_avoided_once() {
        let client = Client::from_uri("mongodb://a,b").unwrap();
        let seeds = &client.options().hosts;
        let mut attempts = Attempts::new(client.options(), Retryability::Read, Limit::Unset);
        for server in [Some(&seeds[0]), None, Some(&seeds[1]), Some(&seeds[0])] {
            attempts.avoid(server.cloned());
        }
        assert_eq!(attempts.avoided(), &seeds[..]);
    }
}
