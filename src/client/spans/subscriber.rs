//! Spans in a `tracing` subscriber.

use tracing::field::Empty;
use tracing::{Level, Span, debug_span, span_enabled};

use super::{Attribute, Kind, Value};

/// The target of the spans. It differs from the targets of messages, so a filter can tell them apart.
const TARGET: &str = "wharf::operation";

/// Returns whether a subscriber reads the spans. A logger from the `log` crate does not count.
pub(super) fn is_enabled() -> bool {
    span_enabled!(target: TARGET, Level::DEBUG)
}

/// Begins a span, if a subscriber reads it. Without `parent`, the current span is the parent.
///
/// In `tracing`, each kind of span has a fixed name. Bridges to OpenTelemetry take the full name from the `otel.name`
/// field, and also read the other fields with the `otel.` prefix.
pub(super) fn begin(kind: Kind, name: &str, attributes: &[Attribute<'_>], parent: Option<&Span>) -> Option<Span> {
    if !is_enabled() {
        return None;
    }
    macro_rules! begin {
        ($kind:literal, $($field:literal),* $(,)?) => {
            match parent {
                Some(parent) => debug_span!(
                    target: TARGET, parent: parent, $kind,
                    "otel.name" = name, "otel.kind" = "client", "otel.status_code" = Empty, $($field = Empty),*
                ),
                None => debug_span!(
                    target: TARGET, $kind,
                    "otel.name" = name, "otel.kind" = "client", "otel.status_code" = Empty, $($field = Empty),*
                ),
            }
        };
    }
    let span = match kind {
        Kind::Operation => begin!(
            "operation",
            "db.system.name",
            "db.namespace",
            "db.collection.name",
            "db.operation.name",
            "db.operation.summary",
            "exception.message",
            "exception.type",
            "exception.stacktrace",
        ),
        Kind::Command => begin!(
            "command",
            "db.system.name",
            "db.namespace",
            "db.collection.name",
            "db.command.name",
            "db.response.status_code",
            "server.address",
            "server.port",
            "network.transport",
            "db.query.summary",
            "db.query.text",
            "db.mongodb.server_connection_id",
            "db.mongodb.driver_connection_id",
            "db.mongodb.cursor_id",
            "db.mongodb.lsid",
            "db.mongodb.txn_number",
            "exception.message",
            "exception.type",
            "exception.stacktrace",
        ),
        Kind::Transaction => begin!("transaction", "db.system.name"),
    };
    if span.is_disabled() {
        return None;
    }
    for (name, value) in attributes {
        set(&span, name, value);
    }
    Some(span)
}

pub(super) fn set(span: &Span, name: &'static str, value: &Value<'_>) {
    match value {
        Value::Text(text) => span.record(name, &**text),
        Value::Number(number) => span.record(name, number),
    };
}

/// Sets the status to an error.
pub(super) fn fail(span: &Span) {
    span.record("otel.status_code", "ERROR");
}
