//! The text that `main` prints for each public error. The `public_api` test compares this list with the public API.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::rawdoc;

use super::error::FailedOperation;
use super::{
    ClientBulkWriteFailure, ClientError, ServerSelectionError, SessionError, WriteConcernError, WriteFailure, Written,
};
use crate::endpoint::causes::*;
use crate::endpoint::options::{InvalidOption, Mechanism};
use crate::endpoint::wire::WireError;
use crate::endpoint::wire::auth::scram::ScramError;
use crate::endpoint::wire::hello::IncompatibleServerError;
use crate::endpoint::wire::ocsp::OcspError;
use crate::endpoint::wire::reply::{self, Unsuccessful};
use crate::endpoint::*;
use crate::pool::error::NoRuntimeError;
use crate::pool::error::{
    CheckInError, CheckOutError, EstablishError, Holders, Labels, PoolClearedError, PoolClosedError, Stage, TimeLimit,
    WaitQueueTimeoutError,
};

fn server_error() -> Box<ServerError> {
    let reply = rawdoc! { "ok": 0, "code": 18, "codeName": "AuthenticationFailed", "errmsg": "Authentication failed." };
    let Err(Unsuccessful::Command(error)) = reply::check(&reply) else { panic!("no error: {reply:?}") };
    error
}

fn authentication_error() -> AuthenticationError {
    AuthenticationError {
        mechanism: Mechanism::ScramSha256,
        username: Some("app".to_owned()),
        database: "admin".to_owned(),
        cause: AuthenticationCause::Refused(server_error()),
        is_database_of_path: false,
    }
}

fn establish_error() -> EstablishError {
    EstablishError::permanent(Stage::Authenticate, authentication_error()).with_labels(Labels::RETRYABLE).in_pool(
        address(),
        3,
        0,
    )
}

fn command_error() -> CommandError {
    let origin = Origin {
        address: address(),
        connection_id: Some(3),
        server_connection_id: Some(17),
        generation: Some(0),
        service_id: None,
    };
    CommandError::Server { origin: Box::new(origin), source: server_error() }
}

fn address() -> Arc<str> {
    "localhost:27017".into()
}

/// Returns a sample of each public error.
fn samples() -> Vec<(&'static str, Box<dyn StdError>)> {
    fn sample<E: StdError + 'static>(name: &'static str, error: E) -> (&'static str, Box<dyn StdError>) {
        let path = std::any::type_name::<E>();
        let type_name = path.split('<').next().and_then(|path| path.rsplit("::").next());
        assert_eq!(type_name, Some(name), "the sample is of another type");
        (name, Box::new(error))
    }
    macro_rules! samples {
        ($($name:ident => $sample:expr,)*) => { vec![$(sample(stringify!($name), $sample)),*] };
    }
    let limit = ConnectTimeoutError::new("connectTimeoutMS", Duration::from_secs(10));
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
    samples! {
        AuthenticationCause => AuthenticationCause::Refused(server_error()),
        AuthenticationError => authentication_error(),
        CheckInError => CheckInError { connection: (), address: address() },
        CheckOutError => CheckOutError::from(establish_error()),
        ClientBulkWriteFailure => ClientBulkWriteFailure {
            partial_result: None,
            write_errors: Default::default(),
            write_concern_errors: Vec::new(),
            labels: Labels::NONE,
            cause: Some(Box::new(ClientError::from(OperationError::from(command_error())))),
            generated_ids: Vec::new(),
            other_labels: Vec::new(),
            address: Some(address()),
            is_timeout: false,
        },
        ClientError => ClientError::from(OperationError::from(command_error())),
        CommandError => command_error(),
        CommandTimeoutError => CommandTimeoutError::Server(server_error()),
        ConnectAttempt => ConnectAttempt { peer: "127.0.0.1:27017".to_owned(), source: refused() },
        ConnectError => ConnectError {
            attempts: vec![ConnectAttempt { peer: "127.0.0.1:27017".to_owned(), source: refused() }],
            timeout: Some(limit),
        },
        ConnectTimeoutError => limit,
        EstablishError => establish_error(),
        FailedOperation => FailedOperation::operation(command_error().into(), Labels::NONE),
        ForeignProtocolError => ForeignProtocolError::Http { start: "HTTP/1.1 400 Bad Request".into() },
        IncompatibleServerError => IncompatibleServerError::NoLoadBalancer,
        InvalidOption => InvalidOption::because("journal", "cannot be true with w=0"),
        NoRuntimeError => NoRuntimeError::of(&address()),
        OcspError => OcspError::Missing,
        OperationError => OperationError::from(command_error()),
        PoolClearedError => PoolClearedError {
            address: address(),
            cause: Some(Arc::new(command_error())),
            interrupted: false,
            sent: false,
            never_ready: false,
        },
        PoolClosedError => PoolClosedError { address: address() },
        ProxyError => ProxyError { proxy: "localhost:1080".to_owned(), reply: None, source: Arc::new(refused()) },
        ResolveError => ResolveError::from(InvalidOption::because("srvMaxHosts", "cannot be negative")),
        ScramError => ScramError::Nonce,
        ServerError => *server_error(),
        ServerSelectionError => ServerSelectionError::Closed,
        SessionError => SessionError::NoTransaction,
        TlsError => TlsError::NotSpoken { source: Arc::new(refused()) },
        WaitQueueTimeoutError => WaitQueueTimeoutError {
            address: address(),
            max_pool_size: 100,
            total: 100,
            in_use: 100,
            draining: 0,
            available: 0,
            pending: 0,
            waiting: 7,
            suspended: false,
            waited: Duration::from_millis(1500),
            limit: TimeLimit::WaitQueueTimeout,
            holders: Some(Holders { cursors: 1, transactions: 2, other_operations: 97 }),
            longest_held: None,
            budget: None,
        },
        WireError => WireError::Unasked { count: 12 },
        WriteConcernError => WriteConcernError {
            code: 100,
            code_name: "UnsatisfiableWriteConcern".to_owned(),
            message: "Not enough data-bearing nodes".to_owned(),
            reply: rawdoc! { "ok": 1 },
        },
        WriteFailure => WriteFailure {
            written: Written::default(),
            errors: Vec::new(),
            write_concern_errors: Vec::new(),
            labels: Labels::NONE,
            other_labels: Vec::new(),
            address: Some(address()),
            is_timeout: false,
            cause: Some(Box::new(ClientError::from(OperationError::from(command_error())))),
        },
    }
}

/// Returns the first word that only `#[derive(Debug)]` would write: the name of a type followed by a bracket, or a
/// document's bytes.
fn derived(text: &str) -> Option<&str> {
    let is_struct = |word: &str| {
        let name = word.trim_end_matches(['{', '(']);
        let opens = word.len() > name.len() || text.contains(&format!("{name} {{"));
        opens && name.starts_with(|first: char| first.is_ascii_uppercase()) && name.chars().all(char::is_alphanumeric)
    };
    let is_hexadecimal = |word: &str| word.chars().filter(char::is_ascii_hexdigit).count() >= 24 && !word.contains(':');
    text.split(' ').find(|word| is_struct(word) || is_hexadecimal(word) || word.contains("Error("))
}

#[test]
fn every_public_error_prints_as_a_sentence_also_by_its_debug() {
    for (name, error) in samples() {
        let (shown, printed) = (error.to_string(), format!("{error:?}"));
        assert!(!shown.is_empty() && printed.starts_with(&shown), "{name}: {printed}");
        assert_eq!(derived(&printed), None, "{name}: {printed}");
        assert!(!printed.contains('\n'), "{name}: {printed}");
    }
}

#[test]
fn alternate_debug_begins_with_the_variants() {
    const ENUMERATIONS: [&str; 8] = [
        "CheckOutError",
        "ClientError",
        "CommandError",
        "CommandTimeoutError",
        "OperationError",
        "ResolveError",
        "ServerSelectionError",
        "SessionError",
    ];
    let mut variants = 0;
    for (name, error) in samples() {
        let (shown, printed) = (error.to_string(), format!("{error:#?}"));
        assert!(printed.contains(&shown) && !printed.contains('\n'), "{name}: {printed}");
        if ENUMERATIONS.contains(&name) {
            assert!(printed.starts_with(&format!("{name}::")), "{printed}");
            variants += 1;
        }
    }
    assert_eq!(variants, ENUMERATIONS.len());
    let error = ClientError::from(OperationError::from(command_error()));
    let expected = format!("ClientError::Operation(OperationError::Command(CommandError::Server: {error}))");
    assert_eq!(format!("{error:#?}"), expected);
}

#[test]
fn derived_debug_is_recognised() {
    for printed in [
        "CheckOut(Connection(ConnectionError(ConnectionErrorParts { address: \"a\" })))",
        "Origin { address: \"a\" }",
        "it failed: RawDocumentBuf { data: \"5500000002636f6465\" }",
        "reply 5500000002636f6465006b0000000270",
    ] {
        assert!(derived(printed).is_some(), "{printed}");
    }
}
