//! Validation of options, from code and from connection strings.
//!
//! Reading a connection string checks each option on its own, because the specification requires that an invalid value
//! be ignored with a warning. Then all options are checked together, and a contradiction makes the connection string
//! invalid.

use std::time::Duration;

use crate::text::milliseconds::Milliseconds;

use super::{Credential, InvalidOption, Mechanism, Options};

/// The longest `appName` in bytes (handshake specification, "Limitations").
const MAX_APP_NAME: usize = 128;

/// `minHeartbeatFrequencyMS`: the shortest `heartbeatFrequencyMS`, and the shortest time between two checks of a server
/// (Server Discovery and Monitoring specification).
pub(crate) const SHORTEST_HEARTBEAT: Duration = Duration::from_millis(500);

/// The longest [`Options::busy_poll`]. A longer poll would only waste CPU time.
const LONGEST_BUSY_POLL: Duration = Duration::from_millis(10);

impl Options {
    /// Checks that the options are valid, each on its own and all of them together.
    ///
    /// Valid options may still be refused when they are [resolved](Options::resolve), because of what DNS returns.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first option that is invalid, its value and what is allowed.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        #[cfg(not(feature = "tls"))]
        // Without the `srv` feature, the error for an SRV name comes first, although SRV names turn TLS on.
        if self.tls.is_some() && (self.srv.is_none() || cfg!(feature = "srv")) {
            return Err(super::tls::without_feature());
        }
        self.check()?;
        self.check_hosts()?;
        self.check_load_balancing()?;
        if self.srv.as_ref().is_some_and(|srv| srv.max_hosts > 0) && self.replica_set.is_some() {
            return Err(InvalidOption::conflict("srvMaxHosts", "replicaSet"));
        }
        self.read_preference.check_together()?;
        self.write_concern.check_together()?;
        self.pool.check_together()?;
        self.credential.as_ref().map_or(Ok(()), |credential| credential.validate())
    }

    /// Refuses values that are invalid regardless of the other options.
    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        if let Some(name) = self.app_name.as_ref().filter(|name| name.len() > MAX_APP_NAME) {
            let must = format!("at most {MAX_APP_NAME} bytes");
            return Err(InvalidOption::new("appName", must, format!("{} bytes", name.len())));
        }
        let refuse_text = |option| Err(InvalidOption::because(option, "must not be empty"));
        if self.replica_set.as_deref() == Some("") {
            return refuse_text("replicaSet");
        }
        if self.read_concern.as_deref() == Some("") {
            return refuse_text("readConcernLevel");
        }
        if self.auth_source.as_deref() == Some("") {
            return refuse_text("authSource");
        }
        if self.heartbeat_interval() < SHORTEST_HEARTBEAT {
            let value = Milliseconds(self.heartbeat_interval()).to_string();
            return Err(InvalidOption::new("heartbeatFrequencyMS", "at least 500 ms", value));
        }
        if self.busy_poll > LONGEST_BUSY_POLL {
            return Err(InvalidOption::new("busyPoll", "at most 10 ms", Milliseconds(self.busy_poll).to_string()));
        }
        if self.server_selection_timeout.is_zero() {
            return Err(InvalidOption::because("serverSelectionTimeoutMS", "must be longer than zero"));
        }
        if let Some(name) = &self.default_database {
            check_database(name)?;
        }
        self.srv.as_ref().map_or(Ok(()), |srv| srv.check())?;
        self.proxy.as_ref().map_or(Ok(()), |proxy| proxy.check())?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check())?;
        self.compressors.iter().try_for_each(|compressor| compressor.check())?;
        self.read_preference.check()?;
        self.write_concern.check()?;
        self.pool.refuse_check()?;
        self.pool.check()
    }

    /// Refuses options whose SRV name has not been resolved.
    pub(crate) fn check_resolved(&self) -> Result<(), InvalidOption> {
        match &self.srv {
            Some(name) if self.hosts.is_empty() => Err(InvalidOption::because(
                "hosts",
                format!("must be resolved from the SRV name {:?} first: call Options::resolve", name.host),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses a credential whose proof is the client's certificate, if connections would not present a certificate.
    ///
    /// Parsing does not check this, because the specification's test cases require parsing to succeed.
    pub(crate) fn check_certificate(&self) -> Result<(), InvalidOption> {
        let Some(Credential { mechanism: Some(Mechanism::MongoDbX509), .. }) = &self.credential else { return Ok(()) };
        let name = Mechanism::MongoDbX509.name();
        match &self.tls {
            None => Err(InvalidOption::because("tls", format!("must be true with authMechanism={name}"))),
            Some(tls) if tls.has_client_certificate() => Ok(()),
            Some(_) => Err(InvalidOption::missing("tlsCertificateKeyFile", format!("with authMechanism={name}"))),
        }
    }

    fn check_hosts(&self) -> Result<(), InvalidOption> {
        if self.hosts.is_empty() && self.srv.is_none() {
            return Err(InvalidOption::because("hosts", "must name at least one host"));
        }
        if self.direct_connection != Some(true) {
            return Ok(());
        }
        if self.srv.is_some() {
            return Err(InvalidOption::because("directConnection", "cannot be true with mongodb+srv://"));
        }
        match self.hosts.len() {
            1 => Ok(()),
            hosts => Err(InvalidOption::because("directConnection", format!("cannot be true with {hosts} hosts"))),
        }
    }

    fn check_load_balancing(&self) -> Result<(), InvalidOption> {
        if !self.is_load_balanced() {
            return Ok(());
        }
        if self.load_balanced == Some(false) {
            return Err(InvalidOption::because("loadBalanced", "cannot be false if the pool's options say true"));
        }
        let refuse = |other: &str| Err(InvalidOption::because("loadBalanced", format!("cannot be true with {other}")));
        if self.hosts.len() > 1 {
            return refuse(&format!("{} hosts", self.hosts.len()));
        }
        if self.replica_set.is_some() {
            return refuse("replicaSet");
        }
        if self.direct_connection == Some(true) {
            return refuse("directConnection=true");
        }
        match self.srv.as_ref().map_or(0, |srv| srv.max_hosts) {
            0 => Ok(()),
            hosts => refuse(&format!("srvMaxHosts={hosts}")),
        }
    }
}

/// Refuses an invalid database name (connection string specification, "Auth Database"). The error does not repeat the
/// name, which may be part of a password.
fn check_database(name: &str) -> Result<(), InvalidOption> {
    match name.chars().find(|char| "/\\ \"$".contains(*char)) {
        _ if name.is_empty() => Err(InvalidOption::because("database", "must not be empty")),
        Some(char) => {
            Err(InvalidOption::new("database", "a name without / \\ \" $ and spaces", format!("one with {char:?}")))
        }
        None => Ok(()),
    }
}
