//! The hello handshake: the first exchange on every connection (MongoDB Handshake specification).
//!
//! The current text has all of it in `OP_MSG`, the legacy hello included, so that the older `OP_QUERY` and `OP_REPLY`
//! are needed nowhere. The command is `hello` where a server API is declared or the connection is in load-balanced
//! mode, and else the legacy hello with `helloOk`.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bson::{RawDocument, RawDocumentBuf};

use super::authentication::{Speculation, Wiped};
use super::channel::{Channel, ExchangeError};
use super::deadline::Deadline;
use super::foreign::ForeignAnswer;
use super::{platform, transport};
use crate::error::{EstablishError, Labels, Stage};
use crate::options::{Compressor, DriverInfo, InvalidOption, Options};
use crate::wire::metadata::ClientMetadata;
use crate::wire::reply::{self, StateChange, Unsuccessful};
use crate::wire::{CommandError, HelloReply, hello, server_api};

/// What all connections of some options say in their hello.
#[derive(Debug)]
pub(super) struct Handshake {
    client: Mutex<Client>,
    /// The compressors to offer: those that the options want and that were compiled in.
    compressors: Vec<Compressor>,
    /// The elements that declare the server API with every command; empty if none is declared.
    server_api: Arc<[u8]>,
}

/// The client metadata, and the document that it makes.
#[derive(Debug)]
struct Client {
    metadata: ClientMetadata,
    document: Arc<RawDocumentBuf>,
}

impl Handshake {
    /// # Errors
    ///
    /// [`InvalidOption`] if the metadata cannot have the library that wraps wharf.
    pub fn new(options: &Options) -> Result<Self, InvalidOption> {
        let mut metadata = ClientMetadata { app_name: options.app_name.clone(), ..platform::metadata() };
        if let Some(library) = &options.driver_info {
            metadata.append(library.clone())?;
        }
        let document = Arc::new(metadata.to_document());
        Ok(Self {
            client: Mutex::new(Client { metadata, document }),
            compressors: options.compressors.iter().copied().filter(|compressor| compressor.is_supported()).collect(),
            server_api: server_api::elements(options.server_api.as_ref()).into(),
        })
    }

    /// Appends a library that wraps wharf to the metadata of the connections that are opened from now on.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the metadata cannot have it.
    pub fn append_metadata(&self, library: DriverInfo) -> Result<(), InvalidOption> {
        // Poisoned is as good: either field is replaced as a whole.
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.metadata.append(library)?;
        client.document = Arc::new(client.metadata.to_document());
        Ok(())
    }

    /// The elements that every command carries, hello included.
    pub fn server_api(&self) -> &Arc<[u8]> {
        &self.server_api
    }

    /// The compressor for the messages after authentication.
    pub fn agreed_compressor(&self, hello: &HelloReply) -> Option<Compressor> {
        hello.agreed_compressor(&self.compressors)
    }

    /// Makes the handshake on a new channel.
    pub async fn make(
        &self,
        channel: &mut Channel,
        address: &str,
        load_balanced: bool,
        speculation: &Speculation,
        deadline: Deadline,
    ) -> Result<HelloReply, EstablishError> {
        let client = Arc::clone(&self.client.lock().unwrap_or_else(PoisonError::into_inner).document);
        let request = hello::Request {
            client: &client,
            server_api: !self.server_api.is_empty(),
            load_balanced,
            compressors: &self.compressors,
            supported_mechanisms_of: speculation.supported_mechanisms_of.as_deref(),
            speculative_authenticate: speculation.command.as_ref().map(Wiped::document),
        };
        if !self.compressors.is_empty() {
            channel.accept_compressed();
        }
        // What is speculated may be a token.
        let command = Wiped::new(request.command());
        let exchange = async { channel.exchange("admin", command.document()).await.map(RawDocument::to_owned) };
        let document = match deadline.bound_command(exchange).await {
            Ok(Ok(document)) => document,
            failed => {
                if let Some(foreign) = ForeignAnswer::of(channel.received()) {
                    return Err(EstablishError::unlabelled(Stage::Hello, foreign));
                }
                return Err(match failed {
                    Ok(Err(ExchangeError::Network(error))) => {
                        transport::stream_failed(Stage::Hello, without_answer(channel, error))
                    }
                    Ok(Err(ExchangeError::Wire(error))) => EstablishError::unlabelled(Stage::Hello, error),
                    Ok(Ok(_) | Err(ExchangeError::Errored)) => {
                        unreachable!("BUG: hello is the first command on its channel")
                    }
                    Err(timeout) => EstablishError::overloaded(Stage::Hello, timeout),
                });
            }
        };
        reply::check(&document).map_err(refusal)?;
        let hello = HelloReply::read(document).map_err(|error| EstablishError::unlabelled(Stage::Hello, error))?;
        if let Err(incompatible) = hello.check_compatible(address) {
            return Err(EstablishError::unlabelled(Stage::Hello, incompatible));
        }
        Ok(hello)
    }
}

/// The error of a stream on which hello was not answered. A server that wants TLS just closes a stream that begins
/// without it.
fn without_answer(channel: &Channel, error: io::Error) -> io::Error {
    if channel.transport().is_secured() || !channel.received().is_empty() {
        return error;
    }
    transport::with_guess(error, "the server may require TLS: set tls=true")
}

/// A hello that the server refused.
fn refusal(unsuccessful: Unsuccessful) -> EstablishError {
    match unsuccessful {
        Unsuccessful::Wire(error) => EstablishError::unlabelled(Stage::Hello, error),
        Unsuccessful::Command(error) => {
            let refused = EstablishError::unlabelled(Stage::Hello, (*error).clone());
            judged_by(&error, refused)
        }
    }
}

/// An establishment's failure, with what the server's own error says of it: its labels and no others, whether to try
/// again, and whether to clear the pool.
pub(super) fn judged_by(error: &CommandError, failure: EstablishError) -> EstablishError {
    let stays_up = matches!(error.state_change(), Some(StateChange::NotWritablePrimary | StateChange::Recovering));
    EstablishError {
        labels: labels_of(error),
        retryable: error.has_retryable_code(),
        clears_pool: !stays_up,
        ..failure
    }
}

/// The labels that a server gave its error, of those that matter to the pool.
fn labels_of(error: &CommandError) -> Labels {
    [Labels::SYSTEM_OVERLOADED, Labels::RETRYABLE]
        .into_iter()
        .filter(|label| label.names().all(|name| error.has_label(name)))
        .fold(Labels::NONE, Labels::with)
}
