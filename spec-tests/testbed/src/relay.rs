//! A relay that cuts or stalls the connections through it, after a set number of bytes or all at once. It can also refuse
//! connections.

use std::future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// The direction in which bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// The fault that applies to connections opened from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Cut(Direction, u64),
    Hang(Direction, u64),
}

/// Which bytes pass on all connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passage {
    /// All bytes that the connection's fault lets through.
    Free,
    /// No bytes; connections stay open and silent.
    BlackHole,
    /// No bytes; connections are closed and refused.
    Partition,
}

/// The length of the queue of connections that the relay has not accepted yet.
const BACKLOG: u32 = 1024;

/// A relay's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Relayed {
    /// The number of connections accepted so far.
    pub opened: u64,
    /// The number of connections that are open now.
    pub open: u64,
    /// Bytes sent to the server, over all connections.
    pub to_server: u64,
    /// Bytes sent to clients, over all connections.
    pub to_client: u64,
}

/// A TCP relay in front of one server. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    fault: Arc<Mutex<Option<Fault>>>,
    passage: watch::Sender<Passage>,
    relayed: watch::Receiver<Relayed>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay on 127.0.0.1, on a port that the operating system chooses. It runs on the current tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if no port can be bound.
    ///
    /// # Panics
    ///
    /// Panics if polled outside a tokio runtime.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let fault = Arc::new(Mutex::new(None));
        let (sender, relayed) = watch::channel(Relayed::default());
        let passage = watch::Sender::new(Passage::Free);
        let line = Line { passage: passage.subscribe(), relayed: Arc::new(sender) };
        let accepting = tokio::spawn(accept(listener, server, Arc::clone(&fault), line));
        Ok(Self { address, fault, passage, relayed, accepting })
    }

    /// Returns the address that clients connect to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes each new connection after `bytes` bytes have passed in `direction`.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        self.set(Some(Fault::Cut(direction, bytes)));
    }

    /// Keeps each new connection open, but lets only `bytes` bytes pass in `direction`.
    pub fn hang_after(&self, direction: Direction, bytes: u64) {
        self.set(Some(Fault::Hang(direction, bytes)));
    }

    /// Lets nothing pass in either direction, on present and future connections, until [`heal`](Self::heal).
    /// Connections are still accepted. If one end closes a connection, the other end does not notice.
    pub fn black_hole(&self) {
        self.passage.send_replace(Passage::BlackHole);
    }

    /// Closes all connections and refuses later ones, until [`heal`](Self::heal). Waits until no connection is open.
    /// The relay keeps its port.
    pub async fn partition(&self) {
        self.passage.send_replace(Passage::Partition);
        self.until(|relayed| relayed.open == 0).await;
    }

    /// Ends the [black hole](Self::black_hole) or the [partition](Self::partition). Bytes that the relay read from
    /// either end of a connection during the black hole now pass.
    pub fn heal(&self) {
        self.passage.send_replace(Passage::Free);
    }

    /// Lets everything pass on new connections.
    pub fn pass(&self) {
        self.set(None);
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn relayed(&self) -> Relayed {
        *self.relayed.borrow()
    }

    /// Waits until the counters satisfy `condition`, and returns them.
    pub async fn until(&self, condition: impl Fn(&Relayed) -> bool) -> Relayed {
        let mut relayed = self.relayed.clone();
        *relayed.wait_for(|relayed| condition(relayed)).await.expect("BUG: the relay ended before its owner")
    }

    fn set(&self, fault: Option<Fault>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The state that all connections through a relay share.
#[derive(Clone)]
struct Line {
    passage: watch::Receiver<Passage>,
    relayed: Arc<watch::Sender<Relayed>>,
}

impl Line {
    /// Waits until bytes can pass.
    async fn passable(&self) {
        self.wait_for(|passage| passage != Passage::BlackHole).await;
    }

    /// Waits for a partition.
    async fn partition(&self) {
        self.wait_for(|passage| passage == Passage::Partition).await;
    }

    /// Waits for the end of a partition.
    async fn healed(&self) {
        self.wait_for(|passage| passage != Passage::Partition).await;
    }

    async fn wait_for(&self, is_it: impl Fn(Passage) -> bool) {
        let mut passage = self.passage.clone();
        if passage.wait_for(|&passage| is_it(passage)).await.is_err() {
            // The owner was dropped, which aborts this task.
            future::pending().await
        }
    }
}

/// Accepts connections until the task is aborted, which also closes them.
async fn accept(mut listener: TcpListener, server: SocketAddr, fault: Arc<Mutex<Option<Fault>>>, line: Line) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = line.partition() => {
                listener = refuse(listener, &line).await.expect("no other socket takes the port");
                continue;
            }
        };
        // The client sees this failure itself.
        let Ok((client, _)) = accepted else { continue };
        let fault = *fault.lock().unwrap_or_else(PoisonError::into_inner);
        let line = line.clone();
        connections.spawn(async move {
            line.relayed.send_modify(|relayed| {
                relayed.opened += 1;
                relayed.open += 1;
            });
            tokio::select! {
                () = relay(client, server, fault, &line) => {}
                () = line.partition() => {}
            }
            line.relayed.send_modify(|relayed| relayed.open -= 1);
        });
    }
}

/// Stops listening until the partition ends. Until then, a socket that is not listening holds the port, so connections
/// are refused.
async fn refuse(listener: TcpListener, line: &Line) -> io::Result<TcpListener> {
    let address = listener.local_addr()?;
    drop(listener);
    let keeper = TcpSocket::new_v4()?;
    keeper.set_reuseaddr(true)?;
    keeper.bind(address)?;
    line.healed().await;
    keeper.listen(BACKLOG)
}

/// Relays until either end closes its connection or the fault cuts it, and then closes both connections.
async fn relay(client: TcpStream, server: SocketAddr, fault: Option<Fault>, line: &Line) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    for socket in [&client, &server] {
        // If this fails, the relay is merely slower.
        let _ = socket.set_nodelay(true);
    }
    let ((client_reads, client_writes), (server_reads, server_writes)) = (client.into_split(), server.into_split());
    tokio::select! {
        () = copy(client_reads, server_writes, Direction::ToServer, fault, line) => {}
        () = copy(server_reads, client_writes, Direction::ToClient, fault, line) => {}
    }
}

/// Copies until the end of the stream or the fault's limit.
async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    fault: Option<Fault>,
    line: &Line,
) {
    let (mut left, hangs) = match fault {
        Some(Fault::Cut(faulty, bytes)) if faulty == direction => (bytes, false),
        Some(Fault::Hang(faulty, bytes)) if faulty == direction => (bytes, true),
        _ => (u64::MAX, false),
    };
    let mut buffer = vec![0; 16 * 1024];
    while left > 0 {
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = from.read(&mut buffer[..room]).await;
        line.passable().await;
        let length = match read {
            Ok(0) | Err(_) => return,
            Ok(length) => length,
        };
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
        left -= length as u64;
        line.relayed.send_modify(|relayed| match direction {
            Direction::ToServer => relayed.to_server += length as u64,
            Direction::ToClient => relayed.to_client += length as u64,
        });
    }
    if hangs {
        // Discard all later bytes: only reading shows when the connection is closed.
        while from.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
    }
}
