//! The attempts of one operation: whether there is another one, when, and on which servers.

use super::Client;
use super::error::ClientError;
use crate::endpoint::Limit;
use crate::options::ServerAddress;
use crate::runtime::random_fraction;
use crate::session::{Decision, ErrorLabels, Fault, Retries, RetryOptions, Retryability};
use crate::topology::TopologyType;

/// The attempts of one operation, from the first one that has failed.
pub(super) struct Attempts<'c> {
    client: &'c Client,
    limit: Limit,
    retries: Retries,
    avoided: Vec<ServerAddress>,
    /// Whether an attempt has been repeated.
    is_repeated: bool,
}

impl<'c> Attempts<'c> {
    pub(super) fn new(client: &'c Client, retryability: Retryability, limit: Limit) -> Self {
        let retries = Retries::new(RetryOptions::of(client.options()), retryability, limit.is_set());
        Self { client, limit, retries, avoided: Vec::new(), is_repeated: false }
    }

    /// Returns the servers that the next attempt avoids if it can.
    pub(super) fn avoided(&self) -> &[ServerAddress] {
        &self.avoided
    }

    /// Returns the error to report, after the last attempt. If it is that of an earlier one, which was repeated until the
    /// time was up, it is a timeout as well.
    pub(super) fn report(&self, error: ClientError) -> ClientError {
        match self.is_repeated && self.limit.left().is_some_and(|left| left.is_zero()) {
            true => error.late(),
            false => error,
        }
    }

    /// Returns whether there is another attempt, after the pause that comes before it. `server`: that of the attempt that
    /// has failed.
    ///
    /// # Cancel safety
    ///
    /// The attempt counts as made.
    pub(super) async fn goes_on(&mut self, fault: &Fault, labels: ErrorLabels, server: Option<ServerAddress>) -> bool {
        let is_sharded = self.client.deployment().snapshot().topology.topology_type() == TopologyType::Sharded;
        let Decision::Retry { after, deprioritize } =
            self.retries.after(fault, labels, is_sharded, random_fraction(), self.limit.left())
        else {
            return false;
        };
        if deprioritize {
            self.avoid(server);
        }
        if !after.is_zero() {
            self.client.pause(after).await;
        }
        self.is_repeated = true;
        true
    }

    /// Adds a server to those that are avoided, once: with a time limit, there may be any number of attempts.
    fn avoid(&mut self, server: Option<ServerAddress>) {
        self.avoided.extend(server.filter(|server| !self.avoided.contains(server)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_avoided_once() {
        let client = Client::from_uri("mongodb://a,b").unwrap();
        let seeds = &client.options().hosts;
        let mut attempts = Attempts::new(&client, Retryability::Read, Limit::Unset);
        for server in [Some(&seeds[0]), None, Some(&seeds[1]), Some(&seeds[0])] {
            attempts.avoid(server.cloned());
        }
        assert_eq!(attempts.avoided(), &seeds[..]);
    }
}
