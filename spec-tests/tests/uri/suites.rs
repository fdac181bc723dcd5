//! The official suites.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use wharf::{Host, Mechanism, Options, UriWarning};
use wharf_testbed::edition::Edition;
use wharf_testbed::table::{Row, show};

use super::values::{properties, value_of};

/// Returns the cases from all files in a folder.
pub fn cases(folder: &Path) -> Vec<Value> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    let read = |file: &PathBuf| -> Value { serde_json::from_slice(&fs::read(file).unwrap()).unwrap() };
    files.iter().map(read).flat_map(|file| file["tests"].as_array().unwrap().clone()).collect()
}

pub fn suite(name: &str) -> PathBuf {
    wharf_testbed::provision::suite(name).expect("the official test suite")
}

fn text(value: &Value) -> Option<&str> {
    value.as_str()
}

/// Parses a case's URI, and asserts its validity. Returns `None` if it is invalid.
fn outcome(case: &Value) -> Option<Options> {
    let uri = text(&case["uri"]).unwrap();
    match (Options::parse(uri), case["valid"].as_bool().unwrap()) {
        (Ok(options), true) => Some(options),
        (Err(_), false) => None,
        (Ok(options), false) => panic!("{uri} is accepted: {options:?}"),
        (Err(error), true) => panic!("{uri} is refused: {error}"),
    }
}

/// Asserts every field of a case from `connection_string` or `uri_options`.
pub fn check(case: &Value) {
    let uri = text(&case["uri"]).unwrap();
    let fields = ["description", "uri", "valid", "warning", "hosts", "auth", "options"];
    assert!(case.as_object().unwrap().keys().all(|field| fields.contains(&field.as_str())), "{case}");
    let Some(options) = outcome(case) else { return };
    assert_eq!(!options.warnings().is_empty(), case["warning"].as_bool().unwrap(), "{uri}: {:?}", options.warnings());
    if let Some(hosts) = case["hosts"].as_array() {
        check_hosts(uri, &options, hosts);
    }
    // The cases in `uri_options` contain no hosts or users.
    if case["hosts"].is_array() {
        check_user(uri, &options, &case["auth"]);
    }
    for (name, expected) in case["options"].as_object().into_iter().flatten() {
        assert_eq!(value_of(&options, name).as_ref(), Some(expected), "{uri}: {name}");
    }
    // A value that is not allowed leaves the option at its default.
    let default = Options::parse("mongodb://example.com").unwrap();
    for warning in options.warnings() {
        if let UriWarning::InvalidValue { error, .. } = warning
            && !["zlibCompressionLevel", "srvMaxHosts"].contains(&error.option)
        {
            let option = error.option;
            let default = if option.starts_with("tls") {
                value_of(&options, "tls").map(|_| false.into())
            } else {
                value_of(&default, option)
            };
            assert_eq!(value_of(&options, option), default, "{uri}: {option}");
        }
    }
}

fn check_user(uri: &str, options: &Options, expected: &Value) {
    let credential = options.credential.as_ref();
    let username = credential.and_then(|credential| credential.username.as_deref());
    let password = credential.and_then(|credential| credential.password.as_ref());
    assert_eq!(username, text(&expected["username"]), "{uri}");
    assert_eq!(password.map(|password| password.reveal()), text(&expected["password"]), "{uri}");
    assert_eq!(options.default_database.as_deref(), text(&expected["db"]), "{uri}");
}

fn check_hosts(uri: &str, options: &Options, expected: &[Value]) {
    assert_eq!(options.hosts.len(), expected.len(), "{uri}");
    for (address, expected) in options.hosts.iter().zip(expected) {
        let host = text(&expected["host"]).unwrap();
        match address.host() {
            Host::Tcp { name, port } => {
                assert_eq!(
                    (name.as_str(), u64::from(*port)),
                    (host, expected["port"].as_u64().unwrap_or(27017)),
                    "{uri}"
                );
                let kind = match name.parse() {
                    Ok(std::net::IpAddr::V4(_)) => "ipv4",
                    Ok(std::net::IpAddr::V6(_)) => "ip_literal",
                    Err(_) => "hostname",
                };
                assert_eq!(text(&expected["type"]), Some(kind), "{uri}");
            }
            Host::Unix { path } => {
                assert_eq!((path.to_str(), text(&expected["type"])), (Some(host), Some("unix")), "{uri}");
                assert!(expected["port"].is_null(), "{uri}");
            }
            other => panic!("{uri}: {other:?}"),
        }
    }
}

/// Asserts every field of a case from `auth`.
pub fn check_auth(case: &Value) {
    let uri = text(&case["uri"]).unwrap();
    let fields = ["description", "uri", "valid", "credential"];
    assert!(case.as_object().unwrap().keys().all(|field| fields.contains(&field.as_str())), "{case}");
    let Some(options) = outcome(case) else { return };
    assert_eq!(options.warnings(), [], "{uri}");
    let expected = &case["credential"];
    let Some(credential) = &options.credential else {
        assert!(expected.is_null(), "{uri}");
        return;
    };
    assert_eq!(credential.username.as_deref(), text(&expected["username"]), "{uri}");
    assert_eq!(credential.password.as_ref().map(|text| text.reveal()), text(&expected["password"]), "{uri}");
    let source = credential.effective_source(options.default_database.as_deref());
    assert_eq!(Some(source), text(&expected["source"]), "{uri}");
    assert_eq!(credential.mechanism.map(Mechanism::name), text(&expected["mechanism"]), "{uri}");
    match &expected["mechanism_properties"] {
        Value::Null => assert_eq!(credential.mechanism_properties, [], "{uri}"),
        expected => assert_eq!(&properties(&credential.mechanism_properties), expected, "{uri}"),
    }
}

#[test]
fn cases_of_connection_strings_pass() {
    let cases = cases(&suite("connection_string").join("test"));
    assert_eq!(cases.len(), 98);
    cases.iter().for_each(check);
    show([row("connection_string", 8, cases.len())], "");
}

#[test]
fn cases_of_uri_options_pass() {
    let cases = cases(&suite("uri_options"));
    assert_eq!(cases.len(), Edition::present().pick(145, 159));
    cases.iter().for_each(check);
    show([row("uri_options", Edition::present().pick(11, 12), cases.len())], "");
}

/// The valid cases in `auth` that wharf refuses: see "Cases that are not taken literally" in `main.rs`.
const REFUSED_SINCE: [&str; 2] = [
    "should use username and password if specified (MONGODB-AWS)",
    "should use username, password and session token if specified (MONGODB-AWS)",
];

#[test]
fn cases_of_credentials_pass() {
    let mut cases = cases(&suite("auth").join("legacy"));
    assert_eq!(cases.len(), Edition::present().pick(64, 67));
    for description in REFUSED_SINCE {
        let case = cases.iter_mut().find(|case| case["description"] == description);
        let case = case.unwrap_or_else(|| panic!("{description} is gone from the suite: remove it from the list"));
        assert_eq!(case["valid"], true, "{description} is refused by the suite, too: remove it from the list");
        case["valid"] = false.into();
    }
    cases.iter().for_each(check_auth);
    show([row("auth/legacy", 1, cases.len())], "");
}

fn row(suite: &str, files: usize, cases: usize) -> Row<'_> {
    Row { files, ..Row::passed(suite, cases) }
}

/// The runner fails for each field that does not match.
mod negative_controls {
    use serde_json::json;

    use super::{check, check_auth};

    fn case(change: &str, value: serde_json::Value) {
        let mut case = json!({
            "description": "", "uri": "mongodb://a:b@host:1,[::1]/db?w=2", "valid": true, "warning": false,
            "hosts": [{"type": "hostname", "host": "host", "port": 1}, {"type": "ip_literal", "host": "::1", "port": null}],
            "auth": {"username": "a", "password": "b", "db": "db"}, "options": {"w": 2},
        });
        check(&case);
        *case.pointer_mut(change).unwrap() = value;
        check(&case);
    }

    #[test]
    #[should_panic(expected = "is accepted")]
    fn other_validity_fails() {
        case("/valid", json!(false));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn missing_warning_fails() {
        case("/warning", json!(true));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn other_port_fails() {
        case("/hosts/0/port", json!(2));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn other_kind_of_host_fails() {
        case("/hosts/1/type", json!("hostname"));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn other_password_fails() {
        case("/auth/password", json!("c"));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn other_database_fails() {
        case("/auth/db", json!("admin"));
    }

    #[test]
    #[should_panic(expected = "w")]
    fn other_option_value_fails() {
        case("/options/w", json!(3));
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn other_source_fails() {
        check_auth(&json!({
            "description": "", "uri": "mongodb://a:b@host/db", "valid": true,
            "credential": {"username": "a", "password": "b", "source": "admin", "mechanism": null},
        }));
    }
}
