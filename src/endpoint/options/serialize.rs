//! Serializes options for serde, with the names used in connection strings. Secrets are left out.
//!
//! `Options` and the types without private fields are destructured without `..`, so the code does not compile until a
//! new field is written here or deliberately left out.

use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};

use super::{
    Acknowledgement, Compressor, Credential, DriverInfo, Mechanism, Options, ProxyOptions, ReadPreference, ServerApi,
    SrvName, TlsOptions, TlsVersion, WriteConcern,
};
use crate::pool::options::MAX_INT;
use crate::text::milliseconds::rounded_up;

/// The longest limit, in milliseconds, that an option can have if the specification defines it as a 64-bit integer.
const MAX_LONG: u64 = i64::MAX.unsigned_abs();

/// The names and values to write, in order.
#[derive(Default)]
struct Written(Vec<(&'static str, Value)>);

impl Written {
    fn put(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into()));
    }

    fn put_millis(&mut self, name: &'static str, time: Duration) {
        self.put(name, rounded_up(time));
    }

    /// Writes a time limit, for which 0 means no limit. A limit that is too long to be read back is written as no
    /// limit.
    fn put_limit(&mut self, name: &'static str, limit: impl Into<Option<Duration>>, longest: u64) {
        let limit = limit.into().map(rounded_up);
        self.put(name, limit.map(|limit| if limit <= longest { limit } else { 0 }));
    }

    fn finish<S: Serializer>(self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// Writes a map whose keys are the names of options in connection strings. Times are in milliseconds, unless the name
/// says otherwise. An option that connection strings cannot set is named after its method, in the same style.
///
/// A TLS option is left out if another option makes it irrelevant and a map may not contain both.
///
/// Passwords, the values of `authMechanismProperties`, the `MONGODB-AWS` user, and keys and certificates supplied in
/// memory are left out.
impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            hosts,
            srv,
            app_name,
            driver_info,
            credential,
            auth_source,
            default_database,
            tls,
            proxy,
            compressors,
            server_api,
            connect_timeout,
            socket_timeout,
            timeout,
            drain_timeout,
            drain_limit,
            busy_poll,
            pool: pool_options,
            load_balanced,
            replica_set,
            direct_connection,
            read_preference,
            read_concern,
            write_concern,
            retry_reads,
            retry_writes,
            max_adaptive_retries,
            enable_overload_retargeting,
            heartbeat_frequency,
            local_threshold,
            server_selection_timeout,
            server_selection_try_once,
            server_monitoring_mode,
            // These are not options.
            warnings: _,
            is_strict: _,
        } = self;
        let mut written = Written::default();
        written.put("hosts", hosts.iter().map(|host| host.as_str().to_owned()).collect::<Vec<_>>());
        if let Some(name) = srv {
            put_srv(name, &mut written);
        }
        for (name, value) in pool_options.fields().filter(|(name, _)| *name != "loadBalanced") {
            written.put(name, value);
        }
        written.put("loadBalanced", if pool_options.load_balanced { Some(true) } else { *load_balanced });
        written.put("appName", app_name.clone());
        written.put("driverInfo", driver_info.as_ref().map(library));
        put_credential(credential.as_ref(), auth_source.as_ref(), &mut written);
        written.put("database", default_database.clone());
        put_tls(tls.as_ref(), &mut written);
        if let Some(proxy) = proxy {
            put_proxy(proxy, &mut written);
        }
        written.put("compressors", compressors.iter().map(|one| one.name()).collect::<Vec<_>>());
        let level = compressors.iter().find_map(|one| match one {
            Compressor::Zlib { level } => Some(*level),
            Compressor::Snappy | Compressor::Zstd => None,
        });
        written.put("zlibCompressionLevel", level);
        written.put("serverApi", server_api.as_ref().map(api));
        written.put_limit("connectTimeoutMS", *connect_timeout, MAX_INT);
        written.put_limit("socketTimeoutMS", *socket_timeout, MAX_INT);
        written.put_limit("timeoutMS", *timeout, MAX_LONG);
        written.put_limit("drainTimeoutMS", *drain_timeout, MAX_INT);
        written.put("drainLimit", *drain_limit);
        written.put("busyPollMicros", u64::try_from(busy_poll.as_micros()).unwrap_or(u64::MAX));
        written.put("replicaSet", replica_set.clone());
        written.put("directConnection", *direct_connection);
        put_read_preference(read_preference, &mut written);
        written.put("readConcernLevel", read_concern.clone());
        put_write_concern(write_concern, &mut written);
        written.put("retryReads", *retry_reads);
        written.put("retryWrites", *retry_writes);
        written.put("maxAdaptiveRetries", *max_adaptive_retries);
        written.put("enableOverloadRetargeting", *enable_overload_retargeting);
        written.put("heartbeatFrequencyMS", heartbeat_frequency.map(rounded_up));
        written.put_millis("localThresholdMS", *local_threshold);
        written.put_millis("serverSelectionTimeoutMS", *server_selection_timeout);
        written.put("serverSelectionTryOnce", *server_selection_try_once);
        written.put("serverMonitoringMode", server_monitoring_mode.name());
        written.finish(serializer)
    }
}

fn put_srv(name: &SrvName, written: &mut Written) {
    let SrvName { host, service_name, max_hosts, allowed_hosts_suffix } = name;
    written.put("srv", host.clone());
    written.put("srvServiceName", service_name.clone());
    written.put("srvMaxHosts", *max_hosts);
    written.put("srvAllowedHostsSuffix", allowed_hosts_suffix.clone());
}

fn library(info: &DriverInfo) -> Value {
    let DriverInfo { name, version, platform } = info;
    json!({ "name": name, "version": version, "platform": platform })
}

fn put_credential(credential: Option<&Credential>, auth_source: Option<&String>, written: &mut Written) {
    let source = credential.map_or(auth_source, |credential| credential.source.as_ref());
    written.put("authSource", source.cloned());
    let Some(credential) = credential else { return };
    let Credential { username, password: _, source: _, mechanism, mechanism_properties: _, .. } = credential;
    // The identifier of an access key is half of a secret, so it is left out.
    let is_shown = *mechanism != Some(Mechanism::MongoDbAws);
    written.put("username", username.clone().filter(|_| is_shown));
    written.put("authMechanism", mechanism.map(Mechanism::name));
    #[cfg(feature = "oidc")]
    if let Some(hosts) = &credential.oidc.allowed_hosts {
        written.put("allowedHosts", hosts.clone());
    }
}

fn put_tls(tls: Option<&TlsOptions>, written: &mut Written) {
    written.put("tls", tls.is_some());
    let Some(tls) = tls else { return };
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map(|path| path.display().to_string());
    written.put("tlsCAFile", path(&tls.ca_file));
    written.put("tlsCertificateKeyFile", path(&tls.certificate_key_file));
    let any_certificate = tls.allow_invalid_certificates;
    let (no_revocation, no_responders) = (tls.disable_certificate_revocation_check, tls.disable_ocsp_endpoint_check);
    if any_certificate && tls.allow_invalid_hostnames && no_revocation && no_responders {
        written.put("tlsInsecure", true);
    } else {
        written.put("tlsAllowInvalidCertificates", any_certificate);
        written.put("tlsAllowInvalidHostnames", tls.allow_invalid_hostnames);
        if !(no_revocation && any_certificate) {
            written.put("tlsDisableCertificateRevocationCheck", no_revocation);
        }
        if !(no_responders && (any_certificate || no_revocation)) {
            written.put("tlsDisableOCSPEndpointCheck", no_responders);
        }
    }
    written.put(
        "tlsMinVersion",
        match tls.min_version {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        },
    );
}

fn put_proxy(proxy: &ProxyOptions, written: &mut Written) {
    let ProxyOptions { host, port, login } = proxy;
    written.put("proxyHost", host.clone());
    written.put("proxyPort", *port);
    written.put("proxyUsername", login.as_ref().map(|(name, _)| name.clone()));
}

fn api(api: &ServerApi) -> Value {
    let ServerApi { version, strict, deprecation_errors } = api;
    json!({ "version": version.as_str(), "strict": strict, "deprecationErrors": deprecation_errors })
}

fn put_read_preference(preference: &ReadPreference, written: &mut Written) {
    let ReadPreference { mode, tag_sets, max_staleness, hedge } = preference;
    written.put("readPreference", mode.name());
    let tags = |set: &std::collections::BTreeMap<String, String>| {
        Value::Object(set.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect::<Map<_, _>>())
    };
    written.put("readPreferenceTags", tag_sets.iter().map(tags).collect::<Vec<_>>());
    written.put("maxStalenessSeconds", max_staleness.map(|limit| limit.as_secs()));
    written.put("hedge", *hedge);
}

fn put_write_concern(concern: &WriteConcern, written: &mut Written) {
    let WriteConcern { w, journal, w_timeout } = concern;
    written.put(
        "w",
        match w {
            None => Value::Null,
            Some(Acknowledgement::Servers(servers)) => (*servers).into(),
            Some(Acknowledgement::Mode(mode)) => mode.clone().into(),
        },
    );
    written.put("journal", *journal);
    written.put_limit("wTimeoutMS", *w_timeout, MAX_LONG);
}

#[cfg(test)]
mod tests {
    use super::super::uri::names_that_are_shown;
    use super::*;

    /// Returns options with everything set. The secrets contain the word "secret", and no other value does.
    fn full() -> Options {
        let uri = "mongodb://ada:secret1@db.example.com/?authMechanism=PLAIN&proxyHost=proxy&proxyUsername=bob\
                   &proxyPassword=secret2&tls=true&tlsCertificateKeyFilePassword=secret3&tlsCertificateKeyFile=key.pem\
                   &compressors=zlib&zlibCompressionLevel=6&w=majority&maxPoolSize=7&maxIdleTimeMS=1500";
        let mut options = Options::parse(uri).unwrap();
        options.srv = Some(SrvName::parse("cluster.example.com").unwrap());
        let tls = options.tls.take().unwrap().certificate_key_pem("secret4").certificate_key_file_password("secret5");
        let mut credential = options.credential.take().unwrap().mechanism_property("TOKEN_RESOURCE", "secret6");
        credential = credential.mechanism_property("ENVIRONMENT", "secret7");
        options.tls(tls).credential(credential)
    }

    #[test]
    fn no_secret_is_written() {
        let options = full();
        let text = serde_json::to_string(&options).unwrap();
        assert!(text.contains("ada") && text.contains("bob") && !text.contains("secret"), "{text}");
        let key = Credential::new("secret8", "secret9").mechanism(Mechanism::MongoDbAws);
        let text = serde_json::to_string(&options.credential(key)).unwrap();
        assert!(text.contains("MONGODB-AWS") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn every_option_of_connection_strings_is_written_unless_it_is_secret() {
        let Value::Object(written) = serde_json::to_value(full()).unwrap() else { panic!("not a map") };
        for name in names_that_are_shown() {
            assert!(written.contains_key(name), "{name} is missing in {:?}", written.keys());
        }
        assert_eq!(written["maxPoolSize"], 7);
        assert_eq!(written["maxIdleTimeMS"], 1_500);
        assert_eq!(written["w"], "majority");
        assert_eq!(written["zlibCompressionLevel"], 6);
    }

    /// Writes the options, and reads them back.
    fn read_again(options: &Options) -> Options {
        let written = serde_json::to_value(options).unwrap();
        serde_json::from_value(written.clone()).unwrap_or_else(|error| panic!("{error}: {written}"))
    }

    #[test]
    fn insecure_options_are_read_again() {
        let insecure = Options::new(["a"]).unwrap().tls(TlsOptions::default().insecure(true));
        assert_eq!(read_again(&insecure), insecure);
        assert_eq!(insecure, Options::parse("mongodb://a/?tlsInsecure=true").unwrap());
    }

    #[test]
    fn tls_options_that_another_one_makes_moot_are_left_out() {
        for flags in 0..16_u8 {
            let [any, name, revocation, responders] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
            let tls = TlsOptions::default().allow_invalid_certificates(any).allow_invalid_hostnames(name);
            let tls = tls.disable_certificate_revocation_check(revocation).disable_ocsp_endpoint_check(responders);
            let read = read_again(&Options::new(["a"]).unwrap().tls(tls)).tls.unwrap();
            assert_eq!((read.allow_invalid_certificates, read.allow_invalid_hostnames), (any, name));
            // Whether the verification of a stapled response is skipped, and whether the request to responders is
            // skipped.
            let checks =
                |any: bool, revocation: bool, responders: bool| (any || revocation, any || revocation || responders);
            assert_eq!(
                checks(any, read.disable_certificate_revocation_check, read.disable_ocsp_endpoint_check),
                checks(any, revocation, responders),
            );
        }
    }

    #[test]
    fn limit_is_rounded_up_and_too_long_a_limit_is_none() {
        let write = |time| {
            let mut options = Options::new(["a"]).unwrap();
            options.write_concern.w_timeout = Some(time);
            options = options.connect_timeout(time).socket_timeout(time).timeout(time).drain_timeout(time);
            let read = read_again(&options);
            let limits = [read.connect_timeout, read.socket_timeout, read.drain_timeout];
            (limits.map(|limit| limit.as_millis()), [read.timeout, read.write_concern.w_timeout])
        };
        let millis = Duration::from_millis;
        assert_eq!(write(Duration::from_micros(500)), ([1; 3], [Some(millis(1)); 2]));
        assert_eq!(write(Duration::from_micros(2_001)), ([3; 3], [Some(millis(3)); 2]));
        assert_eq!(write(millis(MAX_INT + 1)), ([0; 3], [Some(millis(MAX_INT + 1)); 2]));
        assert_eq!(write(Duration::MAX), ([0; 3], [Some(Duration::ZERO); 2]));
        let mut options = Options::new(["a"]).unwrap();
        options.pool = options.pool.max_idle_time(Duration::from_micros(500)).max_lifetime(Duration::from_micros(500));
        let read = read_again(&options).pool;
        assert_eq!((read.max_idle_time, read.max_lifetime), (millis(1), millis(1)));
    }
}
