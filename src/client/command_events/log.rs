//! Log messages for commands, through [`tracing`].

use std::time::Duration;

use tracing::{Level, debug};

use super::{CommandEvent, CommandFailure, CommandSource};
use crate::text::logged::is_logged;
use crate::text::printable::PrintableError;
use crate::text::shortened::MostLogged;

/// The target of the messages: the component `command` of the logging specification.
const TARGET: &str = "wharf::command";

/// Returns whether anything reads the messages.
#[inline]
pub(super) fn is_enabled() -> bool {
    is_logged!(TARGET, Level::DEBUG)
}

/// Logs command events at level `DEBUG`, with the messages and keys from the specification.
pub(super) struct Log {
    most_logged: MostLogged,
}

impl Log {
    pub(super) fn new(most_logged: MostLogged) -> Self {
        Self { most_logged }
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
        let serviceId = service_id.map(|service_id| service_id.to_string());
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
                let command = self.most_logged.json(&event.command);
                message!("Command started", command);
            }
            CommandEvent::Succeeded(event) => {
                let (durationMS, reply) = (milliseconds(event.duration), self.most_logged.json(&event.reply));
                message!("Command succeeded", durationMS, reply);
            }
            CommandEvent::Failed(event) => {
                let (durationMS, failure) = (milliseconds(event.duration), failure(&event.failure));
                message!("Command failed", durationMS, failure);
            }
        }
    }
}

fn failure(failure: &CommandFailure) -> String {
    match failure {
        CommandFailure::Redacted { .. } => failure.to_string(),
        _ => PrintableError(failure).to_string(),
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e6
}
