//! The options of a connection string that is being read, with the values that depend on other options.

use std::collections::BTreeMap;

use super::super::{
    Compressor, Credential, InvalidOption, Mechanism, Options, Secret, SrvName, TlsOptions, UriWarning,
};
use super::text::decode;
use super::value::Value;

/// The pairs of options that cannot be combined, because each says how strictly TLS is checked.
const EXCLUSIVE: [(&str, &str); 7] = [
    ("tlsInsecure", "tlsAllowInvalidCertificates"),
    ("tlsInsecure", "tlsAllowInvalidHostnames"),
    ("tlsInsecure", "tlsDisableOCSPEndpointCheck"),
    ("tlsInsecure", "tlsDisableCertificateRevocationCheck"),
    ("tlsAllowInvalidCertificates", "tlsDisableOCSPEndpointCheck"),
    ("tlsAllowInvalidCertificates", "tlsDisableCertificateRevocationCheck"),
    ("tlsDisableOCSPEndpointCheck", "tlsDisableCertificateRevocationCheck"),
];

/// Why an option was not set.
pub(super) enum Rejection {
    /// The value is not allowed. The option is treated as if it had not been given, unless it protects the connection.
    NotAllowed,
    /// The value cannot be percent-decoded. The consequences are the same as for [`NotAllowed`](Self::NotAllowed).
    NotDecoded,
    /// Continuing without the option is unsafe, or the specification forbids it.
    Fatal(InvalidOption),
}

/// Options that are being read.
#[derive(Clone)]
pub(super) struct Draft {
    pub options: Options,
    /// The options that were given, whether or not their values were allowed.
    pub given: Vec<&'static str>,
    /// The user's name, which may be empty, and the password.
    pub user: Option<(String, Option<Secret>)>,
    pub tls_is_on: Option<bool>,
    pub tls: TlsOptions,
    pub proxy_host: Option<String>,
    pub proxy_port: Option<u16>,
    pub proxy_username: Option<String>,
    pub proxy_password: Option<Secret>,
    pub zlib_level: Option<i32>,
    pub mechanism: Option<Mechanism>,
    pub mechanism_properties: Vec<(String, Secret)>,
}

/// Stores a value that was read.
pub(super) fn put<T>(place: &mut T, value: Result<T, Rejection>) -> Result<(), Rejection> {
    *place = value?;
    Ok(())
}

impl Draft {
    pub fn of(options: Options) -> Self {
        Self {
            options,
            given: Vec::new(),
            user: None,
            tls_is_on: None,
            tls: TlsOptions::default(),
            proxy_host: None,
            proxy_port: None,
            proxy_username: None,
            proxy_password: None,
            zlib_level: None,
            mechanism: None,
            mechanism_properties: Vec::new(),
        }
    }

    /// Refuses options that cannot be combined.
    pub fn refuse_exclusive(is_given: impl Fn(&str) -> bool) -> Result<(), InvalidOption> {
        match EXCLUSIVE.into_iter().find(|(one, other)| is_given(one) && is_given(other)) {
            Some((one, other)) => Err(InvalidOption::conflict(one, other)),
            None => Ok(()),
        }
    }

    pub fn set_tls(&mut self, value: Value<'_>) -> Result<(), Rejection> {
        let is_on = value.flag()?;
        if self.tls_is_on.is_some_and(|other| other != is_on) {
            let problem = "must be the same wherever tls or ssl is given";
            return Err(Rejection::Fatal(InvalidOption::because("tls", problem)));
        }
        self.tls_is_on = Some(is_on);
        Ok(())
    }

    pub fn set_w_timeout(&mut self, value: Value<'_>) -> Result<(), Rejection> {
        put(&mut self.options.write_concern.w_timeout, value.millis(i64::MAX.unsigned_abs()).map(Some))
    }

    pub fn set_compressors(&mut self, value: Value<'_>) -> Result<(), Rejection> {
        let mut compressors = Vec::new();
        for name in value.text.split(',') {
            match Compressor::named(name).filter(|compressor| compressor.is_supported()) {
                Some(compressor) if compressors.contains(&compressor) => {}
                Some(compressor) => compressors.push(compressor),
                None => {
                    let text = value.reader.shown_value(name);
                    let error = InvalidOption::new(value.option, Compressor::available(), text);
                    value.reader.ignore(error).map_err(Rejection::Fatal)?;
                }
            }
        }
        self.options.compressors = compressors;
        Ok(())
    }

    /// Returns the SRV name, which `option` requires.
    pub fn srv(&mut self, option: &'static str) -> Result<&mut SrvName, Rejection> {
        let refuse = || Rejection::Fatal(InvalidOption::because(option, "requires mongodb+srv://"));
        self.options.srv.as_mut().ok_or_else(refuse)
    }

    pub fn add_tag_set(&mut self, value: Value<'_>) -> Result<(), Rejection> {
        let mut tags = BTreeMap::new();
        for pair in value.text.split(',').filter(|_| !value.text.is_empty()) {
            let pair = decode(pair).ok_or(Rejection::NotAllowed)?;
            let (name, value) =
                pair.split_once(':').filter(|(name, _)| !name.is_empty()).ok_or(Rejection::NotAllowed)?;
            tags.insert(name.to_owned(), value.to_owned());
        }
        self.options.read_preference.tag_sets.push(tags);
        Ok(())
    }

    /// Sets the properties of a mechanism.
    ///
    /// The value is split at commas before it is decoded, so that an encoded comma cannot introduce another property.
    pub fn set_mechanism_properties(&mut self, value: Value<'_>) -> Result<(), Rejection> {
        let mut properties: Vec<(String, Secret)> = Vec::new();
        for pair in value.text.split(',') {
            let (name, secret) =
                pair.split_once(':').filter(|(name, _)| !name.is_empty()).ok_or(Rejection::NotAllowed)?;
            let name = decode(name).ok_or(Rejection::NotAllowed)?;
            let secret = Secret::new(decode(secret).ok_or(Rejection::NotAllowed)?);
            if secret.reveal().contains(',') {
                let shown = value.reader.shows_values;
                let property = if shown { Credential::shown_property(&name) } else { "(not shown)" };
                value.reader.warn(UriWarning::CommaInProperty { property: property.to_owned() });
            }
            properties.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
            properties.push((name, secret));
        }
        self.mechanism_properties = properties;
        Ok(())
    }
}
