//! A SOCKS5 proxy between the application and its servers.

use super::Secret;

/// A SOCKS5 proxy (SOCKS5 Support specification).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct ProxyOptions {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) login: Option<(String, Secret)>,
}

impl ProxyOptions {
    /// `proxyHost`, with the default `proxyPort`, 1080.
    pub fn new(host: impl Into<String>) -> Self {
        Self { host: host.into(), port: 1080, login: None }
    }

    /// `proxyPort`. Default 1080.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// `proxyUsername` and `proxyPassword`. By default the proxy is used without authentication.
    pub fn login(mut self, username: impl Into<String>, password: impl Into<Secret>) -> Self {
        self.login = Some((username.into(), password.into()));
        self
    }
}
