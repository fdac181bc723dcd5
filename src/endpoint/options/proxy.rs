//! A SOCKS5 proxy between the application and its servers.

use super::{InvalidOption, Secret};

/// The longest string whose length fits in one byte (RFC 1928 for names, RFC 1929 for the login).
const LONGEST: usize = 255;

/// A SOCKS5 proxy (SOCKS5 Support specification).
///
/// ```
/// use wharf::{Options, ProxyOptions};
///
/// let proxy = ProxyOptions::new("proxy.example.com").port(1081).login("ada", "secret");
/// let options = Options::new(["db.example.com"])?.proxy(proxy);
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct ProxyOptions {
    /// `proxyHost`: the proxy's name or IP address. An IPv6 address has no brackets.
    pub host: String,
    /// `proxyPort`, never 0. Default 1080.
    pub port: u16,
    /// `proxyUsername` and `proxyPassword`, of 1 to 255 bytes each. By default the proxy is used without
    /// authentication.
    pub login: Option<(String, Secret)>,
}

impl ProxyOptions {
    /// Creates the options of a proxy on the default port, 1080.
    pub fn new(host: impl Into<String>) -> Self {
        Self { host: host.into(), port: 1080, login: None }
    }

    /// Sets [`port`](Self#structfield.port).
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets [`login`](Self#structfield.login). If both strings are empty, there is no login, as in a connection string.
    pub fn login(mut self, username: impl Into<String>, password: impl Into<Secret>) -> Self {
        let (username, password) = (username.into(), password.into());
        self.login =
            if username.is_empty() && password.reveal().is_empty() { None } else { Some((username, password)) };
        self
    }

    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        let fits = |text: &str| (1..=LONGEST).contains(&text.len());
        let refuse = |option, value: String| Err(InvalidOption::new(option, format!("1 to {LONGEST} bytes"), value));
        // The value may be a URL with a password, so the error does not repeat it.
        if self.host.contains(|char: char| char.is_whitespace() || char.is_control() || "/?#@%[]".contains(char)) {
            return Err(InvalidOption::because("proxyHost", "must be a name or an IP address alone"));
        }
        if !fits(&self.host) {
            return refuse("proxyHost", format!("{} bytes", self.host.len()));
        }
        if self.port == 0 {
            return Err(InvalidOption::new("proxyPort", "1 to 65535", "0"));
        }
        match &self.login {
            Some((name, _)) if !fits(name) => refuse("proxyUsername", format!("{} bytes", name.len())),
            Some((_, password)) if !fits(password.reveal()) => {
                refuse("proxyPassword", format!("{} bytes", password.reveal().len()))
            }
            _ => Ok(()),
        }
    }
}
