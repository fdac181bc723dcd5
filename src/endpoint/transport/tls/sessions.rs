//! The TLS sessions that later connections resume.

use tokio_rustls::rustls::NamedGroup;
use tokio_rustls::rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use tokio_rustls::rustls::pki_types::ServerName;

use crate::pool::runtime::PerProcess;

/// The maximum number of servers whose sessions are kept. This is rustls's default.
const MOST_SERVERS: usize = 256;

/// This process's sessions, in rustls's own store. The store has a lock, which a forked child might find held by a
/// thread that exists only in the parent. The child therefore starts without sessions.
#[derive(Debug, Default)]
pub(super) struct Sessions(PerProcess<Store>);

#[derive(Debug)]
struct Store(ClientSessionMemoryCache);

impl Default for Store {
    fn default() -> Self {
        Self(ClientSessionMemoryCache::new(MOST_SERVERS))
    }
}

impl Sessions {
    /// Forgets the sessions with this server.
    #[cfg(feature = "ocsp")]
    pub fn forget(&self, server_name: &ServerName<'static>) {
        self.remove_tls12_session(server_name);
        while self.take_tls13_ticket(server_name).is_some() {}
    }
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.0.get().0.set_kx_hint(server_name, group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.0.get().0.kx_hint(server_name)
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.0.get().0.set_tls12_session(server_name, value);
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.0.get().0.tls12_session(server_name)
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.0.get().0.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(&self, server_name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.0.get().0.insert_tls13_ticket(server_name, value);
    }

    fn take_tls13_ticket(&self, server_name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.0.get().0.take_tls13_ticket(server_name)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::pool::runtime::in_child;

    #[test]
    fn forked_child_begins_with_its_own_store() {
        let sessions = Sessions::default();
        let name = ServerName::try_from("localhost").unwrap();
        sessions.set_kx_hint(name.clone(), NamedGroup::X25519);
        let child = || {
            if sessions.kx_hint(&name).is_some() {
                return Err(1);
            }
            sessions.set_kx_hint(name.clone(), NamedGroup::secp256r1);
            sessions.kx_hint(&name).map(drop).ok_or(2)
        };
        assert_eq!(in_child(child), 0);
        assert_eq!(sessions.kx_hint(&name), Some(NamedGroup::X25519));
    }
}
