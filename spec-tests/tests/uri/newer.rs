//! Official cases that the fetched suites lack. The newest suites contain these cases, and `suites` runs them there.

use serde_json::json;
use wharf_testbed::edition::Edition;

use super::suites::{cases, check, check_auth, suite};

/// Connection strings with SOCKS5 options, and whether each is valid.
const PROXIES: [(&str, bool); 15] = [
    ("mongodb://localhost/?proxyPort=1080", false),
    ("mongodb://localhost/?proxyUsername=abc", false),
    ("mongodb://localhost/?proxyPassword=def", false),
    ("mongodb://localhost/?proxyPort=1080&proxyUsername=abc&proxyPassword=def", false),
    ("mongodb://localhost/?proxyHost=localhost&proxyUsername=abc", false),
    ("mongodb://localhost/?proxyHost=localhost&proxyPassword=def", false),
    ("mongodb://localhost/?proxyHost=localhost&proxyHost=localhost2", false),
    ("mongodb://localhost/?proxyHost=localhost&proxyPort=1234&proxyPort=12345", false),
    ("mongodb://localhost/?proxyHost=localhost&proxyUsername=abc&proxyUsername=def&proxyPassword=123", false),
    ("mongodb://localhost/?proxyHost=localhost&proxyUsername=abc&proxyPassword=123&proxyPassword=456", false),
    ("mongodb://localhost/?proxyHost=localhost", true),
    ("mongodb://localhost/?proxyHost=localhost&proxyPort=1080", true),
    ("mongodb://localhost/?proxyHost=localhost&proxyPort=12345", true),
    ("mongodb://rs1,rs2,rs3/?proxyHost=localhost&proxyPort=12345", true),
    ("mongodb://rs1,rs2,rs3/?proxyHost=localhost&proxyPort=12345&proxyUsername=asdf&proxyPassword=qwerty", true),
];

/// Credentials that `MONGODB-AWS` refuses.
const AWS: [&str; 3] = [
    "mongodb://user@localhost.com/?authMechanism=MONGODB-AWS",
    "mongodb://user:pass@localhost.com/?authMechanism=MONGODB-AWS",
    "mongodb://localhost/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:token",
];

#[test]
fn newer_cases_of_proxies_pass() {
    let present = cases(&suite("uri_options"));
    for (uri, valid) in PROXIES {
        let is_present = present.iter().any(|case| case["uri"] == uri);
        assert_eq!(is_present, Edition::present() == Edition::Newest, "{uri}");
        check(&json!({ "description": "", "uri": uri, "valid": valid, "warning": false }));
    }
}

#[test]
fn newer_cases_of_aws_credentials_pass() {
    let present = cases(&suite("auth").join("legacy"));
    for uri in AWS {
        let is_present = present.iter().any(|case| case["uri"] == uri);
        assert_eq!(is_present, Edition::present() == Edition::Newest, "{uri}");
        check_auth(&json!({ "description": "", "uri": uri, "valid": false }));
    }
}
