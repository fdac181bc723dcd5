//! The table of all connection string options: one row each.
//!
//! A row gives the option's name, default, allowed values and description, and says how to read the option. Every list
//! of options is derived from this table: the names that a connection string may have, the secret options, and the
//! messages about values that are not allowed. A test compares the guide's tables with this table. The rows of a pool's
//! options come from [`PoolOptions::TABLE`].

use std::time::Duration;

use super::super::{PoolOptions, ReadPreferenceMode, Secret, ServerMonitoringMode};
use super::draft::{Draft, Rejection, put};
use super::value::Value;
use crate::pool::options::{MAX_INT, PoolOption};
use crate::text::given::nearest;

/// A connection string option.
#[cfg_attr(not(test), expect(dead_code, reason = "tests compare the documentation's tables with these fields"))]
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// The name, spelled as in the specification. Its case does not matter in connection strings.
    pub name: &'static str,
    /// The default, in the form used in connection strings, or in words.
    pub default: &'static str,
    /// The values that are allowed, in words that follow "must be".
    pub allowed: &'static str,
    /// The purpose of the option, in one line.
    pub summary: &'static str,
    /// Whether the value may hold a secret.
    pub is_secret: bool,
    /// Whether an invalid value is refused instead of ignored. If it were ignored, the connection would be less protected
    /// (in plaintext, with other authorities, without the client's certificate, past the proxy), or it would check
    /// revocation in a way that the application did not ask for.
    ///
    /// `tlsInsecure`, `tlsAllowInvalidCertificates` and `tlsAllowInvalidHostnames` do not have this property, because
    /// the official cases require a warning. If the option is ignored, the connection uses TLS, and everything is
    /// checked.
    pub protects: bool,
    /// What happens if the option is given more than once.
    pub repetition: Repetition,
    /// Whether the value is percent-decoded by the option's own code, because the value has separators.
    pub is_raw: bool,
    read: Read,
}

/// What happens if an option is given more than once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repetition {
    /// The last value applies, and there is a warning.
    LastCounts,
    /// Each value adds to the earlier values.
    Adds,
    /// The connection string is refused.
    Refused,
}

/// How an option is read.
#[derive(Clone, Copy)]
enum Read {
    Pool(&'static PoolOption),
    Other(fn(&mut Draft, Value<'_>) -> Result<(), Rejection>),
}

impl Row {
    /// Returns the rows of all connection string options.
    pub fn all() -> impl Iterator<Item = Self> {
        GROUPS.iter().flat_map(|group| group.rows())
    }

    /// Returns the row of an option, by its case-insensitive name.
    pub fn of(name: &str) -> Option<Self> {
        Self::all().find(|row| row.name.eq_ignore_ascii_case(name))
    }

    /// Returns the current name for a former name in [`PRESENT_NAMES`], ignoring case.
    pub fn present_name(name: &str) -> Option<&'static str> {
        PRESENT_NAMES.iter().find(|(former, _)| former.eq_ignore_ascii_case(name)).map(|(_, present)| *present)
    }

    /// Returns the current name for a former name, or the option name that is closest to a misspelt name. At most two
    /// letters may be wrong, extra or missing.
    pub fn nearest(name: &str) -> Option<&'static str> {
        if let Some(present) = Self::present_name(name) {
            return Some(present);
        }
        nearest(name, Self::all().map(|row| row.name))
    }

    /// Sets the option in `draft`.
    pub fn read(&self, draft: &mut Draft, value: Value<'_>) -> Result<(), Rejection> {
        match self.read {
            Read::Pool(option) => read_pool_option(option, &mut draft.options.pool, &value),
            Read::Other(read) => read(draft, value),
        }
    }

    pub const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }

    const fn protects(self) -> Self {
        Self { protects: true, ..self }
    }

    const fn once(self) -> Self {
        Self { repetition: Repetition::Refused, ..self }
    }

    const fn adds(self) -> Self {
        Self { repetition: Repetition::Adds, ..self }
    }

    const fn raw(self) -> Self {
        Self { is_raw: true, ..self }
    }
}

/// The options that one type holds.
#[cfg_attr(not(test), expect(dead_code, reason = "tests compare the documentation's tables with these fields"))]
pub(super) struct Group {
    /// A heading in the guide: the subject of the options, and the type that holds them.
    pub title: &'static str,
    rows: Rows,
}

enum Rows {
    Pool,
    Other(&'static [Row]),
}

impl Group {
    pub fn rows(&self) -> Vec<Row> {
        match self.rows {
            Rows::Pool => PoolOptions::TABLE.iter().map(pool_row).collect(),
            Rows::Other(rows) => rows.to_vec(),
        }
    }
}

pub(super) const fn row(
    name: &'static str,
    default: &'static str,
    allowed: &'static str,
    summary: &'static str,
    read: fn(&mut Draft, Value<'_>) -> Result<(), Rejection>,
) -> Row {
    Row {
        name,
        default,
        allowed,
        summary,
        is_secret: false,
        protects: false,
        repetition: Repetition::LastCounts,
        is_raw: false,
        read: Read::Other(read),
    }
}

fn pool_row(option: &'static PoolOption) -> Row {
    let PoolOption { name, default, allowed, summary, .. } = *option;
    let summary = summary.trim().trim_end_matches('.');
    Row { read: Read::Pool(option), ..row(name, default, allowed, summary, |_, _| Ok(())) }
}

/// Reads a number of connections or of milliseconds.
///
/// A number that the specification allows but a pool cannot support is refused, because the default must not replace it.
fn read_pool_option(option: &PoolOption, pool: &mut PoolOptions, value: &Value<'_>) -> Result<(), Rejection> {
    let number = value.number(*option.range.start(), MAX_INT)?;
    (option.set)(pool, number);
    match number > *option.range.end() {
        true => pool.check().map_err(Rejection::Fatal),
        false => Ok(()),
    }
}

/// The largest value of an option that the specification defines as a 64-bit integer.
pub(super) const MAX_LONG: u64 = i64::MAX.unsigned_abs();

pub(super) const FLAG: &str = "true or false";
const COUNT: &str = "0 to 2147483647";
pub(super) const LIMIT: &str = "0 (no limit) to 2147483647";
pub(super) const LONG_LIMIT: &str = "0 (no limit) to 9223372036854775807";
pub(super) const TEXT: &str = "a non-empty string";
const PATH: &str = "a path that is not empty";
const MECHANISMS: &str = "SCRAM-SHA-256, SCRAM-SHA-1, MONGODB-X509, PLAIN, MONGODB-AWS or MONGODB-OIDC";

/// All connection string options, in the guide's order.
pub(super) const GROUPS: [Group; 9] = [
    Group { title: "The pool of each server (`PoolOptions`)", rows: Rows::Pool },
    Group { title: "Connections (`Options`)", rows: Rows::Other(&CONNECTIONS) },
    Group { title: "TLS (`TlsOptions`)", rows: Rows::Other(&TLS) },
    Group { title: "Authentication (`Credential`)", rows: Rows::Other(&AUTHENTICATION) },
    Group { title: "Servers found in the DNS (`SrvName`)", rows: Rows::Other(&SRV) },
    Group { title: "Proxy (`ProxyOptions`)", rows: Rows::Other(&PROXY) },
    Group { title: "Reads (`ReadPreference`, `Options`)", rows: Rows::Other(&READS) },
    Group { title: "Writes (`WriteConcern`, `Options`)", rows: Rows::Other(&WRITES) },
    Group { title: "Discovery and selection of servers (`Options`)", rows: Rows::Other(&SERVERS) },
];

const CONNECTIONS: [Row; 9] = [
    row("appName", "none", "at most 128 bytes", "The application's name, for the server's logs", |draft, value| {
        put(&mut draft.options.app_name, value.name().map(Some))
    }),
    row("connectTimeoutMS", "10000", LIMIT, "How long opening a connection may take, altogether", |draft, value| {
        put(&mut draft.options.connect_timeout, value.millis(MAX_INT))
    }),
    row("timeoutMS", "not set", LONG_LIMIT, "How long an operation may take, altogether", |draft, value| {
        put(&mut draft.options.timeout, value.millis(MAX_LONG).map(Some))
    }),
    row("socketTimeoutMS", "0", LIMIT, "How long each read and each write may take (deprecated)", |draft, value| {
        put(&mut draft.options.socket_timeout, value.millis(MAX_INT))
    }),
    row(
        "compressors",
        "none",
        "snappy, zlib, zstd",
        "Compressors, in order of preference; zstd needs the feature `zstd`",
        Draft::set_compressors,
    ),
    row("zlibCompressionLevel", "-1", "-1 (zlib's default) to 9", "The level of zlib", |draft, value| {
        put(&mut draft.zlib_level, value.level().map(Some))
    }),
    row("loadBalanced", "false", FLAG, "Whether the one host is a load balancer", |draft, value| {
        let load_balanced = value.flag()?;
        draft.options.load_balanced = Some(load_balanced);
        draft.options.pool.load_balanced = load_balanced;
        Ok(())
    }),
    row("tls", "false", FLAG, "Whether to use TLS; true with `mongodb+srv://` or any `tls…` option", Draft::set_tls)
        .protects(),
    row("ssl", "false", FLAG, "The same as `tls`", Draft::set_tls).protects(),
];

const TLS: [Row; 8] = [
    row("tlsCAFile", "the system's", PATH, "A PEM file with the authorities to trust", |draft, value| {
        put(&mut draft.tls.ca_file, value.path())
    })
    .protects(),
    row("tlsCertificateKeyFile", "none", PATH, "A PEM file with the client's certificates and key", |draft, value| {
        put(&mut draft.tls.certificate_key_file, value.path())
    })
    .protects(),
    row("tlsCertificateKeyFilePassword", "none", "a password", "The password of the private key", |draft, value| {
        draft.tls.certificate_key_file_password = Some(Secret::new(value.into_text()));
        Ok(())
    })
    .secret()
    .protects(),
    row("tlsAllowInvalidCertificates", "false", FLAG, "Whether to accept any certificate", |draft, value| {
        put(&mut draft.tls.allow_invalid_certificates, value.flag())
    }),
    row("tlsAllowInvalidHostnames", "false", FLAG, "Whether to accept another host's certificate", |draft, value| {
        put(&mut draft.tls.allow_invalid_hostnames, value.flag())
    }),
    row("tlsInsecure", "false", FLAG, "Whether to relax all checks at once", |draft, value| {
        draft.tls = std::mem::take(&mut draft.tls).insecure(value.flag()?);
        Ok(())
    }),
    row(
        "tlsDisableCertificateRevocationCheck",
        "false",
        FLAG,
        "Whether to skip the check for a revoked certificate",
        |draft, value| put(&mut draft.tls.disable_certificate_revocation_check, value.flag()),
    )
    .protects(),
    row(
        "tlsDisableOCSPEndpointCheck",
        "false",
        FLAG,
        "Whether to rely on stapled OCSP responses alone, and ask no responder",
        |draft, value| put(&mut draft.tls.disable_ocsp_endpoint_check, value.flag()),
    )
    .protects(),
];

const AUTHENTICATION: [Row; 3] = [
    row("authMechanism", "negotiated", MECHANISMS, "How a client authenticates", |draft, value| {
        put(&mut draft.mechanism, value.mechanism().map(Some))
    }),
    row(
        "authMechanismProperties",
        "none",
        "comma-separated name:value pairs",
        "Additional properties of the mechanism",
        Draft::set_mechanism_properties,
    )
    .secret()
    .raw(),
    row("authSource", "by mechanism", "the name of a database", "Where the user is defined", |draft, value| {
        put(&mut draft.options.auth_source, value.source().map(Some))
    }),
];

const SRV: [Row; 3] = [
    row("srvServiceName", "mongodb", "the name of a service", "The service of the SRV records", |draft, value| {
        draft.srv(value.option)?.service_name.clone_from(&value.text);
        Ok(())
    }),
    row("srvMaxHosts", "0", "0 (all) to 2147483647", "How many of the servers to use", |draft, value| {
        put(&mut draft.srv(value.option)?.max_hosts, value.number(0, MAX_INT))
    }),
    row(
        "srvAllowedHostsSuffix",
        "the name's domain",
        "a domain of at least two labels",
        "The domain that the servers must be in",
        |draft, value| draft.srv(value.option)?.set_allowed_hosts_suffix(&value.text).map_err(Rejection::Fatal),
    ),
];

const PROXY: [Row; 4] = [
    row("proxyHost", "none", TEXT, "A SOCKS5 proxy's name or address", |draft, value| {
        put(&mut draft.proxy_host, value.name().map(Some))
    })
    .protects()
    .once(),
    row("proxyPort", "1080", "1 to 65535", "The proxy's port", |draft, value| {
        put(&mut draft.proxy_port, value.number(1, u16::MAX.into()).map(Some))
    })
    .once(),
    row("proxyUsername", "none", "1 to 255 bytes", "The user's name at the proxy", |draft, value| {
        draft.proxy_username = Some(value.into_text()).filter(|text| !text.is_empty());
        Ok(())
    })
    .once(),
    row("proxyPassword", "none", "1 to 255 bytes", "The user's password at the proxy", |draft, value| {
        draft.proxy_password = Some(Secret::new(value.into_text())).filter(|text| !text.reveal().is_empty());
        Ok(())
    })
    .secret()
    .once(),
];

const READS: [Row; 5] = [
    row(
        "readPreference",
        "primary",
        "primary, primaryPreferred, secondary, secondaryPreferred or nearest",
        "Which servers to read from",
        |draft, value| {
            let mode = value.word(&ReadPreferenceMode::ALL, ReadPreferenceMode::name);
            put(&mut draft.options.read_preference.mode, mode)
        },
    ),
    row(
        "readPreferenceTags",
        "none",
        "comma-separated name:value pairs, or empty",
        "A set of tags that a secondary must have; may be given several times",
        Draft::add_tag_set,
    )
    .adds()
    .raw(),
    row("maxStalenessSeconds", "-1", "-1 (no limit) or at least 90", "How far a secondary may lag", |draft, value| {
        let limit = match value.text.as_str() {
            "-1" => None,
            _ => Some(Duration::from_secs(value.number(90, MAX_INT)?)),
        };
        draft.options.read_preference.max_staleness = limit;
        Ok(())
    }),
    row("readConcernLevel", "the server's", "a level's name", "Which writes a read sees", |draft, value| {
        draft.options.read_concern = Some(value.into_text());
        Ok(())
    }),
    row(
        "retryReads",
        "true",
        FLAG,
        "Whether to retry reads after a failure of the server or the network",
        |draft, value| put(&mut draft.options.retry_reads, value.flag()),
    ),
];

const WRITES: [Row; 4] = [
    row("w", "the server's", "0 to 2147483647, or a mode", "Which servers acknowledge a write", |draft, value| {
        put(&mut draft.options.write_concern.w, value.acknowledgement().map(Some))
    }),
    row("journal", "the server's", FLAG, "Whether a write must be in the journal", |draft, value| {
        put(&mut draft.options.write_concern.journal, value.flag().map(Some))
    }),
    row("wTimeoutMS", "none", LONG_LIMIT, "How long the servers may take to replicate a write", Draft::set_w_timeout),
    row(
        "retryWrites",
        "true",
        FLAG,
        "Whether to retry writes after a failure of the server or the network",
        |draft, value| put(&mut draft.options.retry_writes, value.flag()),
    ),
];

const SERVERS: [Row; 9] = [
    row("replicaSet", "none", "a name", "The replica set that the hosts are members of", |draft, value| {
        draft.options.replica_set = Some(value.into_text());
        Ok(())
    }),
    row("directConnection", "not set", FLAG, "Whether the one host is the whole deployment", |draft, value| {
        put(&mut draft.options.direct_connection, value.flag().map(Some))
    }),
    row("serverSelectionTimeoutMS", "30000", "1 to 2147483647", "How long to wait for a server", |draft, value| {
        put(&mut draft.options.server_selection_timeout, value.millis_from(1, MAX_INT))
    }),
    row(
        "serverSelectionTryOnce",
        "true",
        FLAG,
        "Only for `single::Client`: whether to look only once",
        |draft, value| put(&mut draft.options.server_selection_try_once, value.flag()),
    ),
    row("localThresholdMS", "15", COUNT, "How much slower than the nearest a server may be", |draft, value| {
        put(&mut draft.options.local_threshold, value.millis(MAX_INT))
    }),
    row("heartbeatFrequencyMS", "10000", "500 to 2147483647", "The time between two checks", |draft, value| {
        put(&mut draft.options.heartbeat_frequency, value.millis_from(500, MAX_INT).map(Some))
    }),
    row("serverMonitoringMode", "auto", "auto, stream or poll", "How a monitor learns of changes", |draft, value| {
        let mode = value.word(&ServerMonitoringMode::ALL, ServerMonitoringMode::name);
        put(&mut draft.options.server_monitoring_mode, mode)
    }),
    row("maxAdaptiveRetries", "2", COUNT, "How often to retry with an overloaded server", |draft, value| {
        put(&mut draft.options.max_adaptive_retries, value.number(0, MAX_INT))
    }),
    row("enableOverloadRetargeting", "false", FLAG, "Whether such a retry prefers another server", |draft, value| {
        put(&mut draft.options.enable_overload_retargeting, value.flag())
    }),
];

/// An old name for an option.
#[derive(Clone, Copy)]
pub(super) struct OldName {
    /// The option, with its old name.
    pub row: Row,
    /// The name that replaces it.
    pub replacement: &'static str,
}

impl OldName {
    /// Returns the old name that `key` matches, ignoring case.
    pub fn of(key: &str) -> Option<Self> {
        OLD_NAMES.into_iter().find(|old| old.row.name.eq_ignore_ascii_case(key))
    }
}

pub(super) const OLD_NAMES: [OldName; 3] = [
    OldName { row: row("wtimeout", "", LONG_LIMIT, "", Draft::set_w_timeout), replacement: "wTimeoutMS" },
    OldName {
        row: row("j", "", FLAG, "", |draft, value| {
            put(&mut draft.options.write_concern.journal, value.flag().map(Some))
        }),
        replacement: "journal",
    },
    OldName {
        row: row("gssapiServiceName", "", TEXT, "", |draft, value| {
            draft.mechanism_properties.push(("SERVICE_NAME".to_owned(), Secret::new(value.name()?)));
            Ok(())
        }),
        replacement: "authMechanismProperties",
    },
];

/// Names that other drivers, or earlier versions of them, use for options, with the current names. They are treated as
/// unknown options, because no specification contains them. Warnings about them give the current name.
const PRESENT_NAMES: [(&str, &str); 22] = [
    ("poolSize", "maxPoolSize"),
    ("sslCAFile", "tlsCAFile"),
    ("sslCA", "tlsCAFile"),
    ("sslCertificateAuthorityFile", "tlsCAFile"),
    ("ssl_ca_certs", "tlsCAFile"),
    ("sslClientCertificateKeyFile", "tlsCertificateKeyFile"),
    ("sslPEMKeyFile", "tlsCertificateKeyFile"),
    ("ssl_certfile", "tlsCertificateKeyFile"),
    ("ssl_keyfile", "tlsCertificateKeyFile"),
    ("tlsCertificateFile", "tlsCertificateKeyFile"),
    ("tlsPrivateKeyFile", "tlsCertificateKeyFile"),
    ("sslClientCertificateKeyPassword", "tlsCertificateKeyFilePassword"),
    ("sslPEMKeyPassword", "tlsCertificateKeyFilePassword"),
    ("ssl_pem_passphrase", "tlsCertificateKeyFilePassword"),
    ("sslAllowInvalidCertificates", "tlsAllowInvalidCertificates"),
    ("sslAllowInvalidHostnames", "tlsAllowInvalidHostnames"),
    ("sslInvalidHostNameAllowed", "tlsAllowInvalidHostnames"),
    ("sslInsecure", "tlsInsecure"),
    ("slaveOk", "readPreference"),
    ("heartbeatInterval", "heartbeatFrequencyMS"),
    ("acceptableLatencyMS", "localThresholdMS"),
    ("secondaryAcceptableLatencyMS", "localThresholdMS"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::options::Options;

    /// Returns the default in the form that the documentation shows: "0 (no limit)" if `allowed` explains a default of
    /// 0 that way.
    fn shown_default(row: &Row) -> &'static str {
        match row.allowed.split_once(" to ") {
            Some((lowest, _)) if row.default == "0" && lowest.starts_with("0 (") => lowest,
            _ => row.default,
        }
    }

    /// Returns the method, constructor, field or variant that sets the option in code: its type, and the option's name
    /// in snake case without its unit and its group's prefix. A test in `system-tests/tests/package.rs` checks that
    /// each of them exists.
    fn in_code(group: &Group, name: &str) -> String {
        let other = match name {
            "zlibCompressionLevel" => "Compressor::Zlib",
            "ssl" => "Options::tls",
            "authMechanismProperties" => "Credential::mechanism_property",
            "proxyHost" => "ProxyOptions::new",
            "proxyUsername" | "proxyPassword" => "ProxyOptions::login",
            "readPreference" => "ReadPreference::new",
            "readPreferenceTags" => "ReadPreference::tag_set",
            "readConcernLevel" => "Options::read_concern",
            "retryReads" => "Options::retry_reads",
            "retryWrites" => "Options::retry_writes",
            _ => "",
        };
        if !other.is_empty() {
            return other.to_owned();
        }
        let owner = group.title.split('`').nth(1).unwrap();
        let prefix = match owner {
            "TlsOptions" => "tls",
            "Credential" => "auth",
            "SrvName" => "srv",
            "ProxyOptions" => "proxy",
            _ => "",
        };
        let name = name.strip_prefix(prefix).unwrap();
        let name = name.trim_end_matches("MS").trim_end_matches("Seconds");
        let mut snake = String::new();
        for (place, letter) in name.char_indices() {
            let (before, after) = (&name[..place], &name[place + 1..]);
            // The last capital of an abbreviation begins the next word.
            let begins = before.ends_with(char::is_lowercase) || after.starts_with(char::is_lowercase);
            if place > 0 && letter.is_uppercase() && begins {
                snake.push('_');
            }
            snake.extend(letter.to_lowercase());
        }
        format!("{owner}::{snake}")
    }

    /// Returns a group in the form that the guide shows.
    fn section(group: &Group) -> String {
        let rows = group.rows().into_iter().map(|row| {
            let Row { name, allowed, summary, .. } = row;
            format!("| `{name}` | `{}` | {} | {allowed} | {summary} |\n", in_code(group, name), shown_default(&row))
        });
        let head = "| option | in code | default | allowed | what |\n| --- | --- | --- | --- | --- |\n";
        format!("## {}\n\n{head}{}", group.title, rows.collect::<String>())
    }

    #[test]
    fn guide_lists_every_option_as_the_table_has_it() {
        let guide = include_str!("../../../guide/options.md");
        let tables = GROUPS.iter().map(section).collect::<Vec<_>>().join("\n");
        assert!(guide.contains(&tables), "src/guide/options.md must have this:\n\n{tables}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn options_given_with_their_documented_default_are_the_default_options() {
        let context = |name: &str| match name {
            name if name.starts_with("srv") => "mongodb+srv://a.b.c/?",
            name if name.starts_with("tls") && name != "tls" => "mongodb://a/?tls=true&",
            "zlibCompressionLevel" => "mongodb://a/?compressors=zlib&",
            "proxyPort" => "mongodb://a/?proxyHost=p&",
            _ => "mongodb://a/?",
        };
        let in_words = ["none", "not set", "negotiated", "by mechanism"];
        // Without zlib, the compression level has no effect.
        let is_built = |row: &Row| cfg!(feature = "zlib") || row.name != "zlibCompressionLevel";
        let is_value =
            |row: &Row| is_built(row) && !in_words.contains(&row.default) && !row.default.starts_with("the ");
        let mut compared = 0;
        for row in Row::all().filter(is_value) {
            let context = context(row.name);
            let given = Options::parse(&format!("{context}{}={}", row.name, row.default)).unwrap();
            let mut left_out = Options::parse(context).unwrap();
            left_out.load_balanced = given.load_balanced;
            if given.heartbeat_frequency.is_some() {
                // The default of this option depends on the client.
                left_out.heartbeat_frequency = Some(left_out.heartbeat_interval());
            }
            assert_eq!(given, left_out, "{}", row.name);
            compared += 1;
        }
        assert!(compared >= 29, "{compared}");
    }

    #[test]
    fn names_are_unique_in_any_case() {
        let names: Vec<_> = Row::all().chain(OLD_NAMES.map(|old| old.row)).map(|row| row.name.to_lowercase()).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(OLD_NAMES.iter().all(|old| Row::of(old.replacement).is_some_and(|row| row.name == old.replacement)));
    }

    #[test]
    fn former_names_of_other_drivers_lead_to_the_present_ones() {
        for (name, present) in PRESENT_NAMES {
            assert!(Row::of(name).is_none() && OldName::of(name).is_none(), "{name}");
            assert!(Row::of(present).is_some_and(|row| row.name == present), "{present}");
            assert_eq!(Row::nearest(&name.to_uppercase()), Some(present));
        }
        // wharf either always or never does what these options ask for, so it has no option that replaces them.
        let removed = ["auto_reconnect", "keepAlive", "socketOptions", "useNewUrlParser", "useUnifiedTopology"];
        assert_eq!(removed.map(Row::nearest), [None; 5]);
    }

    #[test]
    fn pool_options_say_the_range_that_they_allow() {
        for option in PoolOptions::TABLE {
            let ends = [*option.range.start(), (*option.range.end()).min(MAX_INT)].map(|end| end.to_string());
            let numbers = option.allowed.split(|char: char| !char.is_ascii_digit()).filter(|text| !text.is_empty());
            assert_eq!(numbers.collect::<Vec<_>>(), ends, "{}", option.name);
        }
    }

    /// If such an option were ignored, the connection would be made without the password.
    #[test]
    fn secret_options_of_tls_protect() {
        for row in Row::all().filter(|row| row.is_secret) {
            assert!(row.protects || !row.name.starts_with("tls"), "{}", row.name);
        }
        assert_eq!(Row::all().filter(|row| row.protects).count(), 8);
        assert_eq!(Row::all().filter(|row| row.is_secret).count(), 3);
    }
}
