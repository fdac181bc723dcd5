//! The hello handshake: the first exchange on every connection (MongoDB Handshake specification).
//!
//! The current specification uses `OP_MSG` for the whole handshake, including the legacy hello, so wharf needs no
//! `OP_QUERY` or `OP_REPLY`. The command is `hello` if a server API is declared or the connection is in load-balanced
//! mode, and otherwise the legacy hello with `helloOk`.

use std::io;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bson::{RawDocument, RawDocumentBuf};

use super::authentication::{Speculation, Wiped, without_text};
use super::channel::{Channel, ExchangeError};
use super::deadline::Deadline;
use super::foreign::ForeignProtocolError;
use super::{platform, transport};
use crate::endpoint::options::{Compressor, DriverInfo, InvalidOption, Options};
use crate::endpoint::wire::metadata::ClientMetadata;
use crate::endpoint::wire::reply::{self, StateChange, Unsuccessful};
use crate::endpoint::wire::{HelloReply, ServerError, hello, server_api};
use crate::pool::error::{EstablishError, Labels, Stage};

/// The part of hello that all connections with the same options share, including monitors' connections.
#[derive(Debug)]
pub(crate) struct Handshake {
    /// This is not behind a lock: in a forked child, the lock might be held by a thread that exists only in the parent.
    client: Arc<ArcSwap<Client>>,
    /// The compressors to offer: the compressors in the options that this build includes.
    compressors: Vec<Compressor>,
    /// The elements that declare the server API in every command; empty if none is declared.
    server_api: Arc<[u8]>,
}

/// The client metadata and its BSON document.
#[derive(Debug)]
struct Client {
    metadata: ClientMetadata,
    document: RawDocumentBuf,
}

impl Client {
    fn new(metadata: ClientMetadata) -> Self {
        Self { document: metadata.to_document(), metadata }
    }
}

impl Handshake {
    /// # Errors
    ///
    /// [`InvalidOption`] if the library that wraps wharf does not fit into the metadata.
    pub fn new(options: &Options) -> Result<Self, InvalidOption> {
        let mut metadata = ClientMetadata { app_name: options.app_name.clone(), ..platform::metadata() };
        if let Some(library) = &options.driver_info {
            metadata.append(library.clone())?;
        }
        Ok(Self {
            client: Arc::new(ArcSwap::from_pointee(Client::new(metadata))),
            compressors: supported(&options.compressors),
            server_api: server_api::elements(options.server_api.as_ref()).into(),
        })
    }

    /// Returns a handshake that shares this handshake's metadata, including later changes, but offers the compressors
    /// of these options.
    pub fn with_compressors(&self, options: &Options) -> Self {
        Self {
            client: self.client.clone(),
            compressors: supported(&options.compressors),
            server_api: self.server_api.clone(),
        }
    }

    /// Appends a wrapping library to the metadata of connections that are opened from now on.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the library does not fit into the metadata.
    pub fn append_metadata(&self, library: DriverInfo) -> Result<(), InvalidOption> {
        let mut present = self.client.load_full();
        loop {
            let mut metadata = present.metadata.clone();
            metadata.append(library.clone())?;
            let found = Arc::clone(&self.client.compare_and_swap(&present, Arc::new(Client::new(metadata))));
            if Arc::ptr_eq(&found, &present) {
                return Ok(());
            }
            present = found;
        }
    }

    /// Returns the elements that every command carries, including hello.
    pub(super) fn server_api(&self) -> &Arc<[u8]> {
        &self.server_api
    }

    /// Returns the compressor for messages after authentication.
    pub(super) fn agreed_compressor(&self, hello: &HelloReply) -> Option<Compressor> {
        hello.agreed_compressor(&self.compressors)
    }

    /// Performs the handshake on a new channel.
    pub(super) async fn make(
        &self,
        channel: &mut Channel,
        load_balanced: bool,
        speculation: &Speculation,
        deadline: Deadline,
    ) -> Result<HelloReply, EstablishError> {
        let client = self.client.load_full();
        let request = hello::Request {
            client: &client.document,
            server_api: !self.server_api.is_empty(),
            load_balanced,
            compressors: &self.compressors,
            supported_mechanisms_of: speculation.supported_mechanisms_of.as_deref(),
            speculative_authenticate: speculation.command.as_ref().map(Wiped::document),
        };
        channel.accept_compressed(&self.compressors);
        // The speculative authentication may contain a token.
        let command = Wiped::new(request.command());
        let exchange = async { channel.exchange("admin", command.document()).await.map(RawDocument::to_owned) };
        let document = match deadline.bound_command(exchange).await {
            Ok(Ok(document)) => document,
            failed => {
                if let Some(foreign) = ForeignProtocolError::of(channel.received()) {
                    return Err(EstablishError::permanent(Stage::Hello, foreign));
                }
                return Err(match failed {
                    Ok(Err(ExchangeError::Network(error))) => {
                        transport::stream_failed(Stage::Hello, without_answer(channel, error))
                    }
                    Ok(Err(ExchangeError::Wire(error))) => EstablishError::permanent(Stage::Hello, error),
                    Ok(Ok(_) | Err(ExchangeError::NotReusable)) => {
                        unreachable!("BUG: hello is the first command on its channel")
                    }
                    Err(timeout) => EstablishError::overloaded(Stage::Hello, timeout),
                });
            }
        };
        reply::check(&document).map_err(|unsuccessful| refusal(unsuccessful, speculation.is_secret()))?;
        HelloReply::read(document).map_err(|error| EstablishError::permanent(Stage::Hello, error))
    }
}

fn supported(compressors: &[Compressor]) -> Vec<Compressor> {
    compressors.iter().copied().filter(|compressor| compressor.is_supported()).collect()
}

/// Returns the error for a stream that did not answer hello.
///
/// A server that requires TLS simply closes a stream that begins without a TLS handshake.
fn without_answer(channel: &Channel, error: io::Error) -> io::Error {
    if channel.transport().is_secured() || !channel.received().is_empty() {
        return error;
    }
    transport::with_guess(error, "the server may require TLS: set tls=true")
}

/// Returns the error for a hello that the server refused, without the server's text if hello held a secret.
fn refusal(unsuccessful: Unsuccessful, is_secret: bool) -> EstablishError {
    match unsuccessful {
        Unsuccessful::Wire(error) => EstablishError::permanent(Stage::Hello, error),
        Unsuccessful::Command(error) => {
            let shown = if is_secret { without_text((*error).clone()) } else { (*error).clone() };
            judged_by(&error, EstablishError::permanent(Stage::Hello, shown))
        }
    }
}

/// Returns `failure` with the labels of the server's error, and no other labels. The server's error also decides whether
/// to retry, and whether to clear the pool.
pub(super) fn judged_by(error: &ServerError, failure: EstablishError) -> EstablishError {
    let stays_up = matches!(error.state_change(), Some(StateChange::NotWritablePrimary | StateChange::Recovering));
    // Pools use only these labels.
    let labels = error.labels.among(Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE));
    failure.with_labels(labels).with_retryable(error.has_retryable_code()).with_clears_pool(!stays_up)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn library(name: &str) -> DriverInfo {
        DriverInfo { name: name.to_owned(), version: None, platform: None }
    }

    fn handshake() -> Handshake {
        Handshake::new(&Options::new(["localhost"]).unwrap()).unwrap()
    }

    #[test]
    fn libraries_appended_by_several_threads_are_all_kept() {
        let handshake = handshake();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let handshake = &handshake;
                scope.spawn(move || {
                    for number in 0..5 {
                        handshake.append_metadata(library(&format!("{thread}{number}"))).unwrap();
                    }
                });
            }
        });
        let client = handshake.client.load();
        assert_eq!(client.metadata.libraries.len(), 20);
        assert_eq!(client.document, client.metadata.to_document());
    }

    /// A lock, if there were one, would be held during most of the forks.
    #[cfg(unix)]
    #[test]
    fn forked_child_appends_metadata_while_a_thread_of_the_parent_does() {
        let (handshake, stop) = (handshake(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    handshake.append_metadata(library("of the parent")).unwrap();
                }
            });
            let append = || handshake.append_metadata(library("of the child")).map_err(|_| 1);
            let codes: Vec<_> =
                (0..20).map(|_| crate::pool::runtime::in_child(append)).take_while(|code| *code == 0).collect();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(codes.len(), 20);
        });
        assert!(!handshake.client.load().metadata.libraries.contains(&library("of the child")));
    }
}
