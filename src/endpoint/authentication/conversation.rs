//! Commands and replies on a connection during its authentication.

use bson::{RawDocument, RawDocumentBuf};
use zeroize::Zeroize;

use super::Cause;
use crate::endpoint::channel::Channel;
use crate::endpoint::deadline::Deadline;
use crate::endpoint::options::ServerAddress;
use crate::endpoint::wire::ServerError;
use crate::endpoint::wire::reply::{self, Unsuccessful};

/// An authentication in progress: its channel, its server and its deadline.
///
/// Dropping it wipes the conversation from the channel's buffers.
pub(super) struct Conversation<'a> {
    channel: Wiping<'a>,
    #[cfg_attr(not(feature = "oidc"), expect(dead_code, reason = "only OIDC needs the address"))]
    pub address: &'a ServerAddress,
    pub deadline: Deadline,
}

impl<'a> Conversation<'a> {
    pub fn new(channel: &'a mut Channel, address: &'a ServerAddress, deadline: Deadline) -> Self {
        Self { channel: Wiping(channel), address, deadline }
    }

    /// Runs `command` on `database` within the deadline, and returns the server's successful reply.
    ///
    /// # Errors
    ///
    /// [`Cause::Refused`] if the server refused the command. After any other error the connection must be closed.
    pub async fn run(&mut self, database: &str, command: &RawDocument) -> Result<&RawDocument, Cause> {
        let exchange = self.channel.0.exchange(database, command);
        let document = self.deadline.bound_command(exchange).await.map_err(Cause::Timeout)??;
        match reply::check(document) {
            Ok(()) => Ok(document),
            Err(Unsuccessful::Command(error)) => Err(Cause::Refused(error)),
            Err(Unsuccessful::Wire(error)) => Err(Cause::Wire(error)),
        }
    }

    /// Like [`run`](Self::run), but always wipes the command, because it holds a secret. Also removes the server's
    /// error text, because it may repeat the secret.
    pub async fn run_secret(&mut self, database: &str, command: RawDocumentBuf) -> Result<&RawDocument, Cause> {
        let command = Wiped::new(command);
        self.run(database, command.document()).await.map_err(|cause| match cause {
            Cause::Refused(error) => Cause::Refused(Box::new(without_text(*error))),
            other => other,
        })
    }
}

/// Returns the error without its text, and wipes the text. The code, its name, the labels and `topologyVersion` remain,
/// as in events for sensitive commands.
pub(in crate::endpoint) fn without_text(mut error: ServerError) -> ServerError {
    const KEPT: [&str; 5] = ["ok", "code", "codeName", "errorLabels", "topologyVersion"];
    let mut reply = RawDocumentBuf::new();
    for (name, value) in error.reply.iter().flatten() {
        if KEPT.contains(&name.as_str()) {
            reply.append(name, value);
        }
    }
    std::mem::replace(&mut error.reply, reply).into_bytes().zeroize();
    if let Some(concern) = error.write_concern_error.take() {
        concern.message.into_bytes().zeroize();
        concern.reply.into_bytes().zeroize();
    }
    if error.message != REFUSED {
        error.message.zeroize();
        error.message.push_str("(its message is not shown, because it may repeat a secret)");
    }
    error
}

/// The message with which a server refuses a login. It does not repeat any input.
const REFUSED: &str = "Authentication failed.";

/// Wipes the channel's buffers when dropped, even in the middle of an exchange.
pub(in crate::endpoint) struct Wiping<'a>(pub &'a mut Channel);

impl Drop for Wiping<'_> {
    fn drop(&mut self) {
        self.0.wipe();
    }
}

/// A command that is wiped when it is dropped.
pub(in crate::endpoint) struct Wiped(RawDocumentBuf);

impl Wiped {
    pub fn new(command: RawDocumentBuf) -> Self {
        Self(command)
    }

    pub fn document(&self) -> &RawDocument {
        &self.0
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        std::mem::take(&mut self.0).into_bytes().zeroize();
    }
}
