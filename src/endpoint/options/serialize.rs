//! Serializes options for serde, with the names of connection strings. Secrets are left out.
//!
//! `Options` and the types without private fields are destructured without `..`. So a new field does not compile until it
//! is written here, or left out on purpose.

use std::time::Duration;

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};

use super::{
    Acknowledgement, Compressor, Credential, DriverInfo, Mechanism, Options, ProxyOptions, ReadPreference, ServerApi,
    SrvName, TlsOptions, TlsVersion, WriteConcern,
};

/// The names and values to write, in order.
#[derive(Default)]
struct Written(Vec<(&'static str, Value)>);

impl Written {
    fn put(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push((name, value.into()));
    }

    fn put_millis(&mut self, name: &'static str, time: Duration) {
        self.put(name, millis(time));
    }

    fn finish<S: Serializer>(self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A map whose keys are the names of options in connection strings. Times are in milliseconds, unless the name says
/// otherwise. An option that connection strings cannot set is named after its method, in the same style.
///
/// Passwords, the values of `authMechanismProperties`, the user of `MONGODB-AWS`, and keys and certificates from memory are
/// left out.
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
            // Not options.
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
        written.put_millis("connectTimeoutMS", *connect_timeout);
        written.put_millis("socketTimeoutMS", *socket_timeout);
        written.put("timeoutMS", timeout.map(millis));
        written.put_millis("drainTimeoutMS", *drain_timeout);
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
        written.put("heartbeatFrequencyMS", heartbeat_frequency.map(millis));
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
    // The identifier of an access key is half the secret.
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
    written.put("tlsAllowInvalidCertificates", tls.allow_invalid_certificates);
    written.put("tlsAllowInvalidHostnames", tls.allow_invalid_hostnames);
    written.put("tlsDisableCertificateRevocationCheck", tls.disable_certificate_revocation_check);
    written.put("tlsDisableOCSPEndpointCheck", tls.disable_ocsp_endpoint_check);
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
    written.put("wTimeoutMS", w_timeout.map(millis));
}

#[cfg(test)]
mod tests {
    use super::super::uri::names_that_are_shown;
    use super::*;

    /// Options with everything set. The secrets contain the word "secret", and no other value does.
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
}
