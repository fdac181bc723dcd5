//! An address that refuses connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A port of 127.0.0.1 on which nothing listens. No other socket gets it until the value is dropped.
#[derive(Debug)]
pub struct Refusing(TcpSocket);

impl Refusing {
    /// Reserves a port.
    ///
    /// # Errors
    ///
    /// Returns the error of the system, for example if it has no port left.
    pub fn new() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        Ok(Self(socket))
    }

    /// Returns the address.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("the socket is bound")
    }
}
