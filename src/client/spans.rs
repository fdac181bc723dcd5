//! Spans of operations, commands and transactions (OpenTelemetry specification).
//!
//! The client creates and ends each [`Span`] without knowing its destinations. There are two destinations: a
//! [`tracing`](mod@tracing) subscriber and, with the `opentelemetry` feature, an OpenTelemetry tracer. A bridge from
//! the subscriber to OpenTelemetry cannot replace the tracer, for two reasons. The specification's options that switch
//! the spans on have no effect on a subscriber's filter, and an application that does not use `tracing` has no bridge.
//!
//! [`CommandEvents::operation`](super::command_events::CommandEvents::operation) checks for both destinations, using a
//! flag and a static level. Without a destination, nothing in this module runs.

mod attributes;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod options;
mod subscriber;

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::RawDocument;

use self::options::Settings;
pub use self::options::TracingOptions;
use crate::endpoint::{Command, Endpoint};
use crate::pool::runtime::Connection;
use crate::text::printable::PrintableError;
use crate::text::shortened::MostLogged;

/// The name of an operation whose command comes from the application.
pub(super) const RUN_COMMAND: &str = "runCommand";

/// An attribute: its name in the specification, and its value.
type Attribute<'a> = (&'static str, Value<'a>);

enum Value<'a> {
    Text(Cow<'a, str>),
    Number(i64),
}

impl<'a, T: Into<Cow<'a, str>>> From<T> for Value<'a> {
    fn from(text: T) -> Self {
        Self::Text(text.into())
    }
}

/// What a span describes.
#[derive(Clone, Copy)]
enum Kind {
    Operation,
    Command,
    Transaction,
}

/// An error that a span can record as an exception.
pub(super) trait Exception {
    /// Returns the message and the type.
    fn exception(&self) -> (&dyn fmt::Display, &'static str);
}

/// A client's settings for spans.
pub(super) struct Spans {
    /// The maximum number of characters in `db.query.text`. `None` omits the attribute.
    query_text: Option<MostLogged>,
    #[cfg(feature = "opentelemetry")]
    tracer: Option<opentelemetry::Tracer>,
}

/// A description of an operation before it begins.
pub(super) struct Described<'a> {
    /// The operation's name in the specification.
    pub(super) name: &'a str,
    pub(super) database: &'a str,
    pub(super) collection: Option<&'a str>,
    /// The span of the transaction that the operation belongs to.
    pub(super) transaction: Option<Arc<Span>>,
    /// The call site of the operation.
    pub(super) site: Option<&'static Location<'static>>,
}

impl<'a> Described<'a> {
    /// Describes an operation with this name, without a collection.
    pub(super) fn named(name: &'a str, database: &'a str) -> Self {
        Self { name, database, collection: None, transaction: None, site: None }
    }

    /// Describes the operation that sends this command.
    pub(super) fn of(database: &'a str, command: &'a RawDocument) -> Self {
        let name = attributes::operation_of(command);
        Self { collection: attributes::collection_of(database, command), ..Self::named(name, database) }
    }
}

impl Spans {
    pub(super) fn new(options: TracingOptions) -> Self {
        let Settings { most, .. } = options.settings();
        Self {
            query_text: (most > 0).then(|| MostLogged::new(Some(most))),
            #[cfg(feature = "opentelemetry")]
            tracer: opentelemetry::Tracer::of(options),
        }
    }

    /// Returns whether spans go to an OpenTelemetry tracer, regardless of subscribers.
    pub(super) fn has_tracer(&self) -> bool {
        #[cfg(feature = "opentelemetry")]
        return self.tracer.is_some();
        #[cfg(not(feature = "opentelemetry"))]
        false
    }

    /// Returns whether the spans of commands contain the command's text (`db.query.text`).
    pub(super) fn show_commands(&self) -> bool {
        self.query_text.is_some()
    }

    /// Begins the span of an operation, if there is a destination for it.
    pub(super) fn operation(&self, described: &Described<'_>) -> Option<OperationSpan> {
        if !self.are_read() {
            return None;
        }
        let (name, attributes) = attributes::of_operation(described);
        let parent = described.transaction.as_deref();
        let span = self.begin(Kind::Operation, name, attributes, parent).filter(Span::is_recording)?;
        Some(OperationSpan { span, site: described.site, has_told: AtomicBool::new(false) })
    }

    /// Begins the span of a transaction, if there is a destination for it.
    pub(super) fn transaction(&self) -> Option<Arc<Span>> {
        if !self.are_read() {
            return None;
        }
        self.begin(Kind::Transaction, "transaction".into(), attributes::of_any(), None).map(Arc::new)
    }

    fn are_read(&self) -> bool {
        self.has_tracer() || subscriber::is_enabled()
    }

    /// Begins a span. Its parent is `parent`, or the application's current span if `parent` is `None`.
    fn begin(
        &self,
        kind: Kind,
        name: Cow<'_, str>,
        attributes: Vec<Attribute<'_>>,
        parent: Option<&Span>,
    ) -> Option<Span> {
        let read = subscriber::begin(kind, &name, &attributes, parent.and_then(|parent| parent.read.as_ref()));
        #[cfg(feature = "opentelemetry")]
        {
            let traced = self
                .tracer
                .as_ref()
                .map(|tracer| tracer.begin(name, attributes, parent.and_then(|parent| parent.traced.as_ref())));
            (read.is_some() || traced.is_some()).then_some(Span { read, traced })
        }
        #[cfg(not(feature = "opentelemetry"))]
        read.map(|read| Span { read: Some(read) })
    }
}

/// A span, which ends when this value is dropped.
pub(super) struct Span {
    /// The span in a `tracing` subscriber.
    read: Option<tracing::Span>,
    /// The span in an OpenTelemetry tracer.
    #[cfg(feature = "opentelemetry")]
    traced: Option<opentelemetry::Traced>,
}

impl Span {
    /// Returns whether anything records the span. A tracer does not record the spans that its sampler rejects.
    fn is_recording(&self) -> bool {
        #[cfg(feature = "opentelemetry")]
        if self.traced.as_ref().is_some_and(opentelemetry::Traced::is_recording) {
            return true;
        }
        self.read.is_some()
    }

    fn set(&self, name: &'static str, value: Value<'_>) {
        if let Some(read) = &self.read {
            subscriber::set(read, name, &value);
        }
        #[cfg(feature = "opentelemetry")]
        if let Some(traced) = &self.traced {
            traced.set(name, value);
        }
    }

    /// Sets the status to an error.
    fn fail(&self) {
        if let Some(read) = &self.read {
            subscriber::fail(read);
        }
        #[cfg(feature = "opentelemetry")]
        if let Some(traced) = &self.traced {
            traced.fail();
        }
    }

    /// Records an exception: its message and type, and the call site of the operation in place of a stack trace, which
    /// a Rust error does not have.
    fn except(&self, message: &str, of_type: &'static str, site: Option<&'static Location<'static>>) {
        self.set("exception.message", message.into());
        self.set("exception.type", of_type.into());
        if let Some(site) = site {
            self.set("exception.stacktrace", format!("{of_type}: {message}\n    at {site}").into());
        }
    }

    /// Makes the span the current span while `run` runs.
    fn current<T>(&self, run: impl FnOnce() -> T) -> T {
        let _read = self.read.as_ref().map(tracing::Span::enter);
        #[cfg(feature = "opentelemetry")]
        let _traced = self.traced.as_ref().map(opentelemetry::Traced::attach);
        run()
    }
}

/// The span of an operation.
pub(super) struct OperationSpan {
    span: Span,
    site: Option<&'static Location<'static>>,
    /// Whether the last command failed. In this case, the operation's span omits the exception: the command's span
    /// records it or, if the command is sensitive, no span does.
    has_told: AtomicBool,
}

impl OperationSpan {
    /// Makes the span the current span while `run` runs.
    pub(super) fn current<T>(&self, run: impl FnOnce() -> T) -> T {
        self.span.current(run)
    }

    /// Records that the operation failed. If the last command failed, the error belongs to that command's span
    /// ("Exceptions").
    pub(super) fn failed(&self, error: &impl Exception) {
        self.span.fail();
        // Relaxed: the commands of an operation follow one another, and come before its end.
        if !self.has_told.load(Ordering::Relaxed) {
            let (message, of_type) = error.exception();
            self.span.except(&PrintableError(message).to_string(), of_type, self.site);
        }
    }

    /// Begins the span of a command. `added` holds the elements that the client adds, and `shown` is the whole command.
    pub(super) fn command<'s>(
        &'s self,
        spans: &Spans,
        connection: &Connection<Endpoint>,
        command: &Command<'_>,
        added: &RawDocument,
        shown: Option<&RawDocument>,
    ) -> CommandSpan<'s> {
        let text = spans.query_text.zip(shown).map(|(most, shown)| attributes::query_text(shown, most));
        let name = command.name();
        let attributes = attributes::of_command(connection, command, added, text);
        CommandSpan { operation: self, span: spans.begin(Kind::Command, name.into(), attributes, Some(&self.span)) }
    }

    /// Returns a `CommandSpan` without a span, for a sensitive command. No span records the exception of such a
    /// command, not even the operation's span.
    pub(super) fn sensitive_command(&self) -> CommandSpan<'_> {
        CommandSpan { operation: self, span: None }
    }
}

/// The span of a command, if it has one.
pub(super) struct CommandSpan<'s> {
    operation: &'s OperationSpan,
    span: Option<Span>,
}

impl CommandSpan<'_> {
    /// Records the reply's cursor.
    pub(super) fn replied(&self, reply: &RawDocument) {
        self.tell(false);
        if let Some(span) = &self.span
            && let Some(id) = attributes::cursor_of(reply)
        {
            span.set("db.mongodb.cursor_id", Value::Number(id));
        }
    }

    /// Records that the command failed, with the server's code if there is one.
    pub(super) fn failed(&self, failure: impl fmt::Display, of_type: &'static str, code: Option<i32>) {
        self.tell(true);
        let Some(span) = &self.span else { return };
        span.fail();
        if let Some(code) = code {
            span.set("db.response.status_code", code.to_string().into());
        }
        span.except(&PrintableError(failure).to_string(), of_type, self.operation.site);
    }

    fn tell(&self, has_told: bool) {
        // Relaxed: the commands of an operation follow one another, and come before its end.
        self.operation.has_told.store(has_told, Ordering::Relaxed);
    }
}
