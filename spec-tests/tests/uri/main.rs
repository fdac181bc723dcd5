//! Connection strings: the specifications' own cases, more of the kind, and properties.
//!
//! The cases are those of the suites `connection_string`, `uri_options` and `auth` (its `legacy` part). None is skipped,
//! and everything that a case says is asserted: hosts, user, password, database, options, credential, and whether there
//! are warnings.
//!
//! # Where a case is not taken literally
//!
//! | Case | What is done instead, and why |
//! |---|---|
//! | the two of `auth` that give `MONGODB-AWS` a password | They are expected to be refused. Since 2025-09-30 the specification's text takes such credentials from the environment only. If the cases are gone from the suite, or changed, the test fails. |
//! | those of `srv-options` | They are parsed without a look-up, which is all that they are about. |
//!
//! # Where invalid values are refused though the text ignores them
//!
//! The connection string specification has invalid values ignored with a warning. wharf refuses them where ignoring
//! them would leave the connection less protected: `tls`, `ssl`, `tlsDisableOCSPEndpointCheck`,
//! `tlsDisableCertificateRevocationCheck`, and an empty `tlsCAFile`, `tlsCertificateKeyFile` or `proxyHost`. No case of
//! the suites is about these. The three that are about `tlsInsecure`, `tlsAllowInvalidCertificates` and
//! `tlsAllowInvalidHostnames` pass as they are: a warning, TLS, and every check.
//!
//! Cases that the text's own suite has, and the provisioned one lacks, are in `uri/newer.rs`; if the provisioned one gets
//! them, that fails, too.
#![cfg(not(loom))]
#![cfg(all(feature = "snappy", feature = "zlib", feature = "zstd"))]

mod code;
mod errors;
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

/// The message with which a connection string is refused.
fn refusal(uri: &str) -> String {
    match Options::parse(uri) {
        Ok(options) => panic!("{uri} is accepted: {options:?}"),
        Err(error) => error.to_string(),
    }
}
