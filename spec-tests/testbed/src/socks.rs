//! A SOCKS5 proxy (RFC 1928, RFC 1929), with or without a login, that can fail at any of its messages.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// The configuration of a proxy.
#[derive(Debug, Clone, Default)]
pub struct SocksOptions {
    /// The user name and password that clients must send. Default: none is required.
    pub login: Option<(String, String)>,
    /// The names that the proxy resolves itself, in lower case, without a port (`name`) or for one port (`name:port`).
    /// It refuses other names as unreachable.
    pub names: HashMap<String, SocketAddr>,
    /// The addresses that the proxy connects to in place of requested addresses, such as the address of a relay. It
    /// connects to all other requested addresses directly.
    pub detours: HashMap<SocketAddr, SocketAddr>,
    /// The proxy's fault. Default: none.
    pub fault: Option<SocksFault>,
}

/// A fault of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocksFault {
    /// The proxy never answers.
    Hang(SocksMessage),
    /// The proxy closes the connection instead of answering.
    Close(SocksMessage),
    /// The proxy answers with zeros.
    Garbage(SocksMessage),
    /// The proxy answers the request with this reply code, such as 5 (connection refused).
    Refuse(u8),
}

/// The messages that a proxy sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocksMessage {
    /// The method that the proxy selects.
    Method,
    /// The result of the login. Without a login, this message does not occur.
    Login,
    /// The result of connecting to the server.
    Reply,
}

/// A client's request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocksRequest {
    /// The methods that the client offered: 0 is no authentication, 2 is a login.
    pub methods: Vec<u8>,
    /// The server's name, or its IP address in the usual notation. Empty if the client did not get that far.
    pub host: String,
    /// Whether the client sent a name instead of an IP address.
    pub by_name: bool,
    /// The server's port.
    pub port: u16,
}

/// A running proxy. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct SocksProxy {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<SocksRequest>>>,
    accepting: JoinHandle<()>,
}

impl SocksProxy {
    /// Starts a proxy on 127.0.0.1, on a port that the operating system chooses. It runs on the current tokio runtime.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if no port can be bound.
    ///
    /// # Panics
    ///
    /// Panics if polled outside a tokio runtime.
    pub async fn start(options: SocksOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let requests = Arc::default();
        let accepting = tokio::spawn(accept(listener, Arc::new(options), Arc::clone(&requests)));
        Ok(Self { address, requests, accepting })
    }

    /// Returns the port that the proxy listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the requests from all clients whose negotiation has finished, in the order in which they finished.
    #[must_use]
    pub fn requests(&self) -> Vec<SocksRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for SocksProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Accepts connections until the task is aborted, which also closes them.
async fn accept(listener: TcpListener, options: Arc<SocksOptions>, requests: Arc<Mutex<Vec<SocksRequest>>>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((mut client, _)) = listener.accept().await else { continue };
        let (options, requests) = (Arc::clone(&options), Arc::clone(&requests));
        connections.spawn(async move {
            // Otherwise a small message may wait up to 40 ms for the acknowledgement of the previous one.
            let Ok(()) = client.set_nodelay(true) else { return };
            let mut request = SocksRequest::default();
            let server = negotiate(&mut client, &options, &mut request).await;
            requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
            // The client sees its connection end, so there is nothing to report.
            if let Ok(mut server) = server
                && server.set_nodelay(true).is_ok()
                && client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.is_ok()
            {
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}

/// Handles all messages up to the successful reply, which it leaves to the caller.
async fn negotiate(
    client: &mut TcpStream,
    options: &SocksOptions,
    request: &mut SocksRequest,
) -> io::Result<TcpStream> {
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    let [version, count] = read(client).await?;
    if version != 5 {
        return Err(refused());
    }
    request.methods = vec![0; count.into()];
    client.read_exact(&mut request.methods).await?;
    fail(client, options, SocksMessage::Method, 2).await?;
    let method = if options.login.is_some() { 2 } else { 0 };
    if !request.methods.contains(&method) {
        client.write_all(&[5, 0xff]).await?;
        return Err(refused());
    }
    client.write_all(&[5, method]).await?;

    if let Some((username, password)) = &options.login {
        let [_version, length] = read(client).await?;
        let mut given_username = vec![0; length.into()];
        client.read_exact(&mut given_username).await?;
        let [length] = read(client).await?;
        let mut given_password = vec![0; length.into()];
        client.read_exact(&mut given_password).await?;
        fail(client, options, SocksMessage::Login, 2).await?;
        if given_username != username.as_bytes() || given_password != password.as_bytes() {
            client.write_all(&[1, 1]).await?;
            return Err(refused());
        }
        client.write_all(&[1, 0]).await?;
    }

    let [_version, _command, _reserved, kind] = read(client).await?;
    request.by_name = kind == 3;
    request.host = match kind {
        1 => Ipv4Addr::from(read(client).await?).to_string(),
        4 => Ipv6Addr::from(read::<16>(client).await?).to_string(),
        _ => {
            let [length] = read(client).await?;
            let mut name = vec![0; length.into()];
            client.read_exact(&mut name).await?;
            String::from_utf8(name).map_err(|_| refused())?
        }
    };
    request.port = u16::from_be_bytes(read(client).await?);
    fail(client, options, SocksMessage::Reply, 10).await?;
    let refusal = |code| [5, code, 0, 1, 0, 0, 0, 0, 0, 0];
    if let Some(SocksFault::Refuse(code)) = options.fault {
        client.write_all(&refusal(code)).await?;
        return Err(refused());
    }
    let server = match request.by_name {
        true => {
            let with_port = format!("{}:{}", request.host, request.port);
            options.names.get(&with_port).or_else(|| options.names.get(&request.host)).copied()
        }
        false => {
            let address = request.host.parse().ok().map(|address| SocketAddr::new(address, request.port));
            address.map(|address| options.detours.get(&address).copied().unwrap_or(address))
        }
    };
    let connected = match server {
        Some(server) => TcpStream::connect(server).await.map_err(|error| (5, error)),
        None => Err((4, refused())),
    };
    match connected {
        Ok(server) => Ok(server),
        Err((code, error)) => {
            client.write_all(&refusal(code)).await?;
            Err(error)
        }
    }
}

async fn read<const N: usize>(client: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Applies the proxy's fault, if it affects `message`, which is `length` bytes long. A hang ends when the client closes
/// the connection.
async fn fail(client: &mut TcpStream, options: &SocksOptions, message: SocksMessage, length: usize) -> io::Result<()> {
    match options.fault {
        Some(SocksFault::Hang(at)) if at == message => {
            let _ = client.read(&mut [0]).await;
            Err(io::ErrorKind::TimedOut.into())
        }
        Some(SocksFault::Close(at)) if at == message => Err(io::ErrorKind::ConnectionAborted.into()),
        Some(SocksFault::Garbage(at)) if at == message => {
            client.write_all(&vec![0; length]).await?;
            Err(io::ErrorKind::InvalidData.into())
        }
        _ => Ok(()),
    }
}
