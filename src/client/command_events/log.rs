//! Log messages of commands, through [`tracing`].

use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::time::Duration;

use bson::{Bson, RawArray, RawBsonRef, RawDocument};
use tracing::{Level, debug};

use super::{CommandEvent, CommandFailure, CommandSource};
use crate::printable::PrintableError;

/// The target of the messages: the component `command` of the logging specification.
const TARGET: &str = "wharf::command";

/// The longest document in a message, in characters, if nothing else is set.
const MOST_LOGGED: usize = 1_000;

/// Returns whether anything reads the messages.
pub(super) fn is_enabled() -> bool {
    tracing::enabled!(target: TARGET, Level::DEBUG)
}

/// Logs the events of commands at level `DEBUG`, with the messages and keys of the specification.
pub(super) struct Log {
    most_logged: usize,
}

impl Log {
    /// Creates a log whose documents are cut after `most_logged` characters, or after those of the environment variable
    /// `MONGODB_LOG_MAX_DOCUMENT_LENGTH`, or after 1,000.
    pub(super) fn new(most_logged: Option<usize>) -> Self {
        static OF_ENVIRONMENT: OnceLock<Option<usize>> = OnceLock::new();
        let of_environment = *OF_ENVIRONMENT
            .get_or_init(|| std::env::var("MONGODB_LOG_MAX_DOCUMENT_LENGTH").ok().and_then(|most| most.parse().ok()));
        Self { most_logged: most_logged.or(of_environment).unwrap_or(MOST_LOGGED) }
    }

    #[allow(non_snake_case)] // The specification's keys.
    pub(super) fn on_event(&self, event: &CommandEvent) {
        if !is_enabled() {
            return;
        }
        let CommandSource {
            command_name: commandName,
            database_name: databaseName,
            request_id: requestId,
            operation_id: operationId,
            address,
            connection_id: driverConnectionId,
            server_connection_id: serverConnectionId,
            service_id,
            ..
        } = event.source();
        let (serverHost, serverPort) = crate::telemetry::host_and_port(address);
        let serviceId = service_id.map(|service_id| service_id.to_hex());
        macro_rules! message {
            ($message:literal, $($key:ident),*) => {
                debug!(
                    target: TARGET,
                    commandName,
                    databaseName,
                    requestId,
                    operationId,
                    driverConnectionId,
                    serverHost,
                    serverPort,
                    serverConnectionId,
                    serviceId,
                    $($key,)*
                    $message
                )
            };
        }
        match event {
            CommandEvent::Started(event) => {
                let command = self.json(&event.command);
                message!("Command started", command);
            }
            CommandEvent::Succeeded(event) => {
                let (durationMS, reply) = (milliseconds(event.duration), self.json(&event.reply));
                message!("Command succeeded", durationMS, reply);
            }
            CommandEvent::Failed(event) => {
                let (durationMS, failure) = (milliseconds(event.duration), self.failure(&event.failure));
                message!("Command failed", durationMS, failure);
            }
        }
    }

    fn failure(&self, failure: &CommandFailure) -> String {
        match failure {
            CommandFailure::Redacted { .. } => failure.to_string(),
            _ => PrintableError(failure).to_string(),
        }
    }

    /// Returns a document as relaxed extended JSON, cut after `most_logged` characters.
    fn json(&self, document: &RawDocument) -> String {
        let mut cut = Cut { text: String::new(), left: self.most_logged };
        // The only error is that the text is long enough.
        if write_document(document, &mut cut).is_err() {
            cut.text.push_str("...");
        }
        cut.text
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}

/// A text that takes a number of characters, and refuses more.
struct Cut {
    text: String,
    left: usize,
}

impl Write for Cut {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for character in more.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}

fn write_document(document: &RawDocument, cut: &mut Cut) -> fmt::Result {
    cut.write_str("{")?;
    for (index, element) in document.iter().enumerate() {
        // Commands are well-formed. Of a malformed reply, the part before the error is shown.
        let Ok((name, value)) = element else { break };
        if index > 0 {
            cut.write_str(",")?;
        }
        write!(cut, "{}:", serde_json::Value::from(name.as_str()))?;
        write_value(value, cut)?;
    }
    cut.write_str("}")
}

fn write_array(array: &RawArray, cut: &mut Cut) -> fmt::Result {
    cut.write_str("[")?;
    for (index, value) in array.into_iter().enumerate() {
        let Ok(value) = value else { break };
        if index > 0 {
            cut.write_str(",")?;
        }
        write_value(value, cut)?;
    }
    cut.write_str("]")
}

fn write_value(value: RawBsonRef<'_>, cut: &mut Cut) -> fmt::Result {
    match value {
        RawBsonRef::Document(document) => write_document(document, cut),
        RawBsonRef::Array(array) => write_array(array, cut),
        // Much longer than what is shown, so only its beginning is converted.
        RawBsonRef::String(text) if text.len() > cut.left.saturating_mul(4) => {
            let shown: String = text.chars().take(cut.left + 1).collect();
            write!(cut, "{}", serde_json::Value::from(shown))
        }
        other => match Bson::try_from(other) {
            Ok(value) => write!(cut, "{}", value.into_relaxed_extjson()),
            Err(_) => cut.write_str("null"),
        },
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn json(document: &RawDocument, most: usize) -> String {
        Log::new(Some(most)).json(document)
    }

    #[test]
    fn documents_are_relaxed_extended_json() {
        let document = rawdoc! { "find": "o\"1", "limit": 5_i64, "of": [1, 2.5, { "x": bson::oid::ObjectId::from_bytes([1; 12]) }] };
        let text = json(&document, 1_000);
        assert_eq!(text, r#"{"find":"o\"1","limit":5,"of":[1,2.5,{"x":{"$oid":"010101010101010101010101"}}]}"#);
        assert_eq!(json(&document, text.chars().count()), text);
    }

    #[test]
    fn long_documents_are_cut_between_characters() {
        let document = rawdoc! { "x": "ä".repeat(10_000) };
        assert_eq!(json(&document, 8), "{\"x\":\"ää...");
        assert_eq!(json(&document, 0), "...");
        assert_eq!(json(&document, 1_000).chars().count(), 1_003);
    }
}
