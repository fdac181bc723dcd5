//! MONGODB-AWS and MONGODB-OIDC, against a server that checks the clients' proofs, and against cloud services. This
//! process simulates both.
//!
//! These modules contain the prose tests of the Authentication specification ("MongoDB AWS" and "MongoDB OIDC") that do
//! not need a cloud:
//!
//! | Prose test | Where |
//! |---|---|
//! | AWS: regular credentials, AssumeRole, Lambda | `aws::credentials_come_from_the_environment` |
//! | AWS: EC2, ECS, web identity | the tests of these names in `aws` |
//! | none: EKS Pod Identity, which the specification does not cover | `aws_container` |
//! | AWS: custom provider, cases 1 and 2 | `aws::provider_of_the_application_comes_first` |
//! | AWS: cached credentials, both lists | `aws_cache` |
//! | OIDC machine 1.1, 1.2, 2.1, 2.2, 2.3, 3.1, 3.2, 3.3, 4.1 to 4.5 | `oidc_machine` |
//! | OIDC machine 5.1, 5.2 | `oidc_environments` |
//! | OIDC machine 2.4, 2.5 | `oidc_machine::contradictory_options_are_refused` |
//! | OIDC human 1.1, 1.2, 1.5, 1.6, 1.8, 2.1, 2.2, 2.3, 3.1, 3.2, 4.1 to 4.4 | `oidc_human` |
//! | OIDC human 1.3, 1.4 | not here: only a real server can tell two principals apart; 1.2 checks the user name |
//! | OIDC human 1.7 | not here: the tests of the options cover connection strings |
//! | unified `mongodb-oidc-no-retry.json` | its six cases are machine 1.1, 4.1, 4.2 and 4.3 and human 3.1 and 3.2; `oidc_machine` repeats the last two for machines |
//!
//! These tests do not show that a real identity provider or a real server accepts the messages.
#![cfg(all(not(any(loom, shuttle)), feature = "aws", feature = "oidc"))]

use std::time::Duration;

use bson::{RawDocumentBuf, rawdoc};
use wharf::{
    CloudEnvironment, Credential, DirectConnection, EstablishError, Mechanism, OidcContext, OidcToken, Options, Stage,
};

mod aws;
mod aws_cache;
mod aws_container;
mod http;
mod limits;
mod oidc_environments;
mod oidc_human;
mod oidc_machine;
mod server;

use http::{Answer, HttpServer};
use server::Server;

/// The time limit after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

/// A secret that must not appear in any output.
const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

/// The identifier of an access key, which is not secret.
const KEY_ID: &str = "AKIAI44QH8DHBEXAMPLE";

/// Returns an environment with only these variables, independent of the process's environment.
fn variables(variables: &[(&'static str, &str)]) -> CloudEnvironment {
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    // No service is listening on this machine's discard port, so an accidental request fails.
    let nowhere = "http://127.0.0.1:9";
    CloudEnvironment::default()
        .aws_ecs(nowhere)
        .aws_ec2(nowhere)
        .aws_sts(nowhere)
        .azure(nowhere)
        .gcp(nowhere)
        .variables(move |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
}

fn options(server: &Server, credential: Credential) -> Options {
    Options::new([server.address().as_str()]).unwrap().credential(credential)
}

async fn connect(server: &Server, credential: Credential) -> Result<DirectConnection, EstablishError> {
    options(server, credential).endpoint().unwrap().connect().await
}

fn find() -> RawDocumentBuf {
    rawdoc! { "find": "collName", "filter": {} }
}

/// Returns the error's message, after checking that neither the message nor the debug output shows a secret.
fn shown(error: &EstablishError) -> String {
    assert_eq!(error.stage(), Stage::Authenticate, "{error}");
    let debug = format!("{error:?}");
    let text = error.to_string();
    for secret in [SECRET_KEY, "token-"] {
        assert!(!text.contains(secret), "{text}");
        assert!(!debug.contains(secret), "{debug}");
    }
    text
}
