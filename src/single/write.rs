//! Writes of many documents.

use std::borrow::Cow;
use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use bson::RawDocument;

use super::Client;
use crate::client::{self, ClientError, Written};

/// Writes to one collection, which [`run`](Self::run) sends.
///
/// The statements are split into as few commands as the server's limits allow (`maxWriteBatchSize`,
/// `maxMessageSizeBytes`).
#[must_use = "the writes are sent by `run`"]
pub struct Write<'c> {
    client: Client,
    write: client::Write<'c>,
}

impl<'c> Write<'c> {
    pub(super) fn new(client: Client, write: client::Write<'c>) -> Self {
        Self { client, write }
    }

    /// Adds the insert of a document. A document without `_id` gets one: see [`Written::generated_ids`].
    pub fn insert(self, document: impl Into<Cow<'c, RawDocument>>) -> Self {
        Self { write: self.write.insert(document), ..self }
    }

    /// Adds a statement of the command `update`, such as `{ q: { _id: 1 }, u: { $set: { paid: true } } }`.
    pub fn update(self, statement: impl Into<Cow<'c, RawDocument>>) -> Self {
        Self { write: self.write.update(statement), ..self }
    }

    /// Adds a statement of the command `delete`, such as `{ q: { _id: 1 }, limit: 1 }`.
    pub fn delete(self, statement: impl Into<Cow<'c, RawDocument>>) -> Self {
        Self { write: self.write.delete(statement), ..self }
    }

    /// Goes on with the other statements after one has failed, in any order. By default the first failure is the last
    /// statement that is executed.
    pub fn unordered(self) -> Self {
        Self { write: self.write.unordered(), ..self }
    }

    /// Sets further fields of each command, such as `bypassDocumentValidation`, `let`, `comment` or `writeConcern`.
    pub fn options(self, fields: &'c RawDocument) -> Self {
        Self { write: self.write.options(fields), ..self }
    }

    /// Sets `timeoutMS`: how long all commands may take together. The default is
    /// [`Options::timeout`](crate::Options::timeout). Zero means no limit.
    pub fn timeout(self, limit: Duration) -> Self {
        Self { write: self.write.timeout(limit), ..self }
    }

    pub(super) fn in_session(self, session: &'c mut client::Session) -> Self {
        Self { write: self.write.session(session), ..self }
    }

    /// Sends the writes.
    ///
    /// # Errors
    ///
    /// [`ClientError::Write`] if some statements may have been executed, otherwise the error that ended the first command.
    pub fn run(self) -> Result<Written, ClientError> {
        self.client.drive(self.write.into_future())?
    }
}

impl fmt::Debug for Write<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write.fmt(f)
    }
}
