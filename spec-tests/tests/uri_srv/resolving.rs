//! Cases beyond the suite: errors and their messages, truncation, time limits and random choice.

use std::collections::BTreeSet;
use std::time::Duration;

use wharf::endpoint::hickory_resolver::proto::rr::RecordType;
use wharf::{Credential, Mechanism, Options, ResolveError, UriWarning};
use wharf_testbed::dns::Zone;

use super::{hosts, resolve, resolver, start};

const NAME: &str = "cluster.example.com";
const SERVICE: &str = "_mongodb._tcp.cluster.example.com";
const URI: &str = "mongodb+srv://cluster.example.com";

fn one_server() -> Zone {
    Zone::default().srv(SERVICE, 27017, "a.example.com")
}

/// Returns the error that a zone causes for a connection string.
async fn error(zone: Zone, uri: &str) -> ResolveError {
    let server = start(zone).await;
    resolve(&server, uri).await.expect_err("the zone is refused")
}

#[tokio::test]
async fn both_records_are_requested_once_by_their_full_names() {
    let server = start(one_server()).await;
    let resolved = resolve(&server, "mongodb+srv://Cluster.Example.com.").await.unwrap();
    assert_eq!(hosts(&resolved), ["a.example.com:27017"]);
    let mut asked: Vec<_> = server.questions().into_iter().map(|asked| (asked.name, asked.record)).collect();
    asked.sort();
    assert_eq!(asked, [(format!("{SERVICE}."), RecordType::SRV), (format!("{NAME}."), RecordType::TXT)]);
}

#[tokio::test]
async fn invalid_options_send_no_question() {
    let server = start(one_server()).await;
    let mut options = Options::srv(NAME).unwrap();
    options.direct_connection = Some(true);
    let refused = options.resolve_with(&resolver(&server)).await.unwrap_err();
    assert!(matches!(refused, ResolveError::InvalidOption(error) if error.option == "directConnection"));
    assert_eq!(server.questions(), []);
}

#[tokio::test]
async fn options_without_an_srv_name_are_unchanged() {
    let server = start(Zone::default()).await;
    let options = Options::parse("mongodb://a,b/?replicaSet=r").unwrap();
    assert_eq!(options.clone().resolve_with(&resolver(&server)).await.unwrap(), options);
    assert_eq!(Options::from_uri("mongodb://a,b/?replicaSet=r").await.unwrap(), options);
    assert_eq!(server.questions(), []);
    assert!(matches!(Options::from_uri("mongodb://").await, Err(ResolveError::InvalidOption(_))));
}

#[tokio::test]
async fn resolved_options_are_endpoints_and_can_be_resolved_again() {
    let server = start(one_server()).await;
    let resolved = resolve(&server, URI).await.unwrap();
    assert_eq!(resolved.endpoint().unwrap().address(), "a.example.com:27017");
    let other = start(Zone::default().srv(SERVICE, 1, "b.example.com")).await;
    let again = resolved.resolve_with(&resolver(&other)).await.unwrap();
    assert_eq!(hosts(&again), ["b.example.com:1"]);
}

#[tokio::test]
async fn servers_are_kept_in_lower_case_without_duplicates() {
    let zone = one_server().srv(SERVICE, 27017, "A.EXAMPLE.com").srv(SERVICE, 2, "a.example.com");
    let resolved = resolve(&start(zone).await, URI).await.unwrap();
    let mut found = hosts(&resolved);
    found.sort_unstable();
    assert_eq!(found, ["a.example.com:2", "a.example.com:27017"]);
}

#[tokio::test]
async fn names_may_have_underscores_and_letters_beyond_ascii() {
    let zone = Zone::default().srv("_mongodb._tcp.cluster_1.example.com", 1, "a_b.example.com");
    let resolved = resolve(&start(zone).await, "mongodb+srv://cluster_1.example.com").await.unwrap();
    assert_eq!(hosts(&resolved), ["a_b.example.com:1"]);

    let zone = Zone::default().srv("_mongodb._tcp.x.bücher.example.com", 1, "a.bücher.example.com");
    let resolved = resolve(&start(zone).await, "mongodb+srv://X.BÜCHER.example.com").await.unwrap();
    assert_eq!(hosts(&resolved), ["a.xn--bcher-kva.example.com:1"]);
}

#[tokio::test]
async fn name_in_punycode_is_the_same_name() {
    let uris = ["x.xn--bcher-kva.example", "X.XN--BCHER-KVA.example.", "x.bücher.example", "X.BÜCHER.Example."];
    let targets = ["a.xn--bcher-kva.example", "A.XN--Bcher-KVA.EXAMPLE"];
    for (uri, target) in uris.into_iter().flat_map(|uri| targets.map(|target| (uri, target))) {
        let zone = Zone::default().srv("_mongodb._tcp.x.xn--bcher-kva.example", 1, target);
        let resolved = resolve(&start(zone).await, &format!("mongodb+srv://{uri}")).await.unwrap();
        assert_eq!(hosts(&resolved), ["a.xn--bcher-kva.example:1"], "{uri} {target}");
        assert_eq!(resolved.srv.unwrap().host, "x.xn--bcher-kva.example", "{uri}");
    }
    for suffix in ["xn--bcher-kva.example", ".BÜCHER.example.", "..xn--bcher-KVA.example"] {
        let zone = Zone::default().srv(SERVICE, 1, "a.xn--bcher-kva.example");
        let uri = format!("{URI}/?srvAllowedHostsSuffix={suffix}");
        assert_eq!(hosts(&resolve(&start(zone).await, &uri).await.unwrap()), ["a.xn--bcher-kva.example:1"]);
    }
    // A name that merely looks the same is a different name.
    let zone = Zone::default().srv("_mongodb._tcp.x.xn--bcher-kva.example", 1, "a.bucher.example");
    assert!(matches!(error(zone, "mongodb+srv://x.bücher.example").await, ResolveError::ForeignServer { .. }));
}

#[tokio::test]
async fn suffix_replaces_the_domain_of_the_name() {
    let service = "_mongodb._tcp.cluster.internal";
    let zone = |target: &str| Zone::default().srv(service, 27017, target);
    let uri = |suffix: &str| format!("mongodb+srv://cluster.internal/?srvAllowedHostsSuffix={suffix}");
    // Prose tests 12 and 10. `src/endpoint/options/srv.rs` contains the test for `localhost`, which the resolver
    // answers without asking a server.
    for (suffix, target) in [
        ("internal", "db.cluster.internal"),
        (".internal.", "db.internal"),
        // Without the suffix, the servers of a name with two labels would need at least three labels.
        ("internal", "cluster.internal"),
        (".EXAMPLE.net", "DB.example.NET"),
    ] {
        let resolved = resolve(&start(zone(target)).await, &uri(suffix)).await.unwrap();
        assert_eq!(hosts(&resolved), [format!("{}:27017", target.to_lowercase())]);
    }
    for (suffix, target) in [
        ("internal", "internal"),
        ("internal", "db.cluster.example"),
        ("example.net", "example.net"),
        ("example.net", "dbexample.net"),
        ("example.net", "db.cluster.internal"),
    ] {
        let refused = error(zone(target), &uri(suffix)).await;
        let ResolveError::ForeignServer { server, domain, .. } = refused else { panic!("{refused}") };
        assert_eq!((server.as_str(), domain.as_str()), (target, suffix));
    }
}

#[tokio::test]
async fn suffix_from_code_follows_the_same_rules() {
    let with = |suffix: &str| {
        let mut options = Options::srv(NAME).unwrap();
        options.srv.as_mut().unwrap().allowed_hosts_suffix = Some(suffix.to_owned());
        options
    };
    let server = start(Zone::default().srv(SERVICE, 1, "a.example.net")).await;
    let resolved = with(".Example.NET.").resolve_with(&resolver(&server)).await.unwrap();
    assert_eq!(hosts(&resolved), ["a.example.net:1"]);
    let asked = server.questions().len();
    for suffix in ["", ".", "net", "co.uk", "a..b"] {
        let refused = with(suffix).resolve_with(&resolver(&server)).await.unwrap_err();
        let ResolveError::InvalidOption(error) = refused else { panic!("{refused}") };
        assert_eq!(error.option, "srvAllowedHostsSuffix", "{suffix}");
    }
    assert_eq!(server.questions().len(), asked);
}

#[tokio::test]
async fn answer_too_long_for_a_datagram_comes_over_tcp() {
    let zone =
        (1..=200).fold(Zone::default(), |zone, port| zone.srv(SERVICE, port, "a-long-name-of-a-server.example.com"));
    let server = start(zone).await;
    let resolved = resolve(&server, URI).await.unwrap();
    assert_eq!(resolved.hosts.len(), 200);
    assert!(server.questions().iter().any(|asked| asked.over_tcp && asked.record == RecordType::SRV));
}

#[tokio::test]
async fn every_pair_of_servers_can_be_chosen() {
    let ports = 1..=4;
    let zone = ports.clone().fold(Zone::default(), |zone, port| zone.srv(SERVICE, port, "a.example.com"));
    let server = start(zone).await;
    let resolver = resolver(&server);
    let mut pairs = BTreeSet::new();
    // Each of the six pairs has a chance of one in six. The chance that a pair is missing after 300 draws is 1e-23.
    for _ in 0..300 {
        let options = Options::parse("mongodb+srv://cluster.example.com/?srvMaxHosts=2").unwrap();
        let resolved = options.resolve_with(&resolver).await.unwrap();
        let chosen: BTreeSet<_> = hosts(&resolved).into_iter().map(str::to_owned).collect();
        assert_eq!(chosen.len(), 2);
        pairs.insert(chosen);
    }
    assert_eq!(pairs.len(), 6);
}

#[tokio::test]
async fn errors_name_the_record_and_the_problem() {
    let txt = |text: &str| one_server().txt(NAME, &[text]);
    let messages = [
        (
            one_server().srv(SERVICE, 1, "a.evil.com"),
            r#"the SRV records of "cluster.example.com" name the server "a.evil.com", but it must be below "example.com""#,
        ),
        (
            Zone::default().srv(SERVICE, 0, "a.example.com"),
            r#"an SRV record of "cluster.example.com" names "a.example.com" and port 0, but must have a valid name and a port other than 0"#,
        ),
        (
            Zone::default().srv(SERVICE, 1, "."),
            r#"an SRV record of "cluster.example.com" names "" and port 1, but must have a valid name and a port other than 0"#,
        ),
        (
            txt("replicaSet=a").txt(NAME, &["authSource=b"]),
            r#""cluster.example.com" has 2 TXT records, but must have at most one"#,
        ),
        (
            txt("replicaSet=a&ssl=false"),
            r#"the TXT record of "cluster.example.com" is invalid: option in TXT record must be one of authSource, replicaSet, loadBalanced, got "ssl""#,
        ),
        (
            txt("replicaSet"),
            r#"the TXT record of "cluster.example.com" is invalid: TXT record must be key=value pairs joined by &, got "replicaSet""#,
        ),
        (txt("authSource="), r#"the TXT record of "cluster.example.com" is invalid: authSource must not be empty"#),
        (txt("loadBalanced=true&replicaSet=r"), "loadBalanced cannot be true with replicaSet"),
    ];
    for (zone, message) in messages {
        assert_eq!(error(zone, URI).await.to_string(), message);
    }
}

#[tokio::test]
async fn server_needs_valid_labels() {
    for label in ["a b", "a:1", "a/b", "[a]", "user@a", "a\0", "a.b", "%2F", "a\\"] {
        let zone = Zone::default().srv_to_labels(SERVICE, 1, &[label, "example", "com"]);
        let refused = error(zone, URI).await;
        assert!(matches!(refused, ResolveError::InvalidServer { port: 1, .. }), "{label}: {refused}");
    }
}

#[tokio::test]
async fn failed_look_up_names_the_record_and_the_reason() {
    let start_of = |record, name: &str| format!("the {record} records of {name:?} could not be found: ");
    let missing = error(Zone::default(), URI).await.to_string();
    assert!(
        missing.starts_with(&start_of("SRV", &format!("{SERVICE}."))) && missing.contains("no records"),
        "{missing}"
    );
    // A name that exists without the record is a different case from a name that does not exist.
    let other = error(Zone::default().txt(SERVICE, &["x"]), URI).await.to_string();
    assert!(other.starts_with(&start_of("SRV", &format!("{SERVICE}."))), "{other}");
    let failing = error(one_server().failing(SERVICE), URI).await.to_string();
    assert!(failing.starts_with(&start_of("SRV", &format!("{SERVICE}."))), "{failing}");
    // If the TXT record cannot be looked up, its options are unknown.
    let failing = error(one_server().failing(NAME), URI).await.to_string();
    assert!(failing.starts_with(&start_of("TXT", NAME)), "{failing}");
}

#[tokio::test]
async fn connect_timeout_limits_the_wait_for_a_silent_name_server() {
    for silent in [SERVICE, NAME] {
        let failure =
            error(one_server().silent(silent), "mongodb+srv://cluster.example.com/?connectTimeoutMS=50").await;
        let ResolveError::Timeout { name, limit, .. } = &failure else { panic!("{failure}") };
        assert_eq!((name.as_str(), *limit), (NAME, Duration::from_millis(50)));
        let message = r#""cluster.example.com" was not resolved within 50ms (connectTimeoutMS)"#;
        assert_eq!(failure.to_string(), message);
    }
}

#[tokio::test]
async fn resolving_without_a_limit_ends_with_the_answer() {
    let resolved = resolve(&start(one_server()).await, "mongodb+srv://cluster.example.com/?connectTimeoutMS=0").await;
    assert_eq!(hosts(&resolved.unwrap()), ["a.example.com:27017"]);
}

#[tokio::test]
async fn txt_record_gives_defaults_only() {
    let zone = one_server().txt(NAME, &["&AuthSource=users&&REPLICASET=rs&"]);
    let server = start(zone).await;
    let resolved = resolve(&server, "mongodb+srv://ada:p@cluster.example.com/db").await.unwrap();
    assert_eq!(resolved.replica_set.as_deref(), Some("rs"));
    let credential = resolved.credential.as_ref().unwrap();
    assert_eq!(credential.effective_source(resolved.default_database.as_deref()), "users");

    let uri = "mongodb+srv://ada:p@cluster.example.com/db?authSource=own&replicaSet=mine";
    let resolved = resolve(&server, uri).await.unwrap();
    assert_eq!(resolved.replica_set.as_deref(), Some("mine"));
    assert_eq!(resolved.auth_source.as_deref(), Some("own"));
    assert_eq!(resolved.credential.unwrap().source.as_deref(), Some("own"));

    // The authentication sources of other mechanisms are fixed.
    let uri = "mongodb+srv://cluster.example.com/?authMechanism=MONGODB-X509&tlsCertificateKeyFile=ada.pem";
    let resolved = resolve(&server, uri).await.unwrap();
    assert_eq!(resolved.credential.as_ref().unwrap().effective_source(None), "$external");
    let replaced = resolved.credential(Credential::default().mechanism(Mechanism::MongoDbAws));
    assert_eq!(replaced.credential.unwrap().effective_source(None), "$external");

    let in_code = Options::srv(NAME).unwrap().credential(Credential::new("ada", "p").source("code")).replica_set("set");
    let resolved = in_code.resolve_with(&resolver(&server)).await.unwrap();
    assert_eq!(resolved.credential.unwrap().source.as_deref(), Some("code"));
    assert_eq!(resolved.replica_set.as_deref(), Some("set"));
}

#[tokio::test]
async fn connection_string_overrides_load_balancing_of_the_record_and_invalid_values_warn() {
    let server = start(one_server().txt(NAME, &["loadBalanced=true"])).await;
    assert!(resolve(&server, URI).await.unwrap().is_load_balanced());
    let resolved = resolve(&server, "mongodb+srv://cluster.example.com/?loadBalanced=false").await.unwrap();
    assert!(!resolved.is_load_balanced());

    let server = start(one_server().txt(NAME, &["loadBalanced=maybe"])).await;
    let resolved = resolve(&server, "mongodb+srv://cluster.example.com/?foo=1").await.unwrap();
    assert!(!resolved.is_load_balanced());
    let [UriWarning::UnknownOption { .. }, UriWarning::InvalidValue { error }] = resolved.warnings() else {
        panic!("{:?}", resolved.warnings());
    };
    assert_eq!(error.option, "loadBalanced");
}

#[tokio::test]
async fn strict_options_refuse_warnings_about_the_record() {
    let server = start(one_server().txt(NAME, &["loadBalanced=maybe"])).await;
    assert!(Options::parse(URI).unwrap().resolve_with(&resolver(&server)).await.is_ok());
    let refused = Options::parse_strict(URI).unwrap().resolve_with(&resolver(&server)).await.unwrap_err();
    let message =
        r#"the TXT record of "cluster.example.com" is invalid: loadBalanced must be true or false, got "maybe""#;
    assert_eq!(refused.to_string(), message);
    assert!(Options::from_uri_strict("mongodb://a/?retryReads=true").await.is_ok());
    let refused = Options::from_uri_strict("mongodb://a/?retryReads=on").await.unwrap_err();
    assert!(matches!(refused, ResolveError::InvalidOption(error) if error.option == "retryReads"));
}

#[tokio::test]
async fn name_of_two_labels_must_have_servers_below_it() {
    // Prose tests 1 to 4, for names other than `localhost`.
    let service = "_mongodb._tcp.mongo.local";
    let zone = |target: &str| Zone::default().srv(service, 27017, target);
    let resolved = resolve(&start(zone("a.mongo.local")).await, "mongodb+srv://mongo.local").await.unwrap();
    assert_eq!(hosts(&resolved), ["a.mongo.local:27017"]);
    for target in ["test_1.evil.local", "mongo.local", "test_1.my_hostmongo.local"] {
        let refused = error(zone(target), "mongodb+srv://mongo.local").await;
        let ResolveError::ForeignServer { server, domain, .. } = refused else { panic!("{refused}") };
        assert_eq!((server.as_str(), domain.as_str()), (target, "mongo.local"));
    }
    for target in ["blogs.evil.com", "cluster.testmongodb.com"] {
        let zone = Zone::default().srv("_mongodb._tcp.blogs.mongodb.com", 27017, target);
        let refused = error(zone, "mongodb+srv://blogs.mongodb.com").await;
        assert!(matches!(refused, ResolveError::ForeignServer { .. }), "{refused}");
    }
}

#[tokio::test]
async fn dropped_look_up_leaves_the_resolver_usable() {
    let server = start(one_server().silent(SERVICE)).await;
    let resolver = resolver(&server);
    let look_up = Options::parse(URI).unwrap().resolve_with(&resolver);
    // The name server receives both questions before the lookup is dropped in the middle of the answer.
    let both_asked = async {
        while server.questions().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        outcome = look_up => panic!("there was an answer: {outcome:?}"),
        () = both_asked => {}
    }
    // The resolver still works.
    let other = Options::srv("other.example.com").unwrap().resolve_with(&resolver).await;
    assert!(matches!(other, Err(ResolveError::Lookup { .. })));
    assert_eq!(server.questions().len(), 4);
}
