//! Authentication against a real server, and against servers that violate the protocol.
#![cfg(not(loom))]

use std::error::Error as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use wharf::endpoint::AuthenticationError;
use wharf::unstable::endpoint::AuthenticationCause;
use wharf::unstable::wire::auth::scram::ScramError;
use wharf::{
    CheckOutError, Credential, DirectConnection, EstablishError, Labels, Mechanism, OperationError, Options, Stage,
};
use wharf_testbed::mongod::{Mongod, MongodOptions};

mod handshake;
mod interrupted;
mod mongod;
mod scripted;
mod scripted_scram;

/// The time limit after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

/// Returns the authentication failure, after checking the properties that all failures share.
fn failure(error: &EstablishError) -> &AuthenticationError {
    assert_eq!((error.stage(), error.labels()), (Stage::Authenticate, Labels::NONE), "{error}");
    error.cause().downcast_ref().unwrap_or_else(|| panic!("another cause: {:?}", error.cause()))
}

/// Returns why the authentication failed.
fn reason(failure: &AuthenticationError) -> &AuthenticationCause {
    failure.source().and_then(|source| source.downcast_ref()).unwrap_or_else(|| panic!("no cause: {failure:?}"))
}

/// Asserts that the server refused the credential. The server's error is the same for a wrong user, password or
/// mechanism.
fn assert_refused(error: &EstablishError) {
    let failed = failure(error);
    let refusal = failed.server_error().unwrap_or_else(|| panic!("not the server's error: {failed}"));
    assert_eq!((refusal.code, &*refusal.code_name), (18, "AuthenticationFailed"), "{failed}");
}

async fn connect(address: &str, credential: Credential) -> Result<DirectConnection, EstablishError> {
    let endpoint = Options::new([address]).unwrap().credential(credential).endpoint().unwrap();
    tokio::time::timeout(AGES, endpoint.connect()).await.unwrap()
}

async fn run(connection: &mut DirectConnection, database: &str, command: Document) -> RawDocumentBuf {
    let command = RawDocumentBuf::try_from(command).unwrap();
    connection.run_command(database, &command).await.unwrap()
}
