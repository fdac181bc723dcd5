//! The endpoint against the embedded server, and against peers that break the protocol.
#![cfg(not(loom))]

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use bson::{Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wharf::endpoint::ConnectTimeoutError;
use wharf::unstable::endpoint::{ConnectError, ForeignProtocolError};
use wharf::unstable::wire::hello::IncompatibleServerError;
use wharf::unstable::wire::{Flags, Header, HelloReply, Outgoing, WireError, op_msg};
use wharf::{
    Command, CommandError, DirectConnection, Endpoint, Establish, EstablishError, Labels, Options, ServerError, Stage,
};
use wharf_testbed::embedded::{COLLECTION, DATABASE, EmbeddedOptions, EmbeddedServer};

mod commands;
mod embedded_server;
mod establishing;
mod handshake_errors;
mod pooled;
mod protocol;

/// The time after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

/// The two labels of an error that an overloaded server may have caused.
const OVERLOADED: Labels = Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE);

async fn start() -> EmbeddedServer {
    EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap()
}

fn options(server: &EmbeddedServer) -> Options {
    Options::new([server.address().as_str()]).unwrap()
}

fn endpoint(server: &EmbeddedServer) -> Endpoint {
    options(server).endpoint().unwrap()
}

async fn connect(server: &EmbeddedServer) -> DirectConnection {
    endpoint(server).connect().await.unwrap()
}

/// Sets the fail point over a separate connection.
async fn set_fail_point(server: &EmbeddedServer, mode: impl Into<bson::Bson>, data: Document) {
    let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
    let command = RawDocumentBuf::try_from(command).unwrap();
    connect(server).await.run_command("admin", &command).await.unwrap();
}

fn assert_refused(error: &EstablishError, stage: Stage, labels: Labels) {
    assert_eq!((error.stage(), error.labels()), (stage, labels), "{error}");
}

fn cause<E: StdError + 'static>(error: &EstablishError) -> &E {
    error.cause().downcast_ref().unwrap_or_else(|| panic!("unexpected cause: {:?}", error.cause()))
}

/// Returns the violation of the wire protocol, if a command failed because of one.
fn wire_error(failure: &CommandError) -> Option<&WireError> {
    match failure {
        CommandError::Wire { source, .. } => source.downcast_ref(),
        _ => None,
    }
}
