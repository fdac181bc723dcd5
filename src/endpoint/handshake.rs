//! The hello handshake: the first exchange on every connection (MongoDB Handshake specification).
//!
//! The current text has all of it in `OP_MSG`, the legacy hello included, so that the older `OP_QUERY` and `OP_REPLY`
//! are needed nowhere. The command is `hello` where a server API is declared or the connection is in load-balanced
//! mode, and else the legacy hello with `helloOk`.

use std::sync::Arc;

use bson::RawDocumentBuf;

use super::authentication::Speculation;
use super::channel::{Channel, ExchangeError};
use super::deadline::Deadline;
use super::platform;
use crate::error::{EstablishError, Labels, Stage};
use crate::options::Options;
use crate::wire::metadata::ClientMetadata;
use crate::wire::reply::{self, Unsuccessful};
use crate::wire::{HelloReply, hello, server_api};

/// What all connections of some options say in their hello.
#[derive(Debug)]
pub(super) struct Handshake {
    /// The client metadata, as it is sent.
    client: RawDocumentBuf,
    /// The elements that declare the server API with every command; empty if none is declared.
    server_api: Arc<[u8]>,
}

impl Handshake {
    pub fn new(options: &Options) -> Self {
        let metadata = ClientMetadata { app_name: options.app_name.clone(), ..platform::metadata() };
        let server_api = server_api::elements(options.server_api.as_ref()).into();
        Self { client: metadata.to_document(), server_api }
    }

    /// The elements that every command carries, hello included.
    pub fn server_api(&self) -> &Arc<[u8]> {
        &self.server_api
    }

    /// Makes the handshake on a new channel, which from then on is held to the server's limits.
    pub async fn make(
        &self,
        channel: &mut Channel,
        address: &str,
        load_balanced: bool,
        speculation: &Speculation,
        deadline: Deadline,
    ) -> Result<HelloReply, EstablishError> {
        let _ = speculation;
        let command = hello::command(&self.client, load_balanced);
        let document = match deadline.bound(channel.exchange("admin", &command)).await {
            Ok(Ok(document)) => document,
            Ok(Err(ExchangeError::Network(error))) => return Err(EstablishError::overloaded(Stage::Hello, error)),
            Ok(Err(ExchangeError::Wire(error))) => return Err(EstablishError::unlabelled(Stage::Hello, error)),
            Ok(Err(ExchangeError::Errored)) => unreachable!("BUG: hello is the first command on its channel"),
            Err(timeout) => return Err(EstablishError::overloaded(Stage::Hello, timeout)),
        };
        reply::check(document).map_err(refusal)?;
        let hello =
            HelloReply::read(document.to_owned()).map_err(|error| EstablishError::unlabelled(Stage::Hello, error))?;
        if let Err(incompatible) = hello.check_compatible(address) {
            return Err(EstablishError::unlabelled(Stage::Hello, incompatible));
        }
        channel.set_limits(&hello);
        Ok(hello)
    }
}

/// A hello that the server refused. It has the labels that the server gave it, and no others.
fn refusal(unsuccessful: Unsuccessful) -> EstablishError {
    match unsuccessful {
        Unsuccessful::Wire(error) => EstablishError::unlabelled(Stage::Hello, error),
        Unsuccessful::Command(error) => {
            let labels = labels_of(&error);
            EstablishError { stage: Stage::Hello, labels, source: Arc::new(*error) }
        }
    }
}

/// The labels that a server gave its error, of those that matter to the pool.
pub(super) fn labels_of(error: &crate::wire::CommandError) -> Labels {
    [Labels::SYSTEM_OVERLOADED, Labels::RETRYABLE]
        .into_iter()
        .filter(|label| label.names().all(|name| error.has_label(name)))
        .fold(Labels::NONE, Labels::with)
}
