//! Events and log messages for commands (Command Logging and Monitoring specification).
//!
//! [`CommandEvents::run`] is the only place where a client runs a command on a connection. If nothing observes the
//! commands, it only runs them. The [spans](super::spans) of commands begin and end with the events.

mod log;

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bson::raw::CString;
use bson::{RawArrayBuf, RawDocument, RawDocumentBuf};
use tracing::Level;
use tracing::level_filters::LevelFilter;

use super::spans::{CommandSpan, Described, Exception, OperationSpan, Spans};
use crate::client::deployment::{LoggedOperation, logs_selections};
use crate::endpoint::{Command, Endpoint, OperationError, OutgoingDocuments};
use crate::pool::error::Labels;
use crate::pool::runtime::Connection;
use crate::pool::runtime::boxed;
use crate::pool::service_id::ServiceId;
use crate::pool::sync::contain;
use crate::text::logged::may_reach_logger;
use crate::text::shortened::MostLogged;

/// An event in the life of a client's command.
///
/// Each [`Started`](Self::Started) is followed by one [`Succeeded`](Self::Succeeded) or [`Failed`](Self::Failed) with
/// the same [`request_id`](CommandSource::request_id). There are no events for a command that could not be sent, for
/// the commands that monitor servers and establish connections, or for the `killCursors` with which a drain closes the
/// cursor of a cancelled query.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CommandEvent {
    /// A command is about to be sent (`CommandStartedEvent`).
    Started(CommandStarted),
    /// The server executed a command (`CommandSucceededEvent`). Its reply may report errors for individual writes.
    Succeeded(CommandSucceeded),
    /// A command failed (`CommandFailedEvent`).
    Failed(CommandFailed),
}

impl CommandEvent {
    /// Returns the value that identifies the command and its connection.
    #[must_use]
    pub fn source(&self) -> &CommandSource {
        match self {
            Self::Started(event) => &event.source,
            Self::Succeeded(event) => &event.source,
            Self::Failed(event) => &event.source,
        }
    }
}

/// A command is about to be sent.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CommandStarted {
    /// Identifies the command and its connection.
    pub source: Arc<CommandSource>,
    /// The command as it is sent, with all fields that the client adds. Document sequences appear as arrays. Empty if
    /// the command is sensitive (see [`CommandSource::is_sensitive`]), or if nothing
    /// [reads it](CommandSubscriber::reads_documents).
    pub command: RawDocumentBuf,
}

/// The server executed a command.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CommandSucceeded {
    /// Identifies the command and its connection.
    pub source: Arc<CommandSource>,
    /// The time from sending the command to the arrival of its reply.
    pub duration: Duration,
    /// The reply, or `{ ok: 1 }` if the command does not request a reply. Empty if the command is sensitive, or if
    /// nothing [reads it](CommandSubscriber::reads_documents).
    pub reply: RawDocumentBuf,
}

/// A command failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CommandFailed {
    /// Identifies the command and its connection.
    pub source: Arc<CommandSource>,
    /// The time from sending the command to its failure.
    pub duration: Duration,
    /// Why the command failed.
    pub failure: CommandFailure,
}

/// Why a command failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CommandFailure {
    /// The error that the caller receives.
    Error(OperationError),
    /// The server's error for a sensitive command. Only these fields are shown.
    #[non_exhaustive]
    Redacted {
        /// The server's error code.
        code: i32,
        /// The server's error name; empty if there is none.
        code_name: String,
        /// The error labels.
        labels: Labels,
    },
    /// The caller dropped the operation before the reply arrived. Whether the server executes the command is unknown.
    Cancelled,
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => error.fmt(f),
            Self::Redacted { code, .. } => write!(f, "the server refused the command with code {code}"),
            Self::Cancelled => f.write_str("the operation was cancelled"),
        }
    }
}

/// Identifies a command and its connection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandSource {
    /// The command's name.
    pub command_name: String,
    /// The database that the command runs on.
    pub database_name: String,
    /// The number of the command, unique in this process. The message's header has a different number, which is unique
    /// only within one connection.
    pub request_id: i64,
    /// The number of the operation, unique in this process: the same for all attempts of an operation, and for all
    /// commands of one bulk write.
    pub operation_id: i64,
    /// The server's address.
    pub address: Arc<str>,
    /// The number of the connection in its pool.
    pub connection_id: u64,
    /// The server's number for the connection.
    pub server_connection_id: Option<i64>,
    /// The service that the load balancer chose, if there is a load balancer.
    pub service_id: Option<ServiceId>,
    /// Whether the command, the reply and the error may hold secrets. If so, they are not shown ("Security" in the
    /// specification).
    pub is_sensitive: bool,
}

/// Receives a client's command events. Every `Fn(&CommandEvent)` is a subscriber.
///
/// The task that runs the command calls the subscriber, and waits for it. A slow subscriber therefore slows operations
/// down. If its work may take a while, it should pass the event on to another task. A panic is caught. A subscriber may
/// use the client, but must not block on it.
pub trait CommandSubscriber: Send + Sync + 'static {
    /// Receives an event.
    fn on_event(&self, event: &CommandEvent);

    /// Returns whether the subscriber reads the commands and replies in the events. The client calls this method once,
    /// when it is built. If neither a subscriber nor a log reads the commands and replies, they are not copied, and may
    /// be empty in the events. The default is `true`.
    fn reads_documents(&self) -> bool {
        true
    }
}

impl<F: Fn(&CommandEvent) + Send + Sync + 'static> CommandSubscriber for F {
    fn on_event(&self, event: &CommandEvent) {
        self(event);
    }
}

/// The number of the last command or operation.
static LAST_ID: AtomicI64 = AtomicI64::new(0);

/// Returns a number that is unique among the commands and operations of this process.
fn next_id() -> i64 {
    // Relaxed: only the number itself matters.
    LAST_ID.fetch_add(1, Ordering::Relaxed) + 1
}

/// The observers of a client's commands.
pub(super) struct CommandEvents {
    subscribers: Vec<Arc<dyn CommandSubscriber>>,
    /// Whether a subscriber reads commands and replies.
    reads_documents: bool,
    log: log::Log,
    spans: Spans,
    /// Whether there are observers other than `tracing` and the `log` crate.
    has_own_observers: bool,
}

/// Links an operation to its observers. Empty if there are none.
#[derive(Clone, Default)]
pub(super) struct Observation(Option<Arc<Observed>>);

struct Observed {
    /// The operation's number in the events of its commands.
    number: i64,
    span: Option<OperationSpan>,
}

impl Observation {
    /// Returns whether the client was observed when the operation began.
    #[inline]
    pub(super) fn is_observed(&self) -> bool {
        self.0.is_some()
    }

    /// Describes the operation by this command, for log messages about server selection.
    pub(super) fn logged<'c>(&self, command: &'c RawDocument) -> LoggedOperation<'c> {
        LoggedOperation::Command(command, self.number())
    }

    /// Describes the operation by the name of its command, for log messages about server selection.
    pub(super) fn named(&self, command: &'static str) -> LoggedOperation<'static> {
        LoggedOperation::Named(command, self.number())
    }

    fn number(&self) -> Option<i64> {
        self.0.as_ref().map(|observed| observed.number)
    }

    fn span(&self) -> Option<&OperationSpan> {
        self.0.as_ref()?.span.as_ref()
    }

    /// Runs the operation inside its span, and records its failure there.
    ///
    /// # Cancel safety
    ///
    /// The same as for `operation`.
    pub(super) async fn within<T, E: Exception>(
        &self,
        mut operation: Pin<&mut impl Future<Output = Result<T, E>>>,
    ) -> Result<T, E> {
        let Some(span) = self.span() else { return operation.await };
        let outcome = poll_fn(|context| span.current(|| operation.as_mut().poll(context))).await;
        if let Err(error) = &outcome {
            span.failed(error);
        }
        outcome
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observation").field(&self.number()).finish()
    }
}

impl CommandEvents {
    pub(super) fn new(subscribers: Vec<Arc<dyn CommandSubscriber>>, most_logged: MostLogged, spans: Spans) -> Self {
        let has_own_observers = !subscribers.is_empty() || spans.has_tracer();
        let reads_documents = subscribers.iter().any(|subscriber| subscriber.reads_documents());
        Self { subscribers, reads_documents, log: log::Log::new(most_logged), spans, has_own_observers }
    }

    /// Returns whether events are needed.
    fn has_events(&self) -> bool {
        !self.subscribers.is_empty() || log::is_enabled()
    }

    /// Returns whether the events need commands and replies.
    fn shows_documents(&self) -> bool {
        self.reads_documents || log::is_enabled()
    }

    /// Returns the settings for spans.
    pub(super) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Returns whether anything may read events, messages or spans. All are at level `DEBUG`.
    #[inline]
    pub(super) fn may_be_observed(&self) -> bool {
        self.has_own_observers || LevelFilter::current() >= Level::DEBUG || may_reach_logger(Level::DEBUG)
    }

    /// Begins observing a new operation. Calls `describe` and begins a span only if the operation may be observed.
    #[inline]
    pub(super) fn operation<'a>(&self, describe: impl FnOnce() -> Described<'a>) -> Observation {
        if !self.may_be_observed() {
            return Observation(None);
        }
        self.observe(describe)
    }

    #[cold]
    #[inline(never)]
    fn observe<'a>(&self, describe: impl FnOnce() -> Described<'a>) -> Observation {
        let span = self.spans.operation(&describe());
        let is_observed = span.is_some() || self.has_events() || logs_selections();
        Observation(is_observed.then(|| Arc::new(Observed { number: next_id(), span })))
    }

    /// Runs a command on a connection, and notifies the observers.
    ///
    /// # Errors
    ///
    /// The same as for [`Connection::run`].
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Connection::run`]. The observers are notified of the cancellation.
    pub(super) async fn run(
        &self,
        connection: &mut Connection<Endpoint>,
        command: Command<'_>,
        operation: &Observation,
    ) -> Result<RawDocumentBuf, OperationError> {
        if !self.observes(operation) {
            return connection.run(command).await;
        }
        boxed(|| self.run_observed(connection, command, operation)).await
    }

    /// Returns whether an operation's commands have events or spans. There are no events or spans if only the
    /// operation's server selections are observed.
    fn observes(&self, operation: &Observation) -> bool {
        operation.span().is_some() || (operation.is_observed() && self.has_events())
    }

    /// Sends a command that gets no reply, and notifies the observers.
    ///
    /// # Errors
    ///
    /// The same as for [`Connection::send`].
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Connection::send`].
    pub(super) async fn send(
        &self,
        connection: &mut Connection<Endpoint>,
        command: Command<'_>,
        operation: &Observation,
    ) -> Result<RawDocumentBuf, OperationError> {
        let reply = bson::rawdoc! { "ok": 1 };
        if !self.observes(operation) {
            return connection.send(command).await.map(|()| reply);
        }
        let prepared = connection.prepare(&command)?;
        let observed = self.start(connection, &prepared.command(command), operation);
        let outcome = connection.send(prepared.command(command)).await.map(|()| reply);
        observed.end(&outcome);
        outcome
    }

    async fn run_observed(
        &self,
        connection: &mut Connection<Endpoint>,
        command: Command<'_>,
        operation: &Observation,
    ) -> Result<RawDocumentBuf, OperationError> {
        let prepared = connection.prepare(&command)?;
        let outcome = self.attempt(connection, prepared.command(command), operation).await;
        let command = prepared.started(command);
        if !boxed(|| connection.authenticate_after(&outcome, &command)).await? {
            return outcome;
        }
        let prepared = connection.prepare(&command)?;
        self.attempt(connection, prepared.command(command), operation).await
    }

    async fn attempt(
        &self,
        connection: &mut Connection<Endpoint>,
        command: Command<'_>,
        operation: &Observation,
    ) -> Result<RawDocumentBuf, OperationError> {
        let observed = self.start(connection, &command, operation);
        let outcome = connection.run_once(command).await;
        observed.end(&outcome);
        outcome
    }

    /// Tells the observers that a command is about to be sent.
    fn start<'e>(
        &'e self,
        connection: &Connection<Endpoint>,
        command: &Command<'_>,
        operation: &'e Observation,
    ) -> ObservedCommand<'e> {
        let is_sensitive = is_sensitive(command.body());
        let has_events = self.has_events();
        let shown = (!is_sensitive && (self.shows_documents() || self.spans.show_commands()))
            .then(|| shown(command, &connection.declared_api()));
        let span = operation.span().map(|span| match is_sensitive {
            true => span.sensitive_command(),
            false => {
                let mut added = RawDocumentBuf::new();
                append(&mut added, command.added());
                span.command(&self.spans, connection, command, &added, shown.as_deref())
            }
        });
        let source = has_events.then(|| {
            let request_id = next_id();
            Arc::new(CommandSource {
                is_sensitive,
                command_name: command.name().to_owned(),
                database_name: command.database().to_owned(),
                request_id,
                operation_id: operation.number().unwrap_or(request_id),
                address: connection.address().into(),
                connection_id: connection.id(),
                server_connection_id: connection.hello().server_connection_id,
                service_id: connection.service_id(),
            })
        });
        if let Some(source) = &source {
            let (source, command) = (source.clone(), shown.unwrap_or_default());
            self.publish(&CommandEvent::Started(CommandStarted { source, command }));
        }
        ObservedCommand { events: self, source, span, is_sensitive, began: Instant::now(), has_ended: false }
    }

    fn publish(&self, event: &CommandEvent) {
        for subscriber in &self.subscribers {
            contain(|| subscriber.on_event(event));
        }
        self.log.on_event(event);
    }
}

/// A command whose start was reported to the observers. Dropping this value reports the command as cancelled.
#[must_use = "the observers wait for the end of the command"]
struct ObservedCommand<'e> {
    events: &'e CommandEvents,
    /// `None` if nothing needs events.
    source: Option<Arc<CommandSource>>,
    span: Option<CommandSpan<'e>>,
    is_sensitive: bool,
    began: Instant,
    has_ended: bool,
}

impl ObservedCommand<'_> {
    /// Tells the observers the command's outcome.
    fn end(mut self, outcome: &Result<RawDocumentBuf, OperationError>) {
        self.has_ended = true;
        match outcome {
            Ok(reply) => {
                if let Some(span) = &self.span {
                    span.replied(reply);
                }
                let Some(source) = self.source.clone() else { return };
                let is_shown = !self.is_sensitive && self.events.shows_documents();
                let reply = if is_shown { reply.clone() } else { RawDocumentBuf::new() };
                let duration = self.began.elapsed();
                self.events.publish(&CommandEvent::Succeeded(CommandSucceeded { source, duration, reply }));
            }
            Err(error) => self.fail(match error.command_error().and_then(|error| error.server_error()) {
                Some(error) if self.is_sensitive => CommandFailure::Redacted {
                    code: error.code,
                    code_name: error.code_name.clone(),
                    labels: error.labels,
                },
                _ => CommandFailure::Error(error.clone()),
            }),
        }
    }

    fn fail(&self, failure: CommandFailure) {
        if let Some(span) = &self.span {
            let code = match &failure {
                CommandFailure::Error(error) => error.server_error().map(|error| error.code),
                CommandFailure::Redacted { code, .. } => Some(*code),
                CommandFailure::Cancelled => None,
            };
            let of_type = match &failure {
                CommandFailure::Cancelled => "wharf::client::CommandFailure::Cancelled",
                _ if code.is_some() => "wharf::ServerError",
                _ => "wharf::CommandError",
            };
            span.failed(&failure, of_type, code);
        }
        let Some(source) = self.source.clone() else { return };
        let duration = self.began.elapsed();
        self.events.publish(&CommandEvent::Failed(CommandFailed { source, duration, failure }));
    }
}

impl Drop for ObservedCommand<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.fail(CommandFailure::Cancelled);
        }
    }
}

/// Commands that may hold secrets ("Security" in the specification).
const SENSITIVE: [&str; 9] = [
    "authenticate",
    "saslStart",
    "saslContinue",
    "getnonce",
    "createUser",
    "updateUser",
    "copydbgetnonce",
    "copydbsaslstart",
    "copydb",
];

/// Returns whether a command may hold secrets: it is sensitive, explains a sensitive command, or contains a field with
/// the name of a sensitive command. A hello is sensitive if it carries credentials.
///
/// The comparison ignores case. A server refuses a command whose name is in the wrong case, but the command still
/// contains the secret, and the server's error may also contain it.
fn is_sensitive(command: &RawDocument) -> bool {
    let mut command = Some(command);
    while let Some(body) = command.take() {
        for (name, value) in body.iter().flatten() {
            let is = |other: &str| name.as_str().eq_ignore_ascii_case(other);
            if is("speculativeAuthenticate") || SENSITIVE.into_iter().any(is) {
                return true;
            }
            if is("explain") {
                command = value.as_document();
            }
        }
    }
    false
}

/// Returns the command as one document, which includes the database, all added elements, and the document sequences as
/// arrays.
fn shown(command: &Command<'_>, api: &[u8]) -> RawDocumentBuf {
    let mut shown = command.body().to_owned();
    shown.append(bson::raw::cstr!("$db"), command.database());
    for elements in [api, command.added()] {
        append(&mut shown, elements);
    }
    for sequence in command.document_sequences() {
        let mut array = RawArrayBuf::new();
        match sequence.documents {
            OutgoingDocuments::Borrowed(documents) => {
                documents.iter().for_each(|&document| array.push(document.to_owned()))
            }
            OutgoingDocuments::Owned(documents) => documents.iter().for_each(|document| array.push(document.clone())),
        }
        // A name with a zero byte is refused when the command is encoded.
        if let Ok(name) = CString::try_from(sequence.identifier.to_owned()) {
            shown.append(name, array);
        }
    }
    shown
}

/// Appends encoded elements to a document.
fn append(document: &mut RawDocumentBuf, elements: &[u8]) {
    if elements.is_empty() {
        return;
    }
    let mut bytes = std::mem::take(document).into_bytes();
    bytes.pop();
    bytes.extend_from_slice(elements);
    bytes.push(0);
    if let Ok(length) = i32::try_from(bytes.len()) {
        bytes[..4].copy_from_slice(&length.to_le_bytes());
    }
    // This fails only for a document of more than 2 GiB, which is refused when the command is encoded.
    *document = RawDocumentBuf::from_bytes(bytes).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::endpoint::OutgoingSequence;

    fn of(name: &str, value: impl Into<bson::raw::RawBson>) -> RawDocumentBuf {
        let mut command = RawDocumentBuf::new();
        command.append(CString::try_from(name).unwrap(), value.into());
        command
    }

    #[test]
    fn sensitive_commands_are_those_of_the_specification_in_any_case() {
        for name in ["authenticate", "saslStart", "saslcontinue", "getnonce", "createUser", "UPDATEUSER", "copydb"] {
            assert!(is_sensitive(&of(name, "x")), "{name}");
        }
        for name in ["hello", "HELLO", "isMaster", "ismaster", "IsMaster"] {
            for field in ["speculativeAuthenticate", "SPECULATIVEAUTHENTICATE"] {
                let mut hello = of(name, 1);
                assert!(!is_sensitive(&hello), "{name}");
                hello.append(CString::try_from(field).unwrap(), rawdoc! {});
                assert!(is_sensitive(&hello), "{name} {field}");
            }
        }
        assert!(!is_sensitive(
            &rawdoc! { "find": "users", "filter": { "createUser": 1, "explain": { "createUser": 1 } } }
        ));
    }

    #[test]
    fn command_that_explains_a_sensitive_command_is_sensitive() {
        let create = of("createuser", "eve");
        for explain in ["explain", "EXPLAIN"] {
            assert!(is_sensitive(&of(explain, create.clone())));
            assert!(is_sensitive(&of(explain, of("explain", create.clone()))));
            assert!(!is_sensitive(&of(explain, of("find", "createUser"))));
        }
        let deep = (0..10_000).fold(create, |inner, _| of("explain", inner));
        assert!(is_sensitive(&deep));
    }

    #[test]
    fn shown_command_has_its_database_additions_and_sequences() {
        let body = rawdoc! { "insert": "orders" };
        let documents = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }];
        let borrowed: Vec<&RawDocument> = documents.iter().map(|document| &**document).collect();
        let added = rawdoc! { "lsid": 7 };
        let added = &added.as_bytes()[4..added.as_bytes().len() - 1];
        let api = rawdoc! { "apiVersion": "1" };
        let api = &api.as_bytes()[4..api.as_bytes().len() - 1];
        let sequences = [OutgoingSequence::new("documents", &documents), OutgoingSequence::new("others", &borrowed)];
        let command = Command::new("shop", &body).appended(added).sequences(&sequences);
        let of = rawdoc! {
            "insert": "orders", "$db": "shop", "apiVersion": "1", "lsid": 7,
            "documents": [{ "_id": 1 }, { "_id": 2 }], "others": [{ "_id": 1 }, { "_id": 2 }],
        };
        assert_eq!(shown(&command, api), of);
    }
}
