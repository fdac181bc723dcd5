//! A server that follows a script, message by message, for conversations that no real server would hold.
//!
//! Each connection has its own script. The script receives every command, with its document sequences as arrays, and
//! returns an [`Answer`]. The server records all commands.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, RawDocument, RawDocumentBuf, doc};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use wharf::unstable::wire::{Flags, Header, Limits, Message, Outgoing, op_msg};

const LIMITS: Limits = Limits { max_message_size: 48_000_000, max_document_size: 16 * 1024 * 1024 };

/// How the server reacts to a command.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Reply with this document, unless the client expects no reply (`moreToCome`).
    Reply(Document),
    /// Reply with this document, and ask the script for the next reply to the same command (`moreToCome`).
    More(Document),
    /// Wait for this long, on tokio's clock, and then continue with this answer.
    After(Duration, Box<Answer>),
    /// Send at most this many bytes of the reply, and close the connection.
    Cut(Document, usize),
    /// Send no reply, and keep the connection open.
    Hang,
    /// Close the connection.
    Close,
}

/// The script of one connection: returns the answer to each command.
pub type Script = Box<dyn FnMut(&Document) -> Answer + Send>;

/// A server that follows scripts. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct ScriptedServer {
    address: SocketAddr,
    commands: Arc<watch::Sender<Vec<Document>>>,
    accepting: JoinHandle<()>,
}

impl ScriptedServer {
    /// Starts a server on 127.0.0.1, on its own port. `script` is called for each connection and returns its script.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if no port can be bound.
    pub async fn start(script: impl Fn() -> Script + Send + 'static) -> io::Result<Self> {
        let listener = ShutDownOnDrop(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?);
        let address = listener.0.local_addr()?;
        let commands = Arc::new(watch::Sender::new(Vec::new()));
        let recorded = Arc::clone(&commands);
        let accepting = tokio::spawn(async move {
            // The connections are dropped with this task, which closes them all.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.0.accept().await {
                connections.spawn(serve(ShutDownOnDrop(stream), script(), Arc::clone(&recorded)));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, commands, accepting })
    }

    /// Returns the address that the server listens on, `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns all commands received so far, on all connections, in order of arrival.
    #[must_use]
    pub fn commands(&self) -> Vec<Document> {
        self.commands.borrow().clone()
    }

    /// Waits until `commands` commands have arrived.
    pub async fn until(&self, commands: usize) {
        // The sender lives as long as `self`, so the wait cannot fail.
        let _ = self.commands.subscribe().wait_for(|arrived| arrived.len() >= commands).await;
    }

    /// Returns the names of all commands so far.
    #[must_use]
    pub fn command_names(&self) -> Vec<String> {
        self.commands().iter().map(name).collect()
    }

    /// Discards the recorded commands.
    pub fn forget(&self) {
        self.commands.send_modify(Vec::clear);
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Returns a command's name, which is the name of its first field.
#[must_use]
pub fn name(command: &Document) -> String {
    command.keys().next().cloned().unwrap_or_default()
}

/// A socket that is shut down when it is dropped.
///
/// A child process has copies of all descriptors until it executes its program, so a test that starts a server at the
/// same time would keep the socket open. With tokio's clock paused, the client's limits would expire meanwhile.
struct ShutDownOnDrop<S: AsFd>(S);

impl<S: AsFd> Drop for ShutDownOnDrop<S> {
    fn drop(&mut self) {
        // Fails if the client has already closed the connection.
        let _ = SockRef::from(&self.0).shutdown(Shutdown::Both);
    }
}

async fn serve(mut stream: ShutDownOnDrop<TcpStream>, mut script: Script, commands: Arc<watch::Sender<Vec<Document>>>) {
    // The connection is being closed, so the error cannot be reported on it.
    let _ = follow(&mut stream.0, &mut script, &commands).await;
}

async fn follow(
    stream: &mut TcpStream,
    script: &mut Script,
    commands: &watch::Sender<Vec<Document>>,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut incoming = Vec::new();
    loop {
        let mut header = receive(stream, &mut incoming).await?;
        // A client that expects no reply may already have sent the next message.
        let next = incoming.split_off(header.message_length as usize);
        let message = Message::decode(&incoming, LIMITS).map_err(io::Error::other)?;
        let has_reply = !message.flags.contains(Flags::MORE_TO_COME);
        let twice = repeated_field(message.body);
        let mut command = Document::try_from(message.body).map_err(io::Error::other)?;
        for sequence in message.sequences {
            let documents = sequence.documents.map(|document| Document::try_from(document).map_err(io::Error::other));
            command.insert(sequence.identifier, documents.collect::<io::Result<Vec<_>>>()?);
        }
        commands.send_modify(|commands| commands.push(command.clone()));
        loop {
            let mut answer = match &twice {
                // Answers as a real server does.
                Some(field) => Answer::Reply(doc! {
                    "ok": 0, "code": 40_413, "errmsg": format!("BSON field '{field}' is a duplicate field"),
                }),
                None => script(&command),
            };
            while let Answer::After(pause, then) = answer {
                // Ends the pause early if the client closes the connection, because no answer is needed then.
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    _ = stream.readable() => {}
                }
                answer = *then;
            }
            match answer {
                Answer::Reply(document) if has_reply => {
                    stream.write_all(&reply(header, Flags::NONE, &document)?).await?;
                }
                Answer::Reply(_) | Answer::Hang => {}
                Answer::More(document) => {
                    stream.write_all(&reply(header, Flags::MORE_TO_COME, &document)?).await?;
                    // With `moreToCome`, the next reply responds to this reply instead of to the request.
                    header.request_id = REPLY;
                    continue;
                }
                Answer::Cut(document, bytes) => {
                    let reply = reply(header, Flags::NONE, &document)?;
                    stream.write_all(&reply[..bytes.min(reply.len())]).await?;
                    return Ok(());
                }
                Answer::Close => return Ok(()),
                Answer::After(..) => unreachable!("the pause is over"),
            }
            break;
        }
        incoming = next;
    }
}

/// Returns the name of a field that occurs twice in a command.
fn repeated_field(command: &RawDocument) -> Option<String> {
    let mut names = HashSet::new();
    command.into_iter().flatten().map(|(name, _)| name.as_str()).find(|name| !names.insert(*name)).map(str::to_owned)
}

async fn receive(stream: &mut TcpStream, incoming: &mut Vec<u8>) -> io::Result<Header> {
    loop {
        if let Some(header) = Header::read(incoming, LIMITS.max_message_size).map_err(io::Error::other)?
            && incoming.len() >= header.message_length as usize
        {
            return Ok(header);
        }
        if stream.read_buf(incoming).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The request ID in all replies.
const REPLY: i32 = 1;

/// Returns the bytes of the reply to the request with this header.
fn reply(request: Header, flags: Flags, document: &Document) -> io::Result<Vec<u8>> {
    let body = RawDocumentBuf::try_from(document).map_err(io::Error::other)?;
    let message = Outgoing {
        request_id: REPLY,
        response_to: request.request_id,
        flags,
        body: &body,
        database: None,
        sequences: &[],
    };
    let mut bytes = Vec::new();
    op_msg::encode(&message, LIMITS.max_message_size, &mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

/// Returns the number of bytes that a reply with this document takes on the wire.
///
/// # Panics
///
/// Panics if the document cannot be encoded in BSON.
#[must_use]
pub fn reply_length(document: &Document) -> usize {
    let body = RawDocumentBuf::try_from(document).expect("a script's document can be encoded in BSON");
    16 + 4 + 1 + body.as_bytes().len()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn dropped_socket_is_closed_even_if_a_child_has_a_copy() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let accepted = listener.accept().unwrap().0;
        let _copies = (listener.try_clone().unwrap(), accepted.try_clone().unwrap());
        drop((ShutDownOnDrop(accepted), ShutDownOnDrop(listener)));
        // An error would mean that the connection is still open.
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(TcpStream::connect(address).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
