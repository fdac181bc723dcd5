//! The last step of reading a connection string, which combines the options that depend on each other.

use super::super::{Credential, InvalidOption, Mechanism, Options, ProxyOptions, Secret, UriWarning};
use super::Reader;
use super::draft::Draft;
use crate::endpoint::options::Compressor;

/// The default `SERVICE_NAME` for Kerberos.
const KERBEROS_SERVICE: &str = "mongodb";

impl Draft {
    /// Combines the values that depend on each other.
    pub fn finish(mut self, reader: &mut Reader) -> Result<Options, InvalidOption> {
        #[cfg(not(feature = "ocsp"))]
        self.check_responders();
        self.options.tls = self.tls_is_on(reader).then(|| self.tls.clone());
        self.options.proxy = self.proxy()?;
        self.options.credential = self.credential(reader);
        self.set_zlib_level();
        Ok(self.options)
    }

    /// Logs that responders are not asked. The specification's tests do not allow the parser to warn about this option.
    #[cfg(not(feature = "ocsp"))]
    fn check_responders(&self) {
        if self.given.contains(&"tlsDisableOCSPEndpointCheck") && !self.tls.disable_ocsp_endpoint_check {
            tracing::warn!(
                target: "wharf::options",
                "tlsDisableOCSPEndpointCheck=false has no effect, because wharf was built without the feature ocsp"
            );
        }
    }

    fn tls_is_on(&self, reader: &mut Reader) -> bool {
        let detail = self.given.iter().copied().find(|option| option.starts_with("tls") && *option != "tls");
        match (self.tls_is_on, detail) {
            (Some(false), Some(option)) => {
                reader.warn(UriWarning::NoEffect { option, reason: "tls is false" });
                false
            }
            (Some(is_on), _) => is_on,
            (None, detail) => detail.is_some() || self.options.srv.is_some(),
        }
    }

    fn proxy(&mut self) -> Result<Option<ProxyOptions>, InvalidOption> {
        let login = match (self.proxy_username.take(), self.proxy_password.take()) {
            (None, None) => None,
            (Some(name), Some(password)) => Some((name, password)),
            (Some(_), None) => {
                return Err(InvalidOption::missing("proxyPassword", "with proxyUsername"));
            }
            (None, Some(_)) => {
                return Err(InvalidOption::missing("proxyUsername", "with proxyPassword"));
            }
        };
        let Some(host) = self.proxy_host.take() else {
            return match self.given.iter().find(|option| option.starts_with("proxy") && **option != "proxyHost") {
                Some(option) if login.is_some() || self.proxy_port.is_some() => {
                    Err(InvalidOption::missing("proxyHost", format!("with {option}")))
                }
                _ => Ok(None),
            };
        };
        let mut proxy = ProxyOptions::new(host);
        proxy.port = self.proxy_port.unwrap_or(proxy.port);
        proxy.login = login;
        Ok(Some(proxy))
    }

    /// Returns the credential. Only a user or a mechanism causes authentication, not a database or a source.
    fn credential(&mut self, reader: &mut Reader) -> Option<Credential> {
        let user = self.user.take();
        let mut properties = std::mem::take(&mut self.mechanism_properties);
        if user.is_none() && self.mechanism.is_none() {
            if !properties.is_empty() {
                let reason = "neither a user nor authMechanism is given";
                reader.warn(UriWarning::NoEffect { option: "authMechanismProperties", reason });
            }
            return None;
        }
        let has_service = properties.iter().any(|(name, _)| name.eq_ignore_ascii_case("SERVICE_NAME"));
        if self.mechanism == Some(Mechanism::Gssapi) && !has_service {
            properties.push(("SERVICE_NAME".to_owned(), Secret::new(KERBEROS_SERVICE)));
        }
        let (username, password) = user.unwrap_or_default();
        Some(Credential {
            username: Some(username).filter(|name| !name.is_empty()),
            password,
            source: self.options.auth_source.clone(),
            mechanism: self.mechanism,
            mechanism_properties: properties,
            ..Credential::default()
        })
    }

    /// Sets zlib's compression level. Without zlib, the level has no effect. The specification says not to warn about
    /// that (OP_COMPRESSED, "zlibCompressionLevel").
    fn set_zlib_level(&mut self) {
        let Some(given) = self.zlib_level else { return };
        for compressor in &mut self.options.compressors {
            if let Compressor::Zlib { level } = compressor {
                *level = given;
            }
        }
    }
}
