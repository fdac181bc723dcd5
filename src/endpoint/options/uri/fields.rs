//! Options from configuration files and environment variables: maps whose fields are named after the options of
//! connection strings.

use std::fmt;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value as Json;
use zeroize::Zeroizing;

use super::super::{
    DriverInfo, InvalidOption, Options, PoolOptions, Secret, ServerAddress, ServerApi, ServerApiVersion, SrvName,
    TlsVersion,
};
use super::Reader;
use super::draft::{Draft, Rejection, put};
use super::table::{FLAG, LIMIT, LONG_LIMIT, MAX_LONG, Row, TEXT, row};
use super::value::Value;
use crate::pool::options::{MAX_INT, find_name, is_name, text_of};

/// The fields that are not connection string options, except maps and the fields of a pool.
const FIELDS: [Row; 10] = [
    field("srv", "a name in the DNS", |draft, value| {
        put(&mut draft.options.srv, SrvName::parse(&value.text).map(Some).map_err(Rejection::Fatal))
    }),
    field("hosts", "a list of addresses", |draft, value| {
        for host in value.text.split(',') {
            draft.options.add_host(ServerAddress::parse(host.trim()).map_err(Rejection::Fatal)?);
        }
        Ok(())
    }),
    field("username", TEXT, |draft, value| {
        draft.user.get_or_insert_default().0 = value.name()?;
        Ok(())
    }),
    field("password", TEXT, |draft, value| {
        draft.user.get_or_insert_default().1 = Some(Secret::new(value.name()?));
        Ok(())
    })
    .secret(),
    field("database", "the name of a database", |draft, value| {
        put(&mut draft.options.default_database, value.name().map(Some))
    }),
    field("drainTimeoutMS", LIMIT, |draft, value| put(&mut draft.options.drain_timeout, value.millis(MAX_INT))),
    field("drainLimit", LONG_LIMIT, |draft, value| put(&mut draft.options.drain_limit, value.number(0, MAX_LONG))),
    field("busyPollMicros", "0 to 10000", |draft, value| {
        put(&mut draft.options.busy_poll, value.number(0, 10_000).map(Duration::from_micros))
    }),
    field("hedge", FLAG, |draft, value| put(&mut draft.options.read_preference.hedge, value.flag().map(Some))),
    field("tlsMinVersion", "1.2 or 1.3", |draft, value| {
        draft.tls.min_version = match value.text.as_str() {
            "1.2" => TlsVersion::Tls12,
            "1.3" => TlsVersion::Tls13,
            _ => return Err(Rejection::NotAllowed),
        };
        Ok(())
    }),
];

const fn field(
    name: &'static str,
    allowed: &'static str,
    read: fn(&mut Draft, Value<'_>) -> Result<(), Rejection>,
) -> Row {
    row(name, "", allowed, "", read)
}

/// Returns the names of all fields.
fn names() -> impl Iterator<Item = &'static str> {
    let rows = rows().map(|row| row.name);
    let of_pools = PoolOptions::names().filter(|name| Row::of(name).is_none());
    rows.chain(of_pools).chain(["uri", "driverInfo", "serverApi"])
}

fn rows() -> impl Iterator<Item = Row> {
    FIELDS.into_iter().chain(Row::all())
}

/// Reads a connection string or a map. `Serialize` writes such a map without the secrets.
///
/// The fields of the map are the connection string options, and the additional fields in the
/// [guide](crate::guide::options#from-files-and-environment-variables). The `uri` field is a connection string that the
/// other fields complete or override.
///
/// ```
/// use serde::Deserialize;
/// use wharf::Options;
///
/// #[derive(Deserialize)]
/// struct Settings {
///     mongodb: Options,
/// }
///
/// // A file, and in it the password from elsewhere.
/// let text = r#"{ "mongodb": { "uri": "mongodb://ada@db.example.com", "password": "secret", "maxPoolSize": 50 } }"#;
/// let settings: Settings = serde_json::from_str(text)?;
/// assert_eq!(settings.mongodb.pool.max_pool_size, 50);
///
/// // Environment variables, without their prefix, as the `envy` crate gives them.
/// let variables = [("hosts", "db1.example.com,db2.example.com"), ("replica_set", "rs0"), ("max_connecting", "0")];
/// let variables = serde::de::value::MapDeserializer::<_, serde_json::Error>::new(variables.into_iter());
/// let error = Options::deserialize(variables).unwrap_err();
/// assert_eq!(error.to_string(), r#"maxConnecting must be 1 to 1048575, got "0""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// # Errors
///
/// An error names the option, the value and what is allowed, as [`InvalidOption`] does. It never repeats a secret.
/// Unknown fields and invalid values in a map are refused. A connection string is read as [`Options::parse`] reads it.
impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Options;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a connection string or a map of options")
    }

    fn visit_str<E: Error>(self, uri: &str) -> Result<Options, E> {
        Options::parse(uri).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Options, A::Error> {
        let mut fields = Vec::new();
        let mut names_given = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, Json>()? {
            let name = find_name(&name, names, &mut names_given).map_err(A::Error::custom)?;
            if !value.is_null() {
                fields.push((name, value));
            }
        }
        let mut reader = Reader::default();
        let options = reader.read_fields(fields);
        options.map_err(|error| A::Error::custom(reader.without_values(error)))
    }
}

impl Reader {
    fn read_fields(&mut self, mut fields: Vec<(&'static str, Json)>) -> Result<Options, InvalidOption> {
        // The connection string and the SRV name come first, because other fields complete them. The fields of a pool
        // that are not in connection strings come last, because their values are not checked one by one.
        fields.sort_by_key(|(name, _)| match *name {
            "uri" => 0,
            "srv" => 1,
            name if rows().any(|row| row.name == name) => 2,
            _ => 3,
        });
        let mut draft = Draft::of(Options::nowhere());
        if fields.first().is_some_and(|(name, _)| *name == "uri") {
            let (_, uri) = fields.remove(0);
            if let Some((other, _)) = fields.iter().find(|(name, _)| ["hosts", "srv"].contains(name)) {
                return Err(InvalidOption::conflict(other, "uri"));
            }
            let uri = text_of(uri).map(Zeroizing::new);
            let uri = uri.ok_or_else(|| InvalidOption::because("uri", "must be a connection string"))?;
            draft = self.read(&uri)?;
        }
        self.refuses_values = true;
        // `Serialize` also writes TLS options that are false. These do not count as given unless `tlsInsecure` is
        // given, which no other option may contradict.
        let counts = |value: &Json| *value != false && *value != "false";
        let given = |option: &str, all: bool| {
            draft.given.contains(&option)
                || fields.iter().any(|(name, value)| *name == option && (all || counts(value)))
        };
        let all = given("tlsInsecure", true);
        Draft::refuse_exclusive(|option| given(option, all))?;
        draft.given.extend(fields.iter().map(|(name, _)| *name));
        for (name, value) in fields {
            self.read_field(name, value, &mut draft)?;
        }
        self.finish(draft)
    }

    fn read_field(&mut self, name: &'static str, value: Json, draft: &mut Draft) -> Result<(), InvalidOption> {
        match (name, rows().find(|row| row.name == name)) {
            ("driverInfo", _) => {
                let [name, version, platform] = parts("driverInfo", value, ["name", "version", "platform"])?;
                let name = name.ok_or_else(|| InvalidOption::because("driverInfo", "must have a name"))?;
                draft.options.driver_info = Some(DriverInfo { name, version, platform });
                Ok(())
            }
            ("serverApi", _) => {
                let [version, strict, errors] = parts("serverApi", value, ["version", "strict", "deprecationErrors"])?;
                if version.as_deref() != Some(ServerApiVersion::V1.as_str()) {
                    let problem = format!("must have the version {}", ServerApiVersion::V1);
                    return Err(InvalidOption { option: "serverApi", problem, value: version });
                }
                let flag = |text: Option<String>| match text.map(|text| text.parse()) {
                    None => Ok(None),
                    Some(Ok(flag)) => Ok(Some(flag)),
                    Some(Err(_)) => Err(InvalidOption::because("serverApi", "must have parts that are true or false")),
                };
                let api = ServerApi::new(ServerApiVersion::V1);
                draft.options.server_api =
                    Some(ServerApi { strict: flag(strict)?, deprecation_errors: flag(errors)?, ..api });
                Ok(())
            }
            (_, Some(row)) => self.read_row(row, value, draft),
            (_, None) => draft.options.pool.set_field(name, value),
        }
    }

    fn read_row(&mut self, row: Row, value: Json, draft: &mut Draft) -> Result<(), InvalidOption> {
        match (row.name, value) {
            ("hosts" | "compressors", Json::Array(list)) if list.iter().all(Json::is_string) => {
                // The text of an empty list is not read, because "" is not a compressor.
                draft.options.compressors.retain(|_| row.name != "compressors");
                let texts: Vec<String> = list.into_iter().filter_map(text_of).collect();
                if texts.is_empty() { Ok(()) } else { self.read_text(row, texts.join(","), draft) }
            }
            ("readPreferenceTags", Json::Array(sets)) => {
                draft.options.read_preference.tag_sets.clear();
                sets.into_iter().try_for_each(|set| self.read_set(row, set, draft))
            }
            ("readPreferenceTags", set) => {
                draft.options.read_preference.tag_sets.clear();
                self.read_set(row, set, draft)
            }
            ("authMechanismProperties", set) => self.read_set(row, set, draft),
            (_, value) => self.read_single(row, value, draft),
        }
    }

    /// Reads names with their values, from a map or from text.
    fn read_set(&mut self, row: Row, set: Json, draft: &mut Draft) -> Result<(), InvalidOption> {
        let Json::Object(map) = set else { return self.read_single(row, set, draft) };
        let pairs = map.into_iter().map(|(name, value)| {
            let text = Zeroizing::new(text_of(value)?);
            let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
            Some(format!("{}:{}", encode(&name), encode(&text)))
        });
        let pairs = Zeroizing::new(pairs.collect::<Option<Vec<_>>>().ok_or_else(|| refuse(row, "a map in a map"))?);
        self.set_option(row, Some(Zeroizing::new(pairs.join(","))), "(a map)", draft)
    }

    fn read_single(&mut self, row: Row, value: Json, draft: &mut Draft) -> Result<(), InvalidOption> {
        let kind = if value.is_array() { "a list" } else { "a map" };
        let text = text_of(value).ok_or_else(|| refuse(row, kind))?;
        self.read_text(row, text, draft)
    }

    /// Reads text that is not percent-encoded.
    fn read_text(&mut self, row: Row, text: String, draft: &mut Draft) -> Result<(), InvalidOption> {
        let shown = Zeroizing::new(text);
        let text = if row.is_raw { Zeroizing::new(shown.replace('%', "%25")) } else { shown.clone() };
        self.set_option(row, Some(text), &shown, draft)
    }
}

fn refuse(row: Row, kind: &str) -> InvalidOption {
    InvalidOption::new(row.name, row.allowed, kind)
}

/// Reads a map with some of the parts in `names`. Any other value is read as the first part.
fn parts<const N: usize>(
    option: &'static str,
    value: Json,
    names: [&'static str; N],
) -> Result<[Option<String>; N], InvalidOption> {
    let refuse = |shown| InvalidOption::new(option, format!("a map of {}", names.join(", ")), shown);
    let mut parts = [const { None }; N];
    match value {
        Json::Object(map) => {
            for (name, value) in map.into_iter().filter(|(_, value)| !value.is_null()) {
                let place = names.iter().position(|known| is_name(&name, known));
                let place = place.ok_or_else(|| refuse(format!("{name:?}")))?;
                parts[place] = Some(text_of(value).ok_or_else(|| refuse(format!("a list or a map for {name:?}")))?);
            }
        }
        value => {
            let shown = value.to_string();
            parts[0] = Some(text_of(value).ok_or_else(|| refuse(shown))?);
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pool::options::CheckBeforeUse;

    fn read(map: Json) -> Result<Options, String> {
        serde_json::from_value(map).map_err(|error| error.to_string())
    }

    /// Returns a map that sets every option, if possible to a value that is not the default.
    fn full() -> Json {
        let text = r#"{
            "hosts": ["db.example.com:27018"], "maxIdleTimeMS": 3000, "minPoolSize": 1, "maxPoolSize": 7,
            "maxConnecting": 3, "waitQueueTimeoutMS": 5, "backgroundIntervalMS": "never", "checkBeforeUseMS": "never",
            "maxLifetimeMS": 60000, "jitterPercent": 10, "refuseLate": true, "loadBalanced": false, "appName": "shop",
            "driverInfo": { "name": "shop-client", "version": "1.2", "platform": null }, "authSource": "$external",
            "username": "ada", "authMechanism": "PLAIN", "database": "shop", "tls": true, "tlsCAFile": "ca.pem",
            "tlsCertificateKeyFile": "key.pem", "tlsAllowInvalidCertificates": true, "tlsAllowInvalidHostnames": true,
            "tlsDisableCertificateRevocationCheck": false, "tlsDisableOCSPEndpointCheck": false, "tlsMinVersion": "1.3",
            "proxyHost": "proxy", "proxyPort": 1081, "proxyUsername": "bob", "compressors": ["zlib"],
            "zlibCompressionLevel": 6, "serverApi": { "version": "1", "strict": true, "deprecationErrors": null },
            "connectTimeoutMS": 1, "socketTimeoutMS": 2, "timeoutMS": 3, "drainTimeoutMS": 4, "drainLimit": 5,
            "busyPollMicros": 6, "replicaSet": "rs", "directConnection": true, "readPreference": "nearest",
            "readPreferenceTags": [{ "dc": "new, york", "rack": "%31" }, {}], "maxStalenessSeconds": 120, "hedge": true,
            "readConcernLevel": "majority", "w": 2, "journal": true, "wTimeoutMS": 7, "retryReads": false,
            "retryWrites": false, "maxAdaptiveRetries": 1, "enableOverloadRetargeting": true,
            "heartbeatFrequencyMS": 600, "localThresholdMS": 8, "serverSelectionTimeoutMS": 9,
            "serverSelectionTryOnce": false, "serverMonitoringMode": "poll"
        }"#;
        serde_json::from_str(text).unwrap()
    }

    /// The options that are not written: secrets, options that only set other options, and `tlsInsecure`, which is
    /// written in place of other options.
    const NOT_WRITTEN: [&str; 7] = [
        "uri",
        "password",
        "proxyPassword",
        "tlsCertificateKeyFilePassword",
        "authMechanismProperties",
        "ssl",
        "tlsInsecure",
    ];

    #[cfg(feature = "zlib")]
    #[test]
    fn every_option_is_written_as_it_is_read() {
        let with_secrets = |mut map: Json| {
            (map["password"], map["proxyPassword"]) = ("secret".into(), "secret".into());
            map
        };
        let options = read(with_secrets(full())).unwrap();
        let written = serde_json::to_value(&options).unwrap();
        assert_eq!(written, full());
        assert_eq!(read(with_secrets(written)), Ok(options));
        let of_srv = json!({
            "srv": "db.example.com", "srvServiceName": "shop", "srvMaxHosts": 2, "srvAllowedHostsSuffix": "example.com"
        });
        let options = read(of_srv.clone()).unwrap();
        assert!(options.tls.is_some());
        let written = serde_json::to_value(&options).unwrap();
        assert!(of_srv.as_object().unwrap().iter().all(|(name, value)| written[name] == *value), "{written}");
        for options in [options, Options::new(["a"]).unwrap(), Options::srv("a.b.c").unwrap()] {
            assert_eq!(read(serde_json::to_value(&options).unwrap()), Ok(options));
        }
        for name in names().filter(|name| !NOT_WRITTEN.contains(name)) {
            assert!(full().get(name).is_some() || of_srv.get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn map_reads_as_the_connection_string_with_the_same_options() {
        let pairs = [
            (json!("mongodb://a/?w=2"), "mongodb://a/?w=2"),
            (
                json!({ "uri": "mongodb://a/?w=2&maxPoolSize=5", "max_pool_size": "7" }),
                "mongodb://a/?w=2&maxPoolSize=7",
            ),
            (
                json!({ "HOSTS": "a:1, b", "REPLICA_SET": "rs", "TIMEOUT_MS": "5" }),
                "mongodb://a:1,b/?replicaSet=rs&timeoutMS=5",
            ),
            (json!({ "uri": "mongodb://ada@a", "password": "p@%41" }), "mongodb://ada:p%40%2541@a"),
            (json!({ "hosts": "a", "username": "ada", "password": 123 }), "mongodb://ada:123@a"),
            (json!({ "hosts": ["a"], "tls-ca-file": "ca%20.pem" }), "mongodb://a/?tlsCAFile=ca%2520.pem"),
            (json!({ "srv": "a.b.c", "tls": "false" }), "mongodb+srv://a.b.c/?tls=false"),
            (
                json!({ "uri": "mongodb://a/?readPreference=nearest&readPreferenceTags=x:y", "readPreferenceTags": "dc:ny" }),
                "mongodb://a/?readPreference=nearest&readPreferenceTags=dc:ny",
            ),
            (
                json!({ "uri": "mongodb://ada@a/?authMechanism=GSSAPI", "authMechanismProperties": { "SERVICE_NAME": "a%b" } }),
                "mongodb://ada@a/?authMechanism=GSSAPI&authMechanismProperties=SERVICE_NAME:a%25b",
            ),
            (json!({ "uri": "mongodb://a/?w=0&unknown=1", "w": null }), "mongodb://a/?w=0&unknown=1"),
        ];
        for (map, uri) in pairs {
            assert_eq!(read(map), Options::parse(uri).map_err(|error| error.to_string()), "{uri}");
        }
    }

    #[test]
    fn errors_name_the_option_the_value_and_what_is_allowed() {
        let of = |name: &str, value: Json| {
            let mut map = json!({ "hosts": ["a"] });
            map[name] = value;
            map
        };
        let refusals = [
            (
                of("max_pool_sise", json!(5)),
                "option \"max_pool_sise\" is not supported; the nearest name is maxPoolSize",
            ),
            (of("pasword", json!("secret")), "option \"pasword\" is not supported; the nearest name is password"),
            (of("color", json!(null)), "option \"color\" is not supported"),
            (of("maxConnecting", json!(0)), "maxConnecting must be 1 to 1048575, got \"0\""),
            (of("connectTimeoutMS", json!("5s")), "connectTimeoutMS must be 0 (no limit) to 2147483647, got \"5s\""),
            (of("appName", json!({ "a": 1 })), "appName must be at most 128 bytes, got a map"),
            (of("retryReads", json!("on")), "retryReads must be true or false, got \"on\""),
            #[cfg(all(feature = "snappy", feature = "zlib", feature = "zstd"))]
            (of("compressors", json!("lz4")), "compressors must be one of snappy, zlib, zstd, got \"lz4\""),
            (of("tlsMinVersion", json!("1.1")), "tlsMinVersion must be 1.2 or 1.3, got \"1.1\""),
            (of("serverApi", json!("2")), "serverApi must have the version 1, got 2"),
            (
                of("driverInfo", json!({ "nam": "a" })),
                "driverInfo must be a map of name, version, platform, got \"nam\"",
            ),
            (of("maxLifetimeMS", json!("long")), "maxLifetimeMS must be 0 (no limit) to 2147483647, got \"long\""),
            (of("uri", json!("mongodb://a")), "hosts cannot be combined with uri"),
            (of("Hosts", json!("a")), "hosts is given more than once"),
            (
                json!({ "tlsInsecure": true, "tlsAllowInvalidHostnames": false }),
                "tlsInsecure cannot be combined with tlsAllowInvalidHostnames",
            ),
            (of("srvMaxHosts", json!(1)), "srvMaxHosts requires mongodb+srv://"),
            (json!({ "appName": "shop" }), "hosts must name at least one host"),
            (json!(5), "invalid type: integer `5`, expected a connection string or a map of options"),
        ];
        for (map, message) in refusals {
            assert_eq!(read(map).unwrap_err(), message);
        }
        let secrets = [
            of("authMechanismProperties", json!(["secret"])),
            of("password", json!(["secret"])),
            json!({ "uri": "mongodb://ada:x@y/secret@host/", "maxPoolSize": "secret" }),
        ];
        for map in secrets {
            let message = read(map).unwrap_err();
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[test]
    fn check_of_connections_that_have_none_is_refused() {
        let options = read(json!({ "hosts": "a", "checkBeforeUseMS": "never" })).unwrap();
        assert_eq!(options.pool.check_before_use, Some(CheckBeforeUse::Never));
        let message = read(json!({ "hosts": "a", "checkBeforeUseMS": 5 })).unwrap_err();
        assert!(message.starts_with("checkBeforeUse must be Never"), "{message}");
    }

    #[test]
    fn guide_names_every_field() {
        let guide = include_str!("../../../guide/options.md");
        for name in names() {
            assert!(guide.contains(&format!("`{name}`")), "src/guide/options.md must have {name}");
        }
    }
}
