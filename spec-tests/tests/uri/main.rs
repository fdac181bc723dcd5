//! Connection strings: the official cases, additional cases, and property tests.
//!
//! The cases come from the suites `connection_string`, `uri_options` and `auth` (its `legacy` part). All are run, and every
//! field of a case is asserted: hosts, user, password, database, options, credential, and whether there are warnings.
//!
//! # Cases that are not taken literally
//!
//! | Case | What the test does instead, and why |
//! |---|---|
//! | the two cases of `auth` that give `MONGODB-AWS` a password | It expects a refusal. Since 2025-09-30 the specification takes such credentials from the environment only. If the suite changes or drops these cases, the test fails. |
//! | the cases of `srv-options` | It parses them without a lookup, because they are about parsing only. |
//!
//! # Invalid values that are refused although the specification ignores them
//!
//! The connection string specification requires that invalid values be ignored with a warning. wharf refuses them if
//! ignoring them would leave the connection less protected. This applies to `tls`, `ssl`,
//! `tlsDisableOCSPEndpointCheck`, `tlsDisableCertificateRevocationCheck`, and an empty `tlsCAFile`,
//! `tlsCertificateKeyFile` or `proxyHost`. The suites have no cases for this. Their cases for `tlsInsecure`,
//! `tlsAllowInvalidCertificates` and `tlsAllowInvalidHostnames` pass unchanged: the result is a warning, and TLS with
//! every check.
//!
//! `newer.rs` contains cases from the specification that the fetched suites lack.
#![cfg(not(loom))]
#![cfg(all(feature = "snappy", feature = "zlib", feature = "zstd"))]

mod code;
mod errors;
mod log;
mod newer;
mod properties;
mod strict;
mod suites;
mod warnings;

use wharf::Options;
use wharf_spec_tests::values;

fn parse(uri: &str) -> Options {
    Options::parse(uri).unwrap_or_else(|error| panic!("{uri}: {error}"))
}

/// Returns the message of the error that refuses a connection string.
fn refusal(uri: &str) -> String {
    match Options::parse(uri) {
        Ok(options) => panic!("{uri} is accepted: {options:?}"),
        Err(error) => error.to_string(),
    }
}
