//! Refused connection strings and their errors.

use wharf::{Credential, Host, Mechanism, Options, TlsOptions};

use super::{parse, refusal};

#[test]
fn malformed_connection_string_is_refused() {
    let refusals = [
        ("", "scheme must be mongodb:// or mongodb+srv://"),
        ("http://host", r#"scheme must be mongodb:// or mongodb+srv://, got "http""#),
        ("MONGODB://host", r#"scheme must be mongodb:// or mongodb+srv://, got "MONGODB""#),
        (
            "mongodb://host:x",
            r#"hosts must be host or host:port, where port is 1 to 65535, got "host" and a port, which is left out because it may be a password"#,
        ),
        (
            "mongodb://::1",
            r#"hosts must be an IPv6 address in square brackets, got "" and a port, which is left out because it may be a password"#,
        ),
        (
            "mongodb://a,",
            r#"hosts must be host or host:port, where host is a name or an IP address, or a socket's path ending in .sock, got """#,
        ),
        ("mongodb://a%zz", r#"hosts must be percent-encoded, in UTF-8, got "a%zz""#),
        ("mongodb://host/a%20b", "database must be a name without / \\ \" $ and spaces, got one with ' '"),
        ("mongodb://host/%ff", "database must be percent-encoded, in UTF-8"),
        ("mongodb://host/?w", r#"option "w" has no value"#),
        (
            "mongodb+srv://a.b.c,d.e.f",
            r#"hosts must be one name, not several, after mongodb+srv://, got "a.b.c,d.e.f""#,
        ),
        (
            "mongodb+srv://a.b.c:1",
            r#"hosts must be one name in the DNS, without a port, after mongodb+srv://, got "a.b.c" and a port, which is left out because it may be a password"#,
        ),
    ];
    for (uri, message) in refusals {
        assert_eq!(refusal(uri), message);
    }
}

#[test]
fn contradicting_options_are_refused_by_name() {
    let refusals = [
        ("mongodb://a,b/?directConnection=true", "directConnection cannot be true with 2 hosts"),
        ("mongodb+srv://a.b.c/?directConnection=true", "directConnection cannot be true with mongodb+srv://"),
        ("mongodb://a,b/?loadBalanced=true", "loadBalanced cannot be true with 2 hosts"),
        ("mongodb://a/?loadBalanced=true&replicaSet=r", "loadBalanced cannot be true with replicaSet"),
        (
            "mongodb://a/?loadBalanced=true&directConnection=true",
            "loadBalanced cannot be true with directConnection=true",
        ),
        ("mongodb+srv://a.b.c/?loadBalanced=true&srvMaxHosts=1", "loadBalanced cannot be true with srvMaxHosts=1"),
        ("mongodb+srv://a.b.c/?replicaSet=r&srvMaxHosts=1", "srvMaxHosts cannot be combined with replicaSet"),
        ("mongodb://a/?srvMaxHosts=x", "srvMaxHosts requires mongodb+srv://"),
        ("mongodb://a/?tls=true&ssl=no", "tls must be the same wherever tls or ssl is given"),
        (
            "mongodb://a/?tlsInsecure=x&tlsAllowInvalidHostnames=false",
            "tlsInsecure cannot be combined with tlsAllowInvalidHostnames",
        ),
        ("mongodb://a/?w=0&journal=true", "journal cannot be true with w=0"),
        ("mongodb://a/?readPreferenceTags=dc:ny", "readPreferenceTags cannot be combined with readPreference=primary"),
        ("mongodb://a/?maxStalenessSeconds=90", "maxStalenessSeconds cannot be combined with readPreference=primary"),
        ("mongodb://a/?minPoolSize=101", "minPoolSize must be at most maxPoolSize (100), got 101"),
        ("mongodb://a/?proxyHost=http%3A%2F%2Fproxy", "proxyHost must be a name or an IP address alone"),
        ("mongodb://a/?proxyPort=1", "proxyHost is required with proxyPort"),
        ("mongodb://a/?proxyHost=h&proxyUsername=u", "proxyPassword is required with proxyUsername"),
        (
            "mongodb://a/?authMechanism=MONGODB-CR",
            r#"authMechanism must be one of SCRAM-SHA-1, SCRAM-SHA-256, MONGODB-X509, PLAIN, MONGODB-AWS, MONGODB-OIDC, got "MONGODB-CR""#,
        ),
        ("mongodb://u@a/?authMechanism=PLAIN", "password is required with authMechanism=PLAIN"),
        (
            "mongodb://a/?authMechanism=MONGODB-X509&authSource=b",
            "authSource must be $external with authMechanism=MONGODB-X509, got b",
        ),
        (
            "mongodb://a/?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:k8s,ALLOWED_HOSTS:x",
            "authMechanismProperties must be one of ENVIRONMENT, TOKEN_RESOURCE with authMechanism=MONGODB-OIDC, got ALLOWED_HOSTS",
        ),
        (
            "mongodb://a/?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:k8s,TOKEN_RESOURCE:x",
            "TOKEN_RESOURCE of authMechanismProperties cannot be combined with ENVIRONMENT=k8s",
        ),
        (
            "mongodb://u@a/?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:test",
            "username cannot be combined with ENVIRONMENT=test",
        ),
        (
            "mongodb://u:p@a/?authMechanismProperties=X:y",
            "authMechanismProperties must be left out without authMechanism, got X",
        ),
    ];
    for (uri, message) in refusals {
        assert_eq!(refusal(uri), message);
    }
}

#[test]
fn too_large_pool_size_is_refused_as_in_code() {
    // The specification allows these values (non-negative 32-bit integers), so they must not be ignored.
    let refusals = [
        ("maxPoolSize=2000000", "maxPoolSize must be at most 1048575, got 2000000"),
        ("maxPoolSize=1048576", "maxPoolSize must be at most 1048575, got 1048576"),
        ("maxPoolSize=2147483647", "maxPoolSize must be at most 1048575, got 2147483647"),
        ("maxPoolSize=0&minPoolSize=1048576", "minPoolSize must be at most 1048575, got 1048576"),
        ("maxConnecting=1048576", "maxConnecting must be at most 1048575, got 1048576"),
    ];
    for (option, message) in refusals {
        assert_eq!(refusal(&format!("mongodb://a/?{option}")), message);
    }
    assert_eq!(parse("mongodb://a/?maxPoolSize=1048575").pool.capacity(), 1_048_575);
}

#[test]
fn invalid_value_of_a_protecting_option_is_refused() {
    for value in ["True", "TRUE", "on", "enabled", "", "2", " true", "%74rue%20", "require"] {
        for option in [
            "tls",
            "ssl",
            "tlsDisableOCSPEndpointCheck",
            "tlsDisableCertificateRevocationCheck",
            "TLS",
            "tlsdisableocspendpointcheck",
        ] {
            for uri in [format!("mongodb://a/?{option}={value}"), format!("mongodb+srv://a.b.c/?{option}={value}")] {
                let error = Options::parse(&uri).expect_err(&uri);
                assert!(error.option.eq_ignore_ascii_case(option), "{uri}: {error}");
                assert_eq!(error.problem, "must be true or false", "{uri}");
            }
        }
    }
    assert_eq!(refusal("mongodb://a/?tls=True"), r#"tls must be true or false, got "True""#);
    assert_eq!(refusal("mongodb://a/?ssl=%ff"), r#"ssl must be percent-encoded, in UTF-8, got "%ff""#);
    // Without the file, the client would trust the system's authorities, or have no certificate.
    for option in ["tlsCAFile", "tlsCertificateKeyFile"] {
        let message = format!(r#"{option} must be a path that is not empty, got """#);
        assert_eq!(refusal(&format!("mongodb://a/?tls=true&{option}=")), message);
    }
    let hidden = "tls must be true or false, got a value that is not shown, because it may be part of a password";
    assert_eq!(refusal("mongodb://a/?tls=hunter2@x"), hidden);
}

#[test]
fn invalid_value_of_a_relaxing_option_is_ignored_and_everything_is_checked() {
    // The official cases require a warning, and the result is TLS with every check.
    for option in ["tlsInsecure", "tlsAllowInvalidCertificates", "tlsAllowInvalidHostnames"] {
        for value in ["invalid", "True", ""] {
            let options = parse(&format!("mongodb://a/?{option}={value}"));
            assert_eq!(options.tls, Some(TlsOptions::default()), "{option}={value}");
            assert_eq!(options.warnings().len(), 1);
        }
    }
}

#[test]
fn repeated_option_is_refused_if_one_of_its_values_is() {
    assert_eq!(refusal("mongodb://a/?tls=yep&tls=true"), r#"tls must be true or false, got "yep""#);
    assert_eq!(refusal("mongodb://a/?tls=true&tls=yep"), r#"tls must be true or false, got "yep""#);
}

#[test]
fn x509_needs_tls_and_a_certificate() {
    let refused = |uri: &str| parse(uri).endpoint().unwrap_err().to_string();
    assert_eq!(refused("mongodb://a/?authMechanism=MONGODB-X509"), "tls must be true with authMechanism=MONGODB-X509");
    assert_eq!(
        refused("mongodb://CN=client@a/?authMechanism=MONGODB-X509&tls=true"),
        "tlsCertificateKeyFile is required with authMechanism=MONGODB-X509"
    );
    let options = Options::new(["a"]).unwrap().credential(Credential::of(Mechanism::MongoDbX509));
    assert_eq!(options.clone().endpoint().unwrap_err().option, "tls");
    assert_eq!(options.tls(TlsOptions::default()).endpoint().unwrap_err().option, "tlsCertificateKeyFile");
}

#[test]
fn oidc_environment_of_a_cloud_may_have_a_username() {
    for environment in ["azure,TOKEN_RESOURCE:r", "gcp,TOKEN_RESOURCE:r", "k8s"] {
        let uri =
            format!("mongodb://ada@a/?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:{environment}");
        let credential = parse(&uri).credential.unwrap();
        assert_eq!(credential.username.as_deref(), Some("ada"), "{environment}");
    }
}

#[test]
fn kerberos_is_refused_with_the_supported_mechanisms() {
    let message = "authMechanism GSSAPI is not supported; use one of SCRAM-SHA-1, SCRAM-SHA-256, \
        MONGODB-X509, PLAIN, MONGODB-AWS, MONGODB-OIDC";
    let error = parse("mongodb://ada%40REALM@a/?authMechanism=GSSAPI").endpoint().unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn link_local_address_keeps_its_zone() {
    let options = parse("mongodb://[fe80::1%25Eth0],[FE80::2%252]:27018");
    let hosts: Vec<_> = options.hosts.iter().map(|address| address.as_str()).collect();
    assert_eq!(hosts, ["[fe80::1%Eth0]:27017", "[fe80::2%2]:27018"]);
    assert_eq!(options.warnings(), []);
    // A percent sign begins an escape, and `%et` is not an escape.
    assert_eq!(refusal("mongodb://[fe80::1%eth0]"), r#"hosts must be percent-encoded, in UTF-8, got "[fe80::1%eth0]""#);
    for host in ["[fe80::1%25]", "[fe80::1%25a%2Fb]", "[fe80::1%25a%20]", "[fe80::1%25a%25b]"] {
        assert!(refusal(&format!("mongodb://{host}")).contains("zone"), "{host}");
    }
}

#[test]
fn password_in_any_part_is_not_repeated() {
    // A password that is not percent-encoded, or has no host after it, can be mistaken for any other part of the
    // string.
    let uris = [
        "mongodb://ada:hunter2",
        "mongodb://ada:hunter2swordfish",
        "mongodb://ada:123456",
        "mongodb://ada:hunter2/swordfish@host/db",
        "mongodb://ada:1/hunter2@host/db",
        "mongodb://ada:1/hunter2/swordfish@host",
        "mongodb://ada:1?hunter2=swordfish@host",
        "mongodb://ada:1?hunter2@host",
        "mongodb://ada:1/?w=-1&connectTimeoutMS=hunter2@host",
        "mongodb://ada:hunter2,swordfish/x@host",
        "mongodb://ada:hunter2@swordfish@host",
        "mongodb://ada:hunter2:swordfish@host",
        "mongodb://ada:hunter2%swordfish@host",
        "mongodb://ada:hunter2#swordfish@host",
        "mongodb://ada:hunter2 swordfish@host",
        "mongodb+srv://ada:hunter2",
        "mongodb+srv://ada:hunter2/swordfish@host.example.com",
        "ada:hunter2@host",
        "ada:hunter2://host",
        "mongodb://host/?authMechanism=MONGODB-X509&authMechanismProperties=hunter2",
        "mongodb://host/?proxyHost=h&proxyPassword=hunter2",
        "mongodb://host/?proxyHost=h&proxyUsername=u&proxyPassword=%",
        "mongodb://host/?tlsCertificateKeyFilePassword=hunter2%",
        "mongodb://ada:hunter2@host/?authMechanism=MONGODB-AWS",
        "mongodb://host/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:hunter2",
        // The password ends up in a value that is refused, either on its own or in combination with other options.
        "mongodb://u@host/?authMechanism=MOada:hunter2@x",
        "mongodb://host/?readPreferenceTags=ada:hunter2@x",
        "mongodb://u@host/?authMechanism=MONGODB-X509&authSource=ada:hunter2@x",
        "mongodb://u@host/?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:hunter2@x",
        "mongodb://u@host/?authMechanism=GSSAPI&authMechanismProperties=CANONICALIZE_HOST_NAME:hunter2@x",
        "mongodb://u:p@host/?authMechanismProperties=hunter:y@swordfish",
        "mongodb://u:p@host/?authMechanismProperties=hunter2@x:a%2Cb",
        "mongodb://host/?loadBalanced=true&replicaSet=ada:hunter2@x",
        "mongodb+srv://a.b.c/?srvMaxHosts=1&replicaSet=ada:hunter2@x",
        "mongodb+srv://a.b.c/?srvAllowedHostsSuffix=hunter2@x",
        "mongodb+srv://a.b.c/?srvServiceName=hunter2@x",
        "mongodb://host/?proxyHost=socks5%3A%2F%2Fada%3Ahunter2%40proxy",
        "mongodb://host/?proxyHost=ada%3Ahunter2%40proxy",
        // A secret is split: its beginning is the value of an option, and the rest follows as if it were another option
        // or property.
        "mongodb://host/?proxyHost=h&proxyUsername=u&proxyPassword=a&hunter2",
        "mongodb://host/?proxyHost=h&proxyUsername=u&PROXYPASSWORD=a&hunter2=b",
        "mongodb://host/?tlsCertificateKeyFilePassword=a&hunter2",
        "mongodb://host/?authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:k8s,X:a&hunter2",
        "mongodb://u:p@host/?authMechanismProperties=AWS_SESSION_TOKEN:a,hunter2:b",
        "mongodb://u:p@host/?authMechanismProperties=AWS_SESSION_TOKEN:a,hunter2:b%2Cc",
    ];
    for uri in uris {
        let shown = match Options::parse(uri) {
            Ok(options) => {
                let warnings: Vec<_> = options.warnings().iter().map(ToString::to_string).collect();
                format!("{warnings:?} {:?}", options.warnings())
            }
            Err(error) => format!("{error} {error:?}"),
        };
        for secret in ["hunter2", "swordfish", "123456"] {
            assert!(!shown.contains(secret), "{uri}: {shown}");
        }
    }
}

#[test]
fn possible_password_is_hidden_and_the_rest_of_the_error_stays() {
    let hidden = "authSource must be $external with authMechanism=MONGODB-X509, got a value that is not shown, because it may be part of a password";
    assert_eq!(refusal("mongodb://u@host/?authMechanism=MONGODB-X509&authSource=a@b"), hidden);
    let own_word = "password is required with authMechanism=PLAIN";
    assert_eq!(refusal("mongodb://u@host/?authMechanism=PLAIN&authSource=a@b"), own_word);
}

#[test]
fn hosts_are_kept_in_order_in_lower_case_without_duplicates() {
    let options = parse("mongodb://B.example.com:27017,a,%2Ftmp%2FX.sock,[FE80::1],b.EXAMPLE.com,b.example.com:2");
    let hosts: Vec<_> = options.hosts.iter().map(|address| address.as_str()).collect();
    assert_eq!(hosts, ["b.example.com:27017", "a:27017", "/tmp/X.sock", "[fe80::1]:27017", "b.example.com:2"]);
    assert_eq!(options.warnings().len(), 1);
    assert_eq!(options.hosts[2].host(), &Host::Unix { path: "/tmp/X.sock".into() });
}

#[test]
fn unresolved_srv_name_is_refused_as_an_endpoint() {
    let options = parse("mongodb+srv://Cluster.example.com");
    assert!(options.hosts.is_empty());
    let message = r#"hosts must be resolved from the SRV name "cluster.example.com" first: call Options::resolve"#;
    assert_eq!(options.endpoints().unwrap_err().to_string(), message);
    assert_eq!(options.endpoint().unwrap_err().to_string(), message);
}
