//! Options while a connection string is being read: the values that only mean something together wait here.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::{
    Acknowledgement, Compressor, Credential, InvalidOption, MAX_CONNECTIONS, Mechanism, Options, PoolOptions,
    ReadPreferenceMode, Secret, ServerMonitoringMode, TlsOptions, UriWarning,
};
use super::Reader;
use super::text::decode;

/// All options, as they are written.
pub(super) const NAMES: [&str; 50] = [
    "appName",
    "authMechanism",
    "authMechanismProperties",
    "authSource",
    "compressors",
    "connectTimeoutMS",
    "directConnection",
    "enableOverloadRetargeting",
    "heartbeatFrequencyMS",
    "journal",
    "loadBalanced",
    "localThresholdMS",
    "maxAdaptiveRetries",
    "maxConnecting",
    "maxIdleTimeMS",
    "maxPoolSize",
    "maxStalenessSeconds",
    "minPoolSize",
    "proxyHost",
    "proxyPassword",
    "proxyPort",
    "proxyUsername",
    "readConcernLevel",
    "readPreference",
    "readPreferenceTags",
    "replicaSet",
    "retryReads",
    "retryWrites",
    "serverMonitoringMode",
    "serverSelectionTimeoutMS",
    "serverSelectionTryOnce",
    "socketTimeoutMS",
    "srvAllowedHostsSuffix",
    "srvMaxHosts",
    "srvServiceName",
    "ssl",
    "timeoutMS",
    "tls",
    "tlsAllowInvalidCertificates",
    "tlsAllowInvalidHostnames",
    "tlsCAFile",
    "tlsCertificateKeyFile",
    "tlsCertificateKeyFilePassword",
    "tlsDisableCertificateRevocationCheck",
    "tlsDisableOCSPEndpointCheck",
    "tlsInsecure",
    "w",
    "waitQueueTimeoutMS",
    "wTimeoutMS",
    "zlibCompressionLevel",
];

/// The current name of an option that was renamed, after its old one.
pub(super) fn replacement_of(key: &str) -> Option<(&'static str, &'static str)> {
    const RENAMED: [(&str, &str); 3] =
        [("wtimeout", "wTimeoutMS"), ("j", "journal"), ("gssapiServiceName", "authMechanismProperties")];
    RENAMED.into_iter().find(|(old, _)| old.eq_ignore_ascii_case(key))
}

/// The largest number of an option, where the specification does not give it 64 bits.
const MAX_INT: u64 = i32::MAX.unsigned_abs() as u64;

/// Whether the option's value may hold a secret. The case of the option does not matter.
pub(super) fn is_secret(option: &str) -> bool {
    const SECRET: [&str; 3] = ["authMechanismProperties", "proxyPassword", "tlsCertificateKeyFilePassword"];
    SECRET.iter().any(|secret| secret.eq_ignore_ascii_case(option))
}

/// Whether the connection would be less protected if an invalid value of the option were ignored: in plaintext, with
/// other authorities, without the client's certificate, past the proxy, or with a check that the caller may rely on.
///
/// `tlsInsecure`, `tlsAllowInvalidCertificates` and `tlsAllowInvalidHostnames` are not among them, because the official
/// cases want a warning. Ignoring them is strict enough: the connection is in TLS, and every check stays.
pub(super) fn protects(option: &str) -> bool {
    const PROTECTING: [&str; 8] = [
        "proxyHost",
        "ssl",
        "tls",
        "tlsCAFile",
        "tlsCertificateKeyFile",
        "tlsCertificateKeyFilePassword",
        "tlsDisableCertificateRevocationCheck",
        "tlsDisableOCSPEndpointCheck",
    ];
    PROTECTING.contains(&option)
}

/// Why an option was not set.
pub(super) enum Refusal {
    /// The value is not allowed; the option is as if it had not been given, unless it [`protects`].
    Ignored { allowed: String },
    /// Going on without it is not safe, or the specification forbids it.
    Fatal(InvalidOption),
}

/// Options that are being read.
#[derive(Clone)]
pub(super) struct Draft {
    pub options: Options,
    /// The options that were given, whether or not their values were allowed.
    pub given: Vec<&'static str>,
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

impl Draft {
    pub fn of(options: Options) -> Self {
        Self {
            options,
            given: Vec::new(),
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

    /// Sets one option from its value as it is written.
    pub fn set(&mut self, option: &'static str, value: &str, reader: &mut Reader) -> Result<(), Refusal> {
        match option {
            "readPreferenceTags" => return self.add_tag_set(value),
            "authMechanismProperties" => return self.set_mechanism_properties(value, reader),
            _ => {}
        }
        let text = decode(value).ok_or_else(|| ignored("percent-encoded, in UTF-8"))?;
        let mut flag = || read_flag(option, &text, reader);
        let options = &mut self.options;
        match option {
            "appName" => options.app_name = Some(name(text)?),
            "authMechanism" => self.mechanism = Some(read_mechanism(&text)?),
            "authSource" if text.is_empty() => {
                return Err(fatal("authSource", "empty", "the name of a database"));
            }
            "authSource" => options.auth_source = Some(text),
            "compressors" => self.set_compressors(&text, reader)?,
            "connectTimeoutMS" => options.connect_timeout = read_millis(&text)?,
            "directConnection" => options.direct_connection = Some(flag()?),
            "enableOverloadRetargeting" => options.enable_overload_retargeting = flag()?,
            "heartbeatFrequencyMS" => options.heartbeat_frequency = read_millis(&text)?,
            "journal" | "j" => options.write_concern.journal = Some(flag()?),
            "loadBalanced" => {
                let load_balanced = flag()?;
                options.load_balanced = Some(load_balanced);
                options.pool.load_balanced = load_balanced;
            }
            "localThresholdMS" => options.local_threshold = read_millis(&text)?,
            "maxAdaptiveRetries" => options.max_adaptive_retries = read_count(&text)?,
            "maxConnecting" => {
                options.pool = options.pool.clone().max_connecting(read_count(&text)?);
                check_size(&options.pool, options.pool.max_connecting)?;
            }
            "maxIdleTimeMS" => options.pool = options.pool.clone().max_idle_time(read_millis(&text)?),
            "maxPoolSize" => {
                options.pool = options.pool.clone().max_pool_size(read_count(&text)?);
                check_size(&options.pool, options.pool.max_pool_size)?;
            }
            "maxStalenessSeconds" if text == "-1" => options.read_preference.max_staleness = None,
            "maxStalenessSeconds" => {
                let seconds = read_number(&text, 0, MAX_INT, "-1 (no limit), or at least 90")?;
                options.read_preference.max_staleness = Some(Duration::from_secs(seconds));
            }
            "minPoolSize" => {
                options.pool = options.pool.clone().min_pool_size(read_count(&text)?);
                check_size(&options.pool, options.pool.min_pool_size)?;
            }
            "proxyHost" => self.proxy_host = Some(name(text)?),
            "proxyPassword" => self.proxy_password = Some(Secret::new(text)).filter(|text| !text.reveal().is_empty()),
            "proxyPort" => self.proxy_port = Some(read_number(&text, 1, u16::MAX.into(), "1 to 65535")?),
            "proxyUsername" => self.proxy_username = Some(text).filter(|text| !text.is_empty()),
            "readConcernLevel" => options.read_concern = Some(text),
            "readPreference" => {
                let modes = ReadPreferenceMode::ALL;
                options.read_preference.mode = read_word(&text, &modes, ReadPreferenceMode::name)?;
            }
            "replicaSet" => options.replica_set = Some(text),
            "retryReads" => options.retry_reads = flag()?,
            "retryWrites" => options.retry_writes = flag()?,
            "serverMonitoringMode" => {
                let modes = ServerMonitoringMode::ALL;
                options.server_monitoring_mode = read_word(&text, &modes, ServerMonitoringMode::name)?;
            }
            "serverSelectionTimeoutMS" => options.server_selection_timeout = read_millis(&text)?,
            "serverSelectionTryOnce" => options.server_selection_try_once = flag()?,
            "socketTimeoutMS" => options.socket_timeout = read_millis(&text)?,
            "srvAllowedHostsSuffix" | "srvMaxHosts" | "srvServiceName" => return self.set_srv(option, &text),
            "ssl" | "tls" => {
                let is_on = flag()?;
                if self.tls_is_on.is_some_and(|other| other != is_on) {
                    let allowed = "the same wherever tls or ssl is given";
                    return Err(fatal("tls", "true and false", allowed));
                }
                self.tls_is_on = Some(is_on);
            }
            "timeoutMS" => options.timeout = Some(read_long_millis(&text)?),
            "tlsAllowInvalidCertificates" => self.tls.allow_invalid_certificates = flag()?,
            "tlsAllowInvalidHostnames" => self.tls.allow_invalid_hostnames = flag()?,
            "tlsCAFile" => self.tls.ca_file = Some(name(text)?.into()),
            "tlsCertificateKeyFile" => self.tls.certificate_key_file = Some(name(text)?.into()),
            "tlsCertificateKeyFilePassword" => self.tls.certificate_key_file_password = Some(Secret::new(text)),
            "tlsDisableCertificateRevocationCheck" => self.tls.disable_certificate_revocation_check = flag()?,
            "tlsDisableOCSPEndpointCheck" => self.tls.disable_ocsp_endpoint_check = flag()?,
            "tlsInsecure" => self.tls = std::mem::take(&mut self.tls).insecure(flag()?),
            "w" => options.write_concern.w = Some(read_acknowledgement(text)?),
            "waitQueueTimeoutMS" => options.pool = options.pool.clone().wait_queue_timeout(read_millis(&text)?),
            "wTimeoutMS" | "wtimeout" => options.write_concern.w_timeout = Some(read_long_millis(&text)?),
            "zlibCompressionLevel" => self.zlib_level = Some(read_level(&text)?),
            "gssapiServiceName" => {
                self.mechanism_properties.push(("SERVICE_NAME".to_owned(), Secret::new(name(text)?)))
            }
            unlisted => unreachable!("BUG: {unlisted} is an option that nobody reads"),
        }
        Ok(())
    }

    fn set_compressors(&mut self, text: &str, reader: &mut Reader) -> Result<(), Refusal> {
        let mut compressors = Vec::new();
        for name in text.split(',') {
            match Compressor::named(name).filter(|compressor| compressor.is_supported()) {
                Some(compressor) if compressors.contains(&compressor) => {}
                Some(compressor) => compressors.push(compressor),
                None => {
                    let value = reader.shows_values.then(|| name.to_owned());
                    let (option, allowed) = ("compressors", Compressor::available());
                    reader.warn(UriWarning::InvalidValue { option, value, allowed });
                }
            }
        }
        self.options.compressors = compressors;
        Ok(())
    }

    fn set_srv(&mut self, option: &'static str, text: &str) -> Result<(), Refusal> {
        let Some(srv) = &mut self.options.srv else {
            return Err(fatal(option, "given", "left out without mongodb+srv://"));
        };
        match option {
            "srvAllowedHostsSuffix" => srv.set_allowed_hosts_suffix(text).map_err(Refusal::Fatal)?,
            "srvMaxHosts" => srv.max_hosts = read_count(text)?,
            _ => text.clone_into(&mut srv.service_name),
        }
        Ok(())
    }

    fn add_tag_set(&mut self, value: &str) -> Result<(), Refusal> {
        let mut tags = BTreeMap::new();
        for pair in value.split(',').filter(|_| !value.is_empty()) {
            let refuse = || ignored("comma-separated name:value pairs, or empty");
            let pair = decode(pair).ok_or_else(refuse)?;
            let (name, value) = pair.split_once(':').filter(|(name, _)| !name.is_empty()).ok_or_else(refuse)?;
            tags.insert(name.to_owned(), value.to_owned());
        }
        self.options.read_preference.tag_sets.push(tags);
        Ok(())
    }

    /// Commas are looked for before decoding, so that an encoded one cannot smuggle in a further property.
    fn set_mechanism_properties(&mut self, value: &str, reader: &mut Reader) -> Result<(), Refusal> {
        let mut properties: Vec<(String, Secret)> = Vec::new();
        for pair in value.split(',') {
            let refuse = || ignored("comma-separated name:value pairs");
            let (name, value) = pair.split_once(':').filter(|(name, _)| !name.is_empty()).ok_or_else(refuse)?;
            let (name, value) = (decode(name).ok_or_else(refuse)?, Secret::new(decode(value).ok_or_else(refuse)?));
            if value.reveal().contains(',') {
                let property = if reader.shows_values { Credential::shown_property(&name) } else { "(not shown)" };
                reader.warn(UriWarning::CommaInProperty { property: property.to_owned() });
            }
            properties.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
            properties.push((name, value));
        }
        self.mechanism_properties = properties;
        Ok(())
    }
}

fn ignored(allowed: impl Into<String>) -> Refusal {
    Refusal::Ignored { allowed: allowed.into() }
}

fn fatal(option: &'static str, value: impl Into<String>, allowed: impl Into<String>) -> Refusal {
    Refusal::Fatal(InvalidOption::new(option, value, allowed))
}

fn name(text: String) -> Result<String, Refusal> {
    if text.is_empty() { Err(ignored("a text that is not empty")) } else { Ok(text) }
}

/// Digits, and nothing else, that are a number of the range.
fn read_number<N: TryFrom<u64>>(text: &str, least: u64, most: u64, allowed: &str) -> Result<N, Refusal> {
    let number = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse().ok().filter(|number| (least..=most).contains(number)),
        false => None,
    };
    number.and_then(|number| N::try_from(number).ok()).ok_or_else(|| ignored(allowed))
}

fn read_count(text: &str) -> Result<u32, Refusal> {
    read_number(text, 0, MAX_INT, "a whole number, 0 to 2147483647")
}

/// Refuses a number of connections that the specification allows but no pool can have. Such a value is not invalid, so
/// it must not become the default.
fn check_size(pool: &PoolOptions, connections: u32) -> Result<(), Refusal> {
    match connections > MAX_CONNECTIONS {
        true => pool.check().map_err(Refusal::Fatal),
        false => Ok(()),
    }
}

fn read_millis(text: &str) -> Result<Duration, Refusal> {
    let millis = read_number(text, 0, MAX_INT, "milliseconds, 0 to 2147483647")?;
    Ok(Duration::from_millis(millis))
}

/// For the options that the specification gives 64 bits.
fn read_long_millis(text: &str) -> Result<Duration, Refusal> {
    let millis = read_number(text, 0, i64::MAX.unsigned_abs(), "milliseconds, 0 to 9223372036854775807")?;
    Ok(Duration::from_millis(millis))
}

fn read_level(text: &str) -> Result<i32, Refusal> {
    match text {
        "-1" => Ok(-1),
        text => read_number(text, 0, 9, "-1 (zlib's default) to 9"),
    }
}

fn read_flag(option: &'static str, text: &str, reader: &mut Reader) -> Result<bool, Refusal> {
    let meaning = match text {
        "true" => return Ok(true),
        "false" => return Ok(false),
        "1" | "yes" | "y" | "t" => true,
        "0" | "-1" | "no" | "n" | "f" => false,
        _ => return Err(ignored("true or false")),
    };
    reader.warn(UriWarning::DeprecatedBoolean { option, value: text.to_owned(), meaning });
    Ok(meaning)
}

fn read_word<W: Copy>(text: &str, words: &[W], name: fn(W) -> &'static str) -> Result<W, Refusal> {
    words.iter().copied().find(|word| name(*word) == text).ok_or_else(|| {
        let names: Vec<_> = words.iter().map(|word| name(*word)).collect();
        ignored(names.join(", "))
    })
}

fn read_mechanism(text: &str) -> Result<Mechanism, Refusal> {
    Mechanism::named(text)
        .ok_or_else(|| fatal("authMechanism", format!("{text:?}"), format!("one of {}", Mechanism::supported())))
}

/// A number, where it is one, and otherwise the name of a mode.
fn read_acknowledgement(text: String) -> Result<Acknowledgement, Refusal> {
    match text.parse::<i64>() {
        Ok(_) => Ok(Acknowledgement::Servers(read_count(&text)?)),
        Err(_) => Ok(Acknowledgement::Mode(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_read() {
        let mut reader = Reader { shows_values: true, shows_keys: true, warnings: Vec::new() };
        let renamed = ["wtimeout", "j", "gssapiServiceName"].map(|old| replacement_of(old).unwrap().0);
        for option in NAMES.into_iter().chain(renamed) {
            // An option that is listed and not read panics; what comes of the value does not matter here.
            let _ = Draft::of(Options::srv("a.b.c").unwrap()).set(option, "1", &mut reader);
        }
        assert!(NAMES.is_sorted_by_key(|name| name.to_lowercase()));
    }

    #[test]
    fn what_protects_and_what_is_secret_are_options() {
        for option in NAMES.into_iter().filter(|option| is_secret(option)) {
            assert!(protects(option) || !option.starts_with("tls"), "{option}");
        }
        assert_eq!(NAMES.into_iter().filter(|option| protects(option)).count(), 8);
    }
}
