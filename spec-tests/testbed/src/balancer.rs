//! A load balancer in front of one server, which does not know about it.
//!
//! It removes `loadBalanced` from each connection's hello, and adds a `serviceId` to the reply. The `serviceId` is
//! derived from the ID of the server process (the specifications' load balancer tests, "Test Runner Configuration").
//! All later bytes pass through unchanged.

use std::io;
use std::net::SocketAddr;

use bson::oid::ObjectId;
use bson::{Document, RawDocumentBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// The number of bytes before a message's document: the header, the flags and the kind of the section.
const PREFIX: usize = 21;
/// The maximum length of a hello or its reply.
const LONGEST: usize = 100_000;

/// A load balancer in front of one server. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Balancer {
    /// Starts a load balancer on 127.0.0.1, on a port that the operating system chooses. It runs on the current tokio
    /// runtime. It assigns the connections to the `services` services in rotation.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if no port can be bound.
    ///
    /// # Panics
    ///
    /// Panics if polled outside a tokio runtime.
    pub async fn start(server: SocketAddr, services: u8) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            let mut turns = (0..services).cycle();
            while let Ok((client, _)) = listener.accept().await {
                while open.try_join_next().is_some() {}
                open.spawn(serve(client, server, turns.next().unwrap_or(0)));
            }
        });
        Ok(Self { address, accepting })
    }

    /// Returns the address that clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Serves a connection until one side closes it.
async fn serve(mut client: TcpStream, server: SocketAddr, service: u8) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut hello = read(&mut client).await?;
    change(&mut hello, |hello| drop(hello.remove("loadBalanced")))?;
    server.write_all(&hello).await?;
    let mut reply = read(&mut server).await?;
    change(&mut reply, |reply| {
        let process = reply.get_document("topologyVersion").and_then(|version| version.get_object_id("processId"));
        if let Ok(process) = process {
            let mut bytes = process.bytes();
            bytes[11] ^= service;
            reply.insert("serviceId", ObjectId::from_bytes(bytes));
        }
    })?;
    client.write_all(&reply).await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Reads a message.
async fn read(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let whole = u32::from_le_bytes(length) as usize;
    if !(PREFIX..LONGEST).contains(&whole) {
        return Err(io::Error::other(format!("a hello of {whole} bytes")));
    }
    let mut message = length.to_vec();
    message.resize(whole, 0);
    from.read_exact(&mut message[4..]).await?;
    Ok(message)
}

/// Changes the document of a message with a single section.
fn change(message: &mut Vec<u8>, how: impl FnOnce(&mut Document)) -> io::Result<()> {
    let document = RawDocumentBuf::from_bytes(message[PREFIX..].to_vec()).map_err(io::Error::other)?;
    let mut document = Document::try_from(document).map_err(io::Error::other)?;
    how(&mut document);
    let document = RawDocumentBuf::try_from(&document).map_err(io::Error::other)?;
    message.truncate(PREFIX);
    message.extend_from_slice(document.as_bytes());
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    message[..4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}
