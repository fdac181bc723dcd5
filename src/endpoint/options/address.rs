//! Server addresses, in connection string notation.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;

use super::InvalidOption;
use crate::text::printable::is_unprintable;

/// The port of a server whose address has no port.
const DEFAULT_PORT: u16 = 27017;

/// The longest host, in bytes. A DNS name has at most 253 bytes.
const LONGEST_HOST: usize = 255;

/// The suffix of a Unix domain socket's path.
const SOCKET: &str = ".sock";

/// A server's address.
///
/// ```
/// use wharf::{Host, ServerAddress};
///
/// let address = ServerAddress::parse("DB.example.com")?;
/// assert_eq!(address.as_str(), "db.example.com:27017");
/// assert_eq!(address.host(), &Host::Tcp { name: "db.example.com".into(), port: 27017 });
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// Where the server listens.
    pub(crate) host: Host,
    /// The address as a single string, for events and errors.
    pub(crate) text: Arc<str>,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Host {
    /// On a TCP port.
    Tcp {
        /// A name in lower case, or an IP address without brackets. An IPv6 address may have a zone, as in
        /// `fe80::1%eth0`.
        name: String,
        /// The port, never 0.
        port: u16,
    },
    /// On a Unix domain socket.
    Unix {
        /// The path of the socket.
        path: PathBuf,
    },
}

impl ServerAddress {
    /// Reads `host`, `host:port`, `[IPv6]`, `[IPv6]:port`, or the path of a Unix domain socket, which contains a slash
    /// and ends in `.sock`. The port is 27017 by default.
    ///
    /// A link-local IPv6 address names its interface in a zone: `[fe80::1%eth0]`. In a connection string the percent
    /// sign is encoded: `mongodb://[fe80::1%25eth0]`.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the address is malformed. The error states which forms are allowed.
    pub fn parse(address: &str) -> Result<Self, InvalidOption> {
        Self::read(address).map_err(|allowed| Self::refuse(address, allowed))
    }

    /// Returns the error for an invalid address.
    pub(crate) fn refuse(address: &str, allowed: &str) -> InvalidOption {
        // A pasted connection string may hold a password, so the error does not repeat it.
        let shown = if is_connection_string(address) { "(a connection string)" } else { address };
        InvalidOption::new("the server's address", allowed, format!("{shown:?}"))
    }

    /// Like [`parse`](Self::parse). The error states what is allowed.
    pub(crate) fn read(address: &str) -> Result<Self, &'static str> {
        if is_connection_string(address) {
            return Err("host or host:port of one server; Options::parse reads connection strings");
        }
        if address.contains('/') && address.ends_with(SOCKET) && !address.contains('\0') {
            return Ok(Self { host: Host::Unix { path: address.into() }, text: address.into() });
        }
        let (host, port) = match address.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or("[IPv6] or [IPv6]:port, with its bracket closed")?;
                let (bare, zone) = split_zone(host);
                bare.parse::<Ipv6Addr>().map_err(|_| "an IPv6 address in its brackets")?;
                if !zone.is_none_or(is_zone) {
                    return Err(
                        "an IPv6 address in its brackets, whose zone has letters, digits and -._~ only, as in \
                         [fe80::1%eth0]",
                    );
                }
                let port = match port {
                    "" => None,
                    port => Some(port.strip_prefix(':').ok_or("[IPv6] or [IPv6]:port")?),
                };
                (host, port)
            }
            None => match address.split_once(':') {
                None => (address, None),
                Some((_, port)) if port.contains(':') => return Err("an IPv6 address in square brackets"),
                Some((host, port)) => (host, Some(port)),
            },
        };
        let (bare, zone) = split_zone(host);
        let is_bracketed = address.starts_with('[');
        if bare.is_empty()
            || host.len() > LONGEST_HOST
            || zone.is_some() && !is_bracketed
            || bare.contains(|char: char| char.is_whitespace() || is_unprintable(char) || "/?#],".contains(char))
        {
            return Err("host or host:port, where host is a name or an IP address, or a socket's path ending in .sock");
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => match digits.parse() {
                Ok(port) if port != 0 => port,
                _ => return Err("host or host:port, where port is 1 to 65535"),
            },
            Some(_) => return Err("host or host:port, where port is 1 to 65535"),
        };
        // Interface names are case-sensitive.
        let host = match zone {
            None => bare.to_lowercase(),
            Some(zone) => format!("{}%{zone}", bare.to_lowercase()),
        };
        Ok(Self::tcp(host, port))
    }

    /// Creates the address of a server on a TCP port. The name must be in lower case, and an IPv6 address must have no
    /// brackets.
    pub(crate) fn tcp(name: String, port: u16) -> Self {
        let text = if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") };
        Self { host: Host::Tcp { name, port }, text: text.into() }
    }

    /// Returns where the server listens.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the address as a single string: `host:port`, with an IPv6 address in brackets, or the path of a socket.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_connection_string(address: &str) -> bool {
    address.contains("://") || address.contains('@')
}

/// Splits an IP address into the address proper and its zone (RFC 4007, section 11).
pub(crate) fn split_zone(name: &str) -> (&str, Option<&str>) {
    match name.split_once('%') {
        Some((bare, zone)) => (bare, Some(zone)),
        None => (name, None),
    }
}

/// Returns whether `zone` can be a zone: the number or name of an interface (RFC 6874, `unreserved`).
fn is_zone(zone: &str) -> bool {
    !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_a_host_and_an_optional_port() {
        let addresses = [
            ("localhost", "localhost", 27017, "localhost:27017"),
            ("DB.Example.com:1", "db.example.com", 1, "db.example.com:1"),
            ("127.0.0.1:65535", "127.0.0.1", 65535, "127.0.0.1:65535"),
            ("[::1]", "::1", 27017, "[::1]:27017"),
            ("[FE80::1]:27018", "fe80::1", 27018, "[fe80::1]:27018"),
            ("[FE80::1%Eth0.1]:27018", "fe80::1%Eth0.1", 27018, "[fe80::1%Eth0.1]:27018"),
            ("[fe80::1%2]", "fe80::1%2", 27017, "[fe80::1%2]:27017"),
        ];
        for (address, host, port, text) in addresses {
            let expected = ServerAddress { host: Host::Tcp { name: host.into(), port }, text: text.into() };
            assert_eq!(ServerAddress::parse(address), Ok(expected));
        }
    }

    #[test]
    fn path_that_ends_in_sock_is_a_socket() {
        for path in ["/run/MongoDB-27017.sock", "run/mongodb.sock", "/a b/:1,2.sock"] {
            let address = ServerAddress::parse(path).unwrap();
            assert_eq!(address.host(), &Host::Unix { path: path.into() });
            assert_eq!((address.as_str(), address.to_string().as_str()), (path, path));
        }
        let name = ServerAddress::parse("mongodb.sock").unwrap();
        assert_eq!(name.host(), &Host::Tcp { name: "mongodb.sock".into(), port: 27017 });
        assert!(ServerAddress::parse("/run/\0.sock").is_err());
    }

    #[test]
    fn host_that_errors_cannot_show_is_refused() {
        for host in ["a\u{1b}[2J", "a\u{202e}b", "a\u{0}", "a\u{200b}", &"a".repeat(256)] {
            assert!(ServerAddress::parse(host).is_err(), "{host:?}");
        }
        assert!(ServerAddress::parse(&"a".repeat(255)).is_ok());
    }

    #[test]
    fn connection_string_is_refused_and_not_repeated() {
        for address in ["mongodb://user:secret@host", "user:secret@host", "mongodb://host"] {
            let error = ServerAddress::parse(address).unwrap_err().to_string();
            assert!(error.contains("Options::parse"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn invalid_address_is_refused_with_what_is_allowed() {
        let refusals = [
            ("", "host or host:port, where host is a name or an IP address, or a socket's path ending in .sock"),
            (":27017", "host or host:port, where host is a name or an IP address, or a socket's path ending in .sock"),
            (
                "/run/mongodb.socket",
                "host or host:port, where host is a name or an IP address, or a socket's path ending in .sock",
            ),
            (
                "host,host2",
                "host or host:port, where host is a name or an IP address, or a socket's path ending in .sock",
            ),
            ("host:", "host or host:port, where port is 1 to 65535"),
            ("host:0", "host or host:port, where port is 1 to 65535"),
            ("host:65536", "host or host:port, where port is 1 to 65535"),
            ("host:+1", "host or host:port, where port is 1 to 65535"),
            ("::1", "an IPv6 address in square brackets"),
            ("[::1", "[IPv6] or [IPv6]:port, with its bracket closed"),
            ("[::1]1", "[IPv6] or [IPv6]:port"),
            ("[host]:1", "an IPv6 address in its brackets"),
            ("[%eth0]:1", "an IPv6 address in its brackets"),
            (
                "[fe80::1%]",
                "an IPv6 address in its brackets, whose zone has letters, digits and -._~ only, as in [fe80::1%eth0]",
            ),
            (
                "[fe80::1%a%b]",
                "an IPv6 address in its brackets, whose zone has letters, digits and -._~ only, as in [fe80::1%eth0]",
            ),
            (
                "fe80%eth0",
                "host or host:port, where host is a name or an IP address, or a socket's path ending in .sock",
            ),
        ];
        for (address, allowed) in refusals {
            let error = ServerAddress::parse(address).unwrap_err();
            assert_eq!(error.to_string(), format!("the server's address must be {allowed}, got {address:?}"));
        }
    }
}
