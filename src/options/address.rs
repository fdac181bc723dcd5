//! A server's address, as connection strings write it.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

/// The port of a server whose address names none.
const DEFAULT_PORT: u16 = 27017;

/// A server's address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// Where the server listens.
    pub(crate) host: Host,
    /// The address in one piece, as events and errors show it.
    pub(crate) text: Arc<str>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Host {
    /// At a port of TCP.
    Tcp {
        /// A name in lower case, or an IP address without brackets.
        name: String,
        /// The port, never 0.
        port: u16,
    },
    /// At a Unix domain socket.
    Unix {
        /// The path of the socket.
        path: PathBuf,
    },
}

impl ServerAddress {
    /// Reads `host`, `host:port`, `[IPv6]` or `[IPv6]:port`.
    pub fn parse(address: &str) -> Result<Self, InvalidAddress> {
        // Pasted connection strings may hold a password, so what looks like one is not repeated.
        if address.contains("://") || address.contains('@') {
            let allowed = "host or host:port of one server; connection strings are not supported yet";
            return Err(InvalidAddress { address: "(a connection string)".to_owned(), allowed });
        }
        let refuse = |allowed| InvalidAddress { address: address.to_owned(), allowed };
        let (host, port, bracketed) = match address.strip_prefix('[') {
            Some(rest) => {
                let (host, port) =
                    rest.split_once(']').ok_or(refuse("[IPv6] or [IPv6]:port, with its bracket closed"))?;
                host.parse::<Ipv6Addr>().map_err(|_| refuse("an IPv6 address in its brackets"))?;
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':').ok_or(refuse("[IPv6] or [IPv6]:port"))?),
                };
                (host, port, true)
            }
            None => match address.split_once(':') {
                None => (address, None, false),
                Some((_, port)) if port.contains(':') => return Err(refuse("an IPv6 address in square brackets")),
                Some((host, port)) => (host, Some(port), false),
            },
        };
        if host.is_empty() || host.contains(|char: char| char.is_whitespace() || "/?#%],\0".contains(char)) {
            return Err(refuse("host or host:port, where host is a name or an IP address"));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => match digits.parse() {
                Ok(port) if port != 0 => port,
                _ => return Err(refuse("host or host:port, where port is 1 to 65535")),
            },
            Some(_) => return Err(refuse("host or host:port, where port is 1 to 65535")),
        };
        let host = host.to_lowercase();
        let text = if bracketed { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Ok(Self { host: Host::Tcp { name: host, port }, text: text.into() })
    }
}

/// A server's address is not of the form that it must have.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the server's address is {address:?}, but must be {allowed}")]
pub struct InvalidAddress {
    /// The address that was given.
    pub address: String,
    /// What would have been accepted.
    pub allowed: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_perhaps_a_port() {
        let addresses = [
            ("localhost", "localhost", 27017, "localhost:27017"),
            ("DB.Example.com:1", "db.example.com", 1, "db.example.com:1"),
            ("127.0.0.1:65535", "127.0.0.1", 65535, "127.0.0.1:65535"),
            ("[::1]", "::1", 27017, "[::1]:27017"),
            ("[FE80::1]:27018", "fe80::1", 27018, "[fe80::1]:27018"),
        ];
        for (address, host, port, text) in addresses {
            let expected = ServerAddress { host: Host::Tcp { name: host.into(), port }, text: text.into() };
            assert_eq!(ServerAddress::parse(address), Ok(expected));
        }
    }

    #[test]
    fn a_connection_string_is_refused_without_being_repeated() {
        for address in ["mongodb://user:secret@host", "user:secret@host", "mongodb://host"] {
            let error = ServerAddress::parse(address).unwrap_err().to_string();
            assert!(error.contains("connection strings are not supported yet"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_would_be_accepted() {
        let refusals = [
            ("", "host or host:port, where host is a name or an IP address"),
            (":27017", "host or host:port, where host is a name or an IP address"),
            ("/run/mongodb.sock", "host or host:port, where host is a name or an IP address"),
            ("host,host2", "host or host:port, where host is a name or an IP address"),
            ("host:", "host or host:port, where port is 1 to 65535"),
            ("host:0", "host or host:port, where port is 1 to 65535"),
            ("host:65536", "host or host:port, where port is 1 to 65535"),
            ("host:+1", "host or host:port, where port is 1 to 65535"),
            ("::1", "an IPv6 address in square brackets"),
            ("[::1", "[IPv6] or [IPv6]:port, with its bracket closed"),
            ("[::1]1", "[IPv6] or [IPv6]:port"),
            ("[host]:1", "an IPv6 address in its brackets"),
        ];
        for (address, allowed) in refusals {
            let error = ServerAddress::parse(address).unwrap_err();
            assert_eq!(error.to_string(), format!("the server's address is {address:?}, but must be {allowed}"));
        }
    }
}
