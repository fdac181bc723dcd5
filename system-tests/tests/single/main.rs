//! The client on a single thread, on real servers. Unit tests next to the code cover time-dependent behaviour, in
//! virtual time.
#![cfg(not(any(loom, shuttle)))]

mod changes;
mod connecting;
mod cursors;
mod handles;
#[cfg(target_os = "linux")]
mod process;
mod replica_set;
mod srv;
mod standalone;

use std::sync::{Arc, Mutex};

use wharf::Options;
use wharf::client::CommandEvent;
use wharf::single::{Client, ClientBuilder};

/// Returns a builder for a client with this connection string.
fn builder(uri: &str) -> ClientBuilder {
    Client::builder(Options::parse(uri).unwrap())
}

/// The names of the commands that a client sent, in order.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<String>>>);

impl Sent {
    /// Returns a client that records its commands.
    fn client(uri: &str) -> (Client, Self) {
        let sent = Self::default();
        let noted = sent.clone();
        let subscriber = move |event: &CommandEvent| {
            if let CommandEvent::Started(started) = event {
                noted.0.lock().unwrap().push(started.source.command_name.clone());
            }
        };
        (builder(uri).command_subscriber(subscriber).build().unwrap(), sent)
    }

    /// Returns the names since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}
