//! Failures of this process or machine, which say nothing about a server.

use std::io;

/// What keeps this process or machine from connecting, if it is that which failed: a limit that is reached, or an address
/// that cannot be reached from here. `None` if the error may come from the network or the server.
///
/// No overload of a server can cause these errors, so they get no label of one (CMAP, "Backpressure-enabled").
pub(super) fn obstacle(error: &io::Error) -> Option<&'static str> {
    #[cfg(unix)]
    return match error.raw_os_error()? {
        libc::EMFILE => Some(
            "this process has as many files open as its limit allows: raise the limit (ulimit -n) or lower maxPoolSize",
        ),
        libc::ENFILE => Some("this machine has as many files open as its limit allows"),
        libc::EADDRNOTAVAIL => Some("this machine has no free port left, or no address of its own, to reach it from"),
        libc::ENOBUFS | libc::ENOMEM => Some("this machine has no memory left for the connection"),
        libc::EINVAL => Some("this machine cannot connect to such an address"),
        libc::EACCES | libc::EPERM => {
            Some("this process may not connect there: look at the machine's firewall or the socket's permissions")
        }
        libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT => Some("this machine does not support that kind of address"),
        _ => None,
    };
    #[cfg(not(unix))]
    match error.kind() {
        _ if error.raw_os_error().is_none() => None,
        io::ErrorKind::AddrNotAvailable => {
            Some("this machine has no free port left, or no address of its own, to reach it from")
        }
        io::ErrorKind::OutOfMemory => Some("this machine has no memory left for the connection"),
        io::ErrorKind::PermissionDenied => Some("this process may not connect there: look at the machine's firewall"),
        io::ErrorKind::InvalidInput => Some("this machine cannot connect to such an address"),
        _ => None,
    }
}
