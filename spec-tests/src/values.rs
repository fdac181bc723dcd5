//! Looks up an option by the name that it has in connection strings, and returns its value in the suites' JSON
//! notation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};
use wharf::{Acknowledgement, Compressor, Options, Secret, TlsOptions};

/// Returns the option's value, or `None` if the option is not set and has no default.
pub fn value_of(options: &Options, name: &str) -> Option<Value> {
    let millis = |limit: Duration| json!(u64::try_from(limit.as_millis()).unwrap());
    let path = |file: &Option<std::path::PathBuf>| file.as_ref().map(|file| json!(file.to_str().unwrap()));
    let tls = options.tls.as_ref();
    let is_insecure = |tls: &TlsOptions| {
        tls.allow_invalid_certificates
            && tls.allow_invalid_hostnames
            && tls.disable_ocsp_endpoint_check
            && tls.disable_certificate_revocation_check
    };
    let credential = options.credential.as_ref();
    match name.to_lowercase().as_str() {
        "appname" => options.app_name.as_ref().map(|name| json!(name)),
        "authmechanism" => credential?.mechanism.map(|mechanism| json!(mechanism.name())),
        "authmechanismproperties" => Some(properties(&credential?.mechanism_properties)),
        "authsource" => options.auth_source.as_ref().map(|source| json!(source)),
        "compressors" => Some(options.compressors.iter().map(|compressor| compressor.name()).collect()),
        "connecttimeoutms" => Some(millis(options.connect_timeout)),
        "directconnection" => options.direct_connection.map(Value::from),
        "enableoverloadretargeting" => Some(json!(options.enable_overload_retargeting)),
        "heartbeatfrequencyms" => options.heartbeat_frequency.map(millis),
        "journal" => options.write_concern.journal.map(Value::from),
        "loadbalanced" => {
            assert_eq!(options.is_load_balanced(), options.load_balanced == Some(true));
            options.load_balanced.map(Value::from)
        }
        "localthresholdms" => Some(millis(options.local_threshold)),
        "maxadaptiveretries" => Some(json!(options.max_adaptive_retries)),
        "maxconnecting" => Some(json!(options.pool.max_connecting)),
        "maxidletimems" => Some(millis(options.pool.max_idle_time)),
        "maxpoolsize" => Some(json!(options.pool.max_pool_size)),
        "minpoolsize" => Some(json!(options.pool.min_pool_size)),
        "maxstalenessseconds" => options.read_preference.max_staleness.map(|limit| json!(limit.as_secs())),
        "readconcernlevel" => options.read_concern.as_ref().map(|level| json!(level)),
        "readpreference" => Some(json!(options.read_preference.mode.name())),
        "readpreferencetags" => Some(json!(options.read_preference.tag_sets)),
        "replicaset" => options.replica_set.as_ref().map(|name| json!(name)),
        "retryreads" => Some(json!(options.retry_reads)),
        "retrywrites" => Some(json!(options.retry_writes)),
        "servermonitoringmode" => Some(json!(options.server_monitoring_mode.name())),
        "serverselectiontimeoutms" => Some(millis(options.server_selection_timeout)),
        "serverselectiontryonce" => Some(json!(options.server_selection_try_once)),
        "sockettimeoutms" => Some(millis(options.socket_timeout)),
        "srvmaxhosts" => options.srv.as_ref().map(|srv| json!(srv.max_hosts)),
        "srvservicename" => options.srv.as_ref().map(|srv| json!(srv.service_name)),
        "ssl" | "tls" => Some(json!(tls.is_some())),
        "timeoutms" => options.timeout.map(millis),
        "tlsallowinvalidcertificates" => Some(json!(tls?.allow_invalid_certificates)),
        "tlsallowinvalidhostnames" => Some(json!(tls?.allow_invalid_hostnames)),
        "tlscafile" => path(&tls?.ca_file),
        "tlscertificatekeyfile" => path(&tls?.certificate_key_file),
        "tlscertificatekeyfilepassword" => {
            tls?.certificate_key_file_password.as_ref().map(|password| json!(password.reveal()))
        }
        "tlsdisablecertificaterevocationcheck" => Some(json!(tls?.disable_certificate_revocation_check)),
        "tlsdisableocspendpointcheck" => Some(json!(tls?.disable_ocsp_endpoint_check)),
        "tlsinsecure" => Some(json!(is_insecure(tls?))),
        "waitqueuetimeoutms" => Some(millis(options.pool.wait_queue_timeout)),
        "w" => options.write_concern.w.as_ref().map(|w| match w {
            Acknowledgement::Servers(servers) => json!(servers),
            Acknowledgement::Mode(mode) => json!(mode),
            other => panic!("{other:?}"),
        }),
        "wtimeoutms" => options.write_concern.w_timeout.map(millis),
        "zlibcompressionlevel" => options.compressors.iter().find_map(|compressor| match compressor {
            Compressor::Zlib { level } => Some(json!(level)),
            _ => None,
        }),
        unknown => panic!("{unknown} is not an option that this test can read"),
    }
}

/// Returns the properties of an authentication mechanism in the suites' JSON notation.
pub fn properties(properties: &[(String, Secret)]) -> Value {
    let properties: BTreeMap<_, _> =
        properties.iter().map(|(name, value)| (name.clone(), json!(value.reveal()))).collect();
    Value::Object(Map::from_iter(properties))
}
