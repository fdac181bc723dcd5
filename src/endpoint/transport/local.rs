//! Failures of this process or machine, which say nothing about a server.

use std::io;

/// Returns why this process or machine cannot connect: an exhausted limit, or an address that is unreachable from here.
/// Returns `None` if the error may come from the network or the server.
///
/// An overloaded server cannot cause these errors, so they do not carry the labels that mark a server as overloaded
/// (CMAP, "Backpressure-enabled").
pub(super) fn obstacle(error: &io::Error) -> Option<&'static str> {
    #[cfg(unix)]
    return match error.raw_os_error()? {
        libc::EMFILE => {
            Some("this process has reached its limit of open files: raise the limit (ulimit -n) or lower maxPoolSize")
        }
        libc::ENFILE => Some("this machine has reached its limit of open files"),
        libc::EADDRNOTAVAIL => Some("this machine has no free port left, or no local address, to connect from"),
        libc::ENOBUFS | libc::ENOMEM => Some("this machine has no memory left for the connection"),
        libc::EINVAL => Some("this machine cannot connect to such an address"),
        libc::EACCES | libc::EPERM => {
            Some("this process is not permitted to connect: check the machine's firewall or the socket's permissions")
        }
        libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT => Some("this machine does not support this kind of address"),
        _ => None,
    };
    #[cfg(not(unix))]
    match error.kind() {
        _ if error.raw_os_error().is_none() => None,
        io::ErrorKind::AddrNotAvailable => {
            Some("this machine has no free port left, or no local address, to connect from")
        }
        io::ErrorKind::OutOfMemory => Some("this machine has no memory left for the connection"),
        io::ErrorKind::PermissionDenied => {
            Some("this process is not permitted to connect: check the machine's firewall")
        }
        io::ErrorKind::InvalidInput => Some("this machine cannot connect to such an address"),
        _ => None,
    }
}
