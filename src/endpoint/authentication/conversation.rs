//! Commands and replies on a connection that is being authenticated.

use bson::RawDocument;

use super::Cause;
use crate::endpoint::channel::Channel;
use crate::endpoint::deadline::Deadline;
use crate::options::ServerAddress;
use crate::wire::reply::{self, Unsuccessful};

/// The two ends of an authentication, and how long it may take.
pub(in crate::endpoint) struct Conversation<'a> {
    pub channel: &'a mut Channel,
    pub address: &'a ServerAddress,
    pub deadline: Deadline,
}

impl Conversation<'_> {
    /// Runs `command` on `database` until the deadline, and returns the reply of its success.
    ///
    /// # Errors
    ///
    /// [`Cause::Refused`] is what the server says; all others mean that the connection must be closed.
    pub async fn run(&mut self, database: &str, command: &RawDocument) -> Result<&RawDocument, Cause> {
        let exchange = self.channel.exchange(database, command);
        let document = self.deadline.bound(exchange).await.map_err(Cause::Timeout)??;
        match reply::check(document) {
            Ok(()) => Ok(document),
            Err(Unsuccessful::Command(error)) => Err(Cause::Refused(error)),
            Err(Unsuccessful::Wire(error)) => Err(Cause::Wire(error)),
        }
    }
}
