//! Options from code have the same values and undergo the same validation as options from connection strings.

use std::time::Duration;

use wharf::{
    Acknowledgement, Compressor, Credential, Host, InvalidOption, Mechanism, Options, PoolOptions, ProxyOptions,
    ReadPreference, ReadPreferenceMode, ServerAddress, ServerApi, ServerApiVersion, ServerMonitoringMode, TlsOptions,
    WriteConcern,
};

use super::parse;

fn here() -> Options {
    Options::new(["localhost"]).unwrap()
}

fn refused(options: Options) -> InvalidOption {
    options.validate().unwrap_err()
}

#[test]
fn code_and_connection_strings_make_the_same_options() {
    let uri = "mongodb://ada:secret@db1,db2:2/shop?appName=shop&authMechanism=SCRAM-SHA-256&authSource=users\
        &compressors=zstd,zlib&zlibCompressionLevel=6&connectTimeoutMS=1&socketTimeoutMS=2&timeoutMS=3&maxPoolSize=4\
        &minPoolSize=1&maxIdleTimeMS=5&maxConnecting=6&waitQueueTimeoutMS=7&replicaSet=rs&directConnection=false\
        &readPreference=nearest&readPreferenceTags=dc:ny,rack:1&readPreferenceTags=&maxStalenessSeconds=90\
        &readConcernLevel=majority&w=majority&journal=true&wTimeoutMS=8&retryReads=false&retryWrites=false\
        &maxAdaptiveRetries=9&enableOverloadRetargeting=true&heartbeatFrequencyMS=500&localThresholdMS=10\
        &serverSelectionTimeoutMS=11&serverSelectionTryOnce=false&serverMonitoringMode=poll&proxyHost=proxy&proxyPort=12\
        &proxyUsername=eve&proxyPassword=secret&tlsCAFile=ca&tlsCertificateKeyFile=key\
        &tlsCertificateKeyFilePassword=secret&tlsAllowInvalidCertificates=true&tlsAllowInvalidHostnames=true";
    let millis = Duration::from_millis;
    let pool = PoolOptions::default()
        .max_pool_size(4)
        .min_pool_size(1)
        .max_idle_time(millis(5))
        .max_connecting(6)
        .wait_queue_timeout(millis(7));
    let read_preference = ReadPreference::new(ReadPreferenceMode::Nearest)
        .tag_set([("dc", "ny"), ("rack", "1")])
        .tag_set::<&str, &str>([])
        .max_staleness(Duration::from_secs(90));
    let write_concern =
        WriteConcern::default().w(Acknowledgement::Mode("majority".into())).journal(true).w_timeout(millis(8));
    let tls = TlsOptions::default()
        .ca_file("ca")
        .certificate_key_file("key")
        .certificate_key_file_password("secret")
        .allow_invalid_certificates(true)
        .allow_invalid_hostnames(true);
    let options = Options::new(["db1", "db2:2"])
        .unwrap()
        .default_database("shop")
        .auth_source("users")
        .credential(Credential::new("ada", "secret").mechanism(Mechanism::ScramSha256))
        .app_name("shop")
        .compressors([Compressor::Zstd, Compressor::Zlib { level: 6 }])
        .connect_timeout(millis(1))
        .socket_timeout(millis(2))
        .timeout(millis(3))
        .pool(pool)
        .replica_set("rs")
        .direct_connection(false)
        .read_preference(read_preference)
        .read_concern("majority")
        .write_concern(write_concern)
        .retry_reads(false)
        .retry_writes(false)
        .max_adaptive_retries(9)
        .enable_overload_retargeting(true)
        .heartbeat_frequency(millis(500))
        .local_threshold(millis(10))
        .server_selection_timeout(millis(11))
        .server_selection_try_once(false)
        .server_monitoring_mode(ServerMonitoringMode::Poll)
        .proxy(ProxyOptions::new("proxy").port(12).login("eve", "secret"))
        .tls(tls);
    assert_eq!(parse(uri), options);
    assert_eq!(options.validate(), Ok(()));
    assert!(!format!("{options:?}").contains("secret"));
}

#[test]
fn defaults_are_those_of_the_specification() {
    let options = here();
    assert_eq!(options, parse("mongodb://localhost"));
    assert_eq!(options.connect_timeout, Duration::from_secs(10));
    assert_eq!((options.socket_timeout, options.timeout), (Duration::ZERO, None));
    assert_eq!(options.heartbeat_frequency, None, "10 s with monitors, 60 s without");
    assert_eq!(options.local_threshold, Duration::from_millis(15));
    assert_eq!(options.server_selection_timeout, Duration::from_secs(30));
    assert_eq!(options.max_adaptive_retries, 2);
    assert!(options.retry_reads && options.retry_writes && !options.enable_overload_retargeting);
    assert_eq!(options.read_preference.mode, ReadPreferenceMode::Primary);
    assert_eq!((options.tls, options.credential, options.proxy, options.srv), (None, None, None, None));
}

#[test]
fn invalid_options_from_code_are_refused() {
    let login = |name: &str, password: &str| ProxyOptions::new("h").login(name, password);
    let refusals = [
        (here().app_name("x".repeat(129)), "appName"),
        (here().heartbeat_frequency(Duration::from_millis(499)), "heartbeatFrequencyMS"),
        (here().server_selection_timeout(Duration::ZERO), "serverSelectionTimeoutMS"),
        (here().replica_set(""), "replicaSet"),
        (here().read_concern(""), "readConcernLevel"),
        (here().auth_source(""), "authSource"),
        (here().default_database("a b"), "database"),
        (here().compressors([Compressor::Zlib { level: 10 }]), "zlibCompressionLevel"),
        (here().compressors([Compressor::Zlib { level: -2 }]), "zlibCompressionLevel"),
        (here().write_concern(WriteConcern::default().w(Acknowledgement::Mode(String::new()))), "w"),
        (here().write_concern(WriteConcern::default().w(Acknowledgement::Servers(0)).journal(true)), "journal"),
        (here().read_preference(ReadPreference::default().tag_set([("a", "b")])), "readPreferenceTags"),
        (
            here().read_preference(ReadPreference::default().max_staleness(Duration::from_secs(89))),
            "maxStalenessSeconds",
        ),
        (
            here().read_preference(ReadPreference::default().max_staleness(Duration::from_secs(90))),
            "maxStalenessSeconds",
        ),
        (here().proxy(ProxyOptions::new("")), "proxyHost"),
        (here().proxy(ProxyOptions::new("h").port(0)), "proxyPort"),
        (here().proxy(login("", "p")), "proxyUsername"),
        (here().proxy(login("u", "")), "proxyPassword"),
        (here().proxy(login("u", &"p".repeat(256))), "proxyPassword"),
        (here().load_balanced(true).replica_set("r"), "loadBalanced"),
        (here().pool(PoolOptions::default().load_balanced(true)).replica_set("r"), "loadBalanced"),
        (here().pool(PoolOptions::default().max_connecting(0)), "maxConnecting"),
        (here().pool(PoolOptions::default().min_pool_size(101)), "minPoolSize"),
        (Options::new([]).unwrap(), "hosts"),
        (Options::new(["a", "b"]).unwrap().direct_connection(true), "directConnection"),
        (here().credential(Credential::new("", "p")), "username"),
        (here().credential(Credential::new("u", "p").source("")), "authSource"),
        (here().credential(Credential::new("u", "p").mechanism(Mechanism::MongoDbX509)), "password"),
        (here().credential(Credential::new("u", "p").mechanism(Mechanism::MongoDbAws)), "username"),
        (here().credential(Credential::of(Mechanism::MongoDbOidc)), "ENVIRONMENT of authMechanismProperties"),
    ];
    for (options, option) in refusals {
        assert_eq!(refused(options).option, option);
    }
    let error = refused(here().proxy(login("u", &"hunter2".repeat(40))));
    assert_eq!(error.to_string(), "proxyPassword must be 1 to 255 bytes, got 280 bytes");
}

#[test]
fn errors_show_durations_as_they_were_set() {
    let error = refused(here().heartbeat_frequency(Duration::from_micros(700)));
    assert_eq!(error.to_string(), "heartbeatFrequencyMS must be at least 500 ms, got 0.7 ms");
    let error = refused(here().busy_poll(Duration::from_micros(10_001)));
    assert_eq!(error.to_string(), "busyPoll must be at most 10 ms, got 10.001 ms");
    let almost = ReadPreference::new(ReadPreferenceMode::Nearest).max_staleness(Duration::from_millis(89_999));
    let error = refused(here().read_preference(almost));
    assert_eq!(error.to_string(), "maxStalenessSeconds must be -1 (no limit) or at least 90, got 89.999");
}

#[test]
fn values_from_code_replace_those_of_a_connection_string() {
    let options = parse("mongodb://a/?loadBalanced=true&maxPoolSize=5&authSource=users&tls=true");
    let options = options.pool(PoolOptions::default().max_pool_size(7));
    assert!(options.is_load_balanced());
    assert_eq!(options.pool.capacity(), 7);
    assert!(!options.clone().load_balanced(false).is_load_balanced());
    let credential = options.clone().credential(Credential::new("u", "p")).credential.unwrap();
    assert_eq!(credential.effective_source(Some("db")), "users");
    let credential = options.clone().credential(Credential::new("u", "p").source("own")).credential.unwrap();
    assert_eq!(credential.effective_source(Some("db")), "own");
    assert_eq!(options.tls(None).tls, None);
}

#[test]
fn mechanism_properties_are_case_insensitive_and_the_last_value_counts() {
    let credential = Credential::of(Mechanism::MongoDbOidc)
        .mechanism_property("environment", "gcp")
        .mechanism_property("ENVIRONMENT", "azure")
        .mechanism_property("TOKEN_RESOURCE", "api://a,b");
    assert_eq!(credential.property("Environment").unwrap().reveal(), "azure");
    assert_eq!(credential.mechanism_properties.len(), 2);
    assert_eq!(here().credential(credential).validate(), Ok(()));
}

#[test]
fn any_tls_option_and_srv_turn_tls_on() {
    assert_eq!(parse("mongodb://a/?tls=true").tls, Some(TlsOptions::default()));
    assert_eq!(parse("mongodb://a/?ssl=true").tls, Some(TlsOptions::default()));
    assert_eq!(parse("mongodb://a/?tls=false").tls, None);
    assert_eq!(parse("mongodb://a/?tlsCAFile=f").tls, Some(TlsOptions::default().ca_file("f")));
    assert_eq!(parse("mongodb://a/?tlsInsecure=true").tls, Some(TlsOptions::default().insecure(true)));
    assert_eq!(parse("mongodb+srv://a.b.c").tls, Some(TlsOptions::default()));
    assert_eq!(parse("mongodb+srv://a.b.c/?ssl=false").tls, None);
    assert_eq!(parse("mongodb+srv://a.b.c"), Options::srv("A.b.c.").unwrap());
}

#[test]
fn addresses_are_shown_in_one_piece() {
    let address = ServerAddress::parse("/run/m.sock").unwrap();
    assert_eq!(address.host(), &Host::Unix { path: "/run/m.sock".into() });
    assert_eq!(address.to_string(), "/run/m.sock");
    assert_eq!(ServerAddress::parse("[::1]").unwrap().to_string(), "[::1]:27017");
    let endpoint = Options::new(["/run/m.sock"]).unwrap().endpoint();
    assert_eq!(endpoint.unwrap().address(), "/run/m.sock");
}

#[test]
fn server_api_has_a_version_and_two_flags() {
    let api = ServerApi::new(ServerApiVersion::V1).strict(true).deprecation_errors(false);
    assert_eq!((api.version.as_str(), api.strict, api.deprecation_errors), ("1", Some(true), Some(false)));
    assert_eq!(here().server_api(api.clone()).server_api, Some(api));
}
