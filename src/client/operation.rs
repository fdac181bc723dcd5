//! Operations, and what the client knows about them.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bson::RawDocument;

use super::command_events::Observation;
use super::in_session::Explicit;
use super::session_handle::Session;
use crate::client::deployment::WaitLogged;
use crate::endpoint::options::ReadPreference;
use crate::endpoint::{Command, OutgoingSequence};

/// A command for a server that the client selects.
///
/// | made by | server | retried after a network error or a change of the primary | added by the client |
/// | --- | --- | --- | --- |
/// | [`Operation::new`] | the primary, or the read preference of the operation | no | |
/// | [`Operation::read`] | by the read preference of the operation, or else of the options | once, or with `timeoutMS` until the time is up, unless `retryReads=false` | `readConcern` of the options, to `aggregate`, `count`, `distinct` and `find`; `writeConcern`, to an `aggregate` with `$out` or `$merge` |
/// | [`Operation::write`] | a server that accepts writes | if each statement affects at most one document: like a read, unless `retryWrites=false` | `writeConcern` of the options |
///
/// Outside a transaction, any operation is retried if it was not sent because its connection had been lost while idle.
/// Unless retries are off, any operation is also retried if the server refuses it because of an overload (the labels
/// `SystemOverloadedError` and `RetryableError`).
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run"]
pub struct Operation<'a> {
    pub(super) command: Command<'a>,
    pub(super) kind: Kind,
    pub(super) read_preference: Option<&'a ReadPreference>,
    pub(super) session: Option<Arc<Explicit>>,
    /// A session runs one operation at a time.
    pub(super) exclusive: PhantomData<&'a mut Session>,
    /// The larger operation that this operation is part of.
    pub(super) part_of: Option<&'a Whole>,
    /// Whether the operation uses the session, but is not part of its transaction. A change stream resumes this way.
    pub(super) is_beside_transaction: bool,
    /// Whether the operation's span has the command's name rather than `runCommand`.
    pub(super) is_named_by_command: bool,
}

/// An operation that consists of several commands.
#[derive(Debug)]
pub(super) struct Whole {
    /// The observation that all its commands share: they have the same number in events, and the same span.
    pub(super) observation: Observation,
    pub(super) wait_logged: WaitLogged,
}

/// What the client knows about an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any command. The client adds nothing to it, and does not repeat it once it has been sent (Run Command).
    Command,
    /// A read, which may be executed twice.
    Read,
    /// A write.
    Write {
        /// Whether each statement affects at most one document, in which case the server can recognise a repetition. If
        /// `None`, the client determines this from the command.
        is_single: Option<bool>,
    },
}

impl<'a> Operation<'a> {
    /// Creates an operation from any command. The client does not inspect the document, or check the reply for a
    /// `writeConcernError` (Run Command). It refuses a command with a read or write concern only in a transaction or a
    /// snapshot session.
    pub fn new(database: &'a str, body: &'a RawDocument) -> Self {
        Self::of(Kind::Command, database, body)
    }

    /// Creates an operation that only reads, and may be executed twice.
    ///
    /// The client checks the command only for `$out` and `$merge`, not for whether it is a retryable read (Retryable
    /// Reads). In particular, it retries a `mapReduce`, which is not a retryable read: the server does not notice that
    /// the connection was lost, and continues the first execution alongside the second. Use [`new`](Self::new) for a
    /// `mapReduce`, and also for a `getMore`, unless a cursor sends it for you.
    pub fn read(database: &'a str, body: &'a RawDocument) -> Self {
        Self::of(Kind::Read, database, body)
    }

    /// Creates an operation that writes. The operation fails if the server refuses a statement, or cannot meet the
    /// write concern: see [`ClientError::server_error`](super::ClientError::server_error) and
    /// [`ClientError::write_concern_error`](super::ClientError::write_concern_error).
    pub fn write(database: &'a str, body: &'a RawDocument) -> Self {
        Self::of(Kind::Write { is_single: None }, database, body)
    }

    pub(super) fn of_write(database: &'a str, body: &'a RawDocument, is_single: bool) -> Self {
        Self::of(Kind::Write { is_single: Some(is_single) }, database, body)
    }

    fn of(kind: Kind, database: &'a str, body: &'a RawDocument) -> Self {
        let is_named_by_command = kind != Kind::Command;
        Self { kind, is_named_by_command, ..Self::from(Command::new(database, body)) }
    }

    /// Returns the session whose time limit applies to the operation.
    pub(super) fn limiting_session(&self) -> Option<&Explicit> {
        self.session.as_deref().filter(|_| !self.is_beside_transaction)
    }

    /// Sets the session that the operation belongs to. By default it has its own session.
    pub fn session(mut self, session: &'a mut Session) -> Self {
        self.session = Some(session.explicit().clone());
        self
    }

    /// Sets the servers that the operation may be sent to. The default is the options' read preference for
    /// [`read`](Self::read), and the primary for other operations.
    pub fn read_preference(mut self, preference: &'a ReadPreference) -> Self {
        self.read_preference = Some(preference);
        self
    }

    /// Sets the arguments that are sent as document sequences: see [`Command::sequences`].
    pub fn sequences(mut self, sequences: &'a [OutgoingSequence<'a>]) -> Self {
        self.command = self.command.sequences(sequences);
        self
    }

    /// Sets `timeoutMS`: how long the operation may take in total, from the selection of a server to the end of the
    /// last attempt. The default is [`Options::timeout`](crate::Options::timeout). Zero means no limit.
    ///
    /// The client sends the remaining time as `maxTimeMS`, in place of any `maxTimeMS` in the command's document. The
    /// client does not inspect the document passed to [`Operation::new`]. If that document contains `maxTimeMS`, the
    /// server refuses the command, because the field then occurs twice.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.command = self.command.timeout(limit);
        self
    }
}

impl<'a> From<Command<'a>> for Operation<'a> {
    fn from(command: Command<'a>) -> Self {
        Self {
            command,
            kind: Kind::Command,
            read_preference: None,
            session: None,
            exclusive: PhantomData,
            part_of: None,
            is_beside_transaction: false,
            is_named_by_command: false,
        }
    }
}
