//! A table of the values that the accessors return for each client error.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocumentBuf, rawdoc};
use thiserror::Error;

use super::*;
use crate::client::deployment::TopologySummary;
use crate::client::{WriteError, Written};
use crate::endpoint::causes::AuthenticationCause;
use crate::endpoint::options::Mechanism;
use crate::endpoint::wire::WireError;
use crate::endpoint::{AuthenticationError, CommandTimeoutError, ConnectTimeoutError, Origin, ServerError};
use crate::pool::error::{CheckOutError, EstablishError, PoolClearedError, PoolClosedError, Stage, TimeLimit};

const HOST: &str = "db.example.com:27017";

/// The expected answers for an error.
#[derive(Debug, PartialEq)]
struct Answers<'e> {
    code: Option<i32>,
    code_name: Option<&'e str>,
    labels: Labels,
    is_timeout: bool,
    is_network: bool,
    is_duplicate_key: bool,
    is_retryable: bool,
    /// The code of `server_error`.
    of_server: Option<i32>,
    /// The code of `write_concern_error`.
    of_concern: Option<i32>,
    address: Option<&'e str>,
}

/// The answers for an error that comes only from the client.
const NOTHING: Answers<'static> = Answers {
    code: None,
    code_name: None,
    labels: Labels::NONE,
    is_timeout: false,
    is_network: false,
    is_duplicate_key: false,
    is_retryable: false,
    of_server: None,
    of_concern: None,
    address: None,
};

/// The answers for an error that occurred on a server.
const AT_SERVER: Answers<'static> = Answers { address: Some(HOST), ..NOTHING };

fn answers(error: &ClientError) -> Answers<'_> {
    for label in ["RetryableError", "RetryableWriteError", "TransientTransactionError"] {
        assert_eq!(error.has_label(label), error.labels().has(label), "{error}");
    }
    Answers {
        code: error.code(),
        code_name: error.code_name(),
        labels: error.labels(),
        is_timeout: error.is_timeout(),
        is_network: error.is_network(),
        is_duplicate_key: error.is_duplicate_key(),
        is_retryable: error.is_retryable(),
        of_server: error.server_error().map(|error| error.code),
        of_concern: error.write_concern_error().map(|error| error.code),
        address: error.address(),
    }
}

fn by_server(code: i32, name: &'static str) -> Answers<'static> {
    Answers { code: Some(code), code_name: Some(name), of_server: Some(code), ..AT_SERVER }
}

fn refusal(code: i32, name: &str) -> RawDocumentBuf {
    rawdoc! { "ok": 0, "code": code, "codeName": name, "errmsg": "refused" }
}

fn origin() -> Box<Origin> {
    Box::new(Origin {
        address: HOST.into(),
        connection_id: Some(3),
        server_connection_id: None,
        generation: Some(0),
        service_id: None,
    })
}

fn server(reply: RawDocumentBuf) -> CommandError {
    CommandError::Server { origin: origin(), source: Box::new(ServerError::read(&reply)) }
}

fn io_error(kind: io::ErrorKind) -> Arc<io::Error> {
    Arc::new(kind.into())
}

fn network(kind: io::ErrorKind) -> CommandError {
    CommandError::Network { origin: origin(), source: io_error(kind) }
}

fn timeout(source: CommandTimeoutError) -> CommandError {
    CommandError::Timeout { origin: origin(), limit: Duration::from_secs(1), source }
}

fn wrong_password() -> AuthenticationError {
    AuthenticationError {
        mechanism: Mechanism::ScramSha256,
        username: Some("app".to_owned()),
        database: "admin".to_owned(),
        cause: AuthenticationCause::Refused(Box::new(ServerError::read(&refusal(18, "AuthenticationFailed")))),
        is_database_of_path: false,
    }
}

fn check_out(error: EstablishError) -> OperationError {
    CheckOutError::from(error.in_pool(HOST.into(), 3, 0)).into()
}

fn cleared(cause: impl StdError + Send + Sync + 'static, interrupted: bool) -> PoolClearedError {
    let cause = Some(Arc::new(cause) as _);
    PoolClearedError { address: HOST.into(), cause, interrupted, sent: interrupted, never_ready: false }
}

fn of_operation(error: impl Into<OperationError>) -> ClientError {
    error.into().into()
}

fn concern(code: i32, name: &str, is_timeout: bool) -> FailedOperation {
    let reply = rawdoc! {
        "ok": 1, "n": 1, "writeConcernError": { "code": code, "codeName": name, "errmsg": "not met" },
    };
    let server = ServerAddress::parse(HOST).unwrap();
    FailedOperation::unmet_concern(
        &server,
        reply,
        UnmetConcern { labels: Labels::RETRYABLE_WRITE, is_timeout, is_late: false },
    )
}

fn duplicate() -> WriteError {
    let document = rawdoc! { "index": 0, "code": 11_000, "codeName": "DuplicateKey", "errmsg": "E11000" };
    WriteError { index: 0, error: ServerError::read(&document) }
}

fn write(errors: Vec<WriteError>, cause: Option<ClientError>) -> WriteFailure {
    WriteFailure {
        written: Written::default(),
        errors,
        write_concern_errors: Vec::new(),
        labels: Labels::NONE,
        cause: cause.map(Box::new),
        is_timeout: false,
        other_labels: Vec::new(),
        address: None,
    }
}

fn bulk_write(errors: Vec<WriteError>, cause: Option<ClientError>) -> ClientBulkWriteFailure {
    ClientBulkWriteFailure {
        partial_result: None,
        write_errors: errors.into_iter().map(|refused| (refused.index, refused)).collect(),
        write_concern_errors: Vec::new(),
        labels: Labels::NONE,
        cause: cause.map(Box::new),
        generated_ids: Vec::new(),
        is_timeout: false,
        other_labels: Vec::new(),
        address: None,
    }
}

fn selection(is_timeout: bool) -> ServerSelectionError {
    let (wanted, topology) = ("a writable server".to_owned(), Arc::new(TopologySummary::unknown()));
    match is_timeout {
        true => ServerSelectionError::Timeout {
            wanted,
            limit_name: "serverSelectionTimeoutMS",
            limit: Duration::from_secs(30),
            topology,
        },
        false => ServerSelectionError::TriedOnce { wanted, topology },
    }
}

/// An application's error, which wraps the client's error.
#[derive(Debug, Error)]
#[error("the order was not placed")]
struct Application(#[source] Box<dyn StdError + Send + Sync>);

fn in_application(error: ClientError) -> ClientError {
    ClientError::other(Application(Box::new(Application(Box::new(error)))))
}

fn table() -> Vec<(ClientError, Answers<'static>)> {
    let duplicate_key = || Answers { is_duplicate_key: true, ..by_server(11_000, "DuplicateKey") };
    let both = rawdoc! {
        "ok": 0, "code": 91, "codeName": "ShutdownInProgress", "errmsg": "it ends", "errorLabels": ["RetryableError"],
        "writeConcernError": { "code": 64, "errmsg": "waiting" },
    };
    let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
    let limit = || ConnectTimeoutError::new("connectTimeoutMS", Duration::from_secs(10));
    let (lost, overload) = (Labels::TRANSIENT_TRANSACTION, Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE));
    let unmet = Answers { code: Some(64), code_name: Some("WriteConcernTimeout"), of_concern: Some(64), ..AT_SERVER };
    let unmet = Answers { labels: Labels::RETRYABLE_WRITE, ..unmet };
    let in_time = |limited_by, error| OperationError::CheckOutTimeout {
        limited_by,
        limit: Duration::from_secs(1),
        source: error,
    };
    vec![
        // Nothing was sent.
        (selection(true).into(), Answers { is_timeout: true, is_retryable: true, ..NOTHING }),
        (selection(false).into(), Answers { is_retryable: true, ..NOTHING }),
        (ServerSelectionError::Closed.into(), NOTHING),
        (InvalidOption::because("journal", "cannot be true with w=0").into(), NOTHING),
        (SessionError::NoTransaction.into(), NOTHING),
        (SessionError::TransactionCutOff.into(), Answers { labels: lost, ..NOTHING }),
        (SessionError::CursorClosing.into(), Answers { is_timeout: true, ..NOTHING }),
        (ClientError::Argument { name: "filter", reason: "it is no document".into() }, NOTHING),
        (ClientError::Reply { command: "find", reason: "it has no cursor".into() }, NOTHING),
        (ClientError::OnRuntime, NOTHING),
        (ClientError::EventLoop { source: io_error(io::ErrorKind::OutOfMemory) }, NOTHING),
        (ClientError::InUse { limit: Duration::from_secs(1) }, Answers { is_timeout: true, ..NOTHING }),
        // A failed selection in a transaction.
        (
            FailedOperation::selection(selection(true), lost).into(),
            Answers { labels: lost, is_timeout: true, is_retryable: true, ..NOTHING },
        ),
        // The server's errors for commands.
        (of_operation(server(refusal(11_000, "DuplicateKey"))), duplicate_key()),
        (of_operation(server(refusal(11_601, "Interrupted"))), by_server(11_601, "Interrupted")),
        (
            of_operation(server(both)),
            Answers {
                labels: Labels::RETRYABLE,
                is_retryable: true,
                of_concern: Some(64),
                ..by_server(91, "ShutdownInProgress")
            },
        ),
        (
            FailedOperation::numbered_write(
                server(rawdoc! { "ok": 0, "code": 20, "errmsg": "Transaction numbers are only allowed" }).into(),
                Labels::NONE,
            )
            .into(),
            Answers { code_name: None, ..by_server(20, "") },
        ),
        (
            ClientError::from(FailedOperation::operation(server(refusal(112, "WriteConflict")).into(), lost)),
            Answers { labels: lost, ..by_server(112, "WriteConflict") },
        ),
        // Timeouts of a command, in the client and on the server.
        (of_operation(timeout(CommandTimeoutError::Unsent)), Answers { is_timeout: true, ..AT_SERVER }),
        (of_operation(timeout(CommandTimeoutError::Receiving)), Answers { is_timeout: true, ..AT_SERVER }),
        (of_operation(network(io::ErrorKind::TimedOut)), Answers { is_timeout: true, ..AT_SERVER }),
        (
            of_operation(timeout(CommandTimeoutError::Server(Box::new(ServerError::read(&refusal(
                50,
                "MaxTimeMSExpired",
            )))))),
            Answers { is_timeout: true, ..by_server(50, "MaxTimeMSExpired") },
        ),
        (
            of_operation(server(refusal(91, "ShutdownInProgress"))).late(),
            Answers { is_timeout: true, ..by_server(91, "ShutdownInProgress") },
        ),
        // Network errors.
        (of_operation(network(io::ErrorKind::ConnectionReset)), Answers { is_network: true, ..AT_SERVER }),
        (
            of_operation(CommandError::Lost { origin: origin(), source: io_error(io::ErrorKind::UnexpectedEof) }),
            Answers { is_network: true, is_retryable: true, ..AT_SERVER },
        ),
        (of_operation(network(io::ErrorKind::BrokenPipe)).late(), Answers { is_timeout: true, ..AT_SERVER }),
        (of_operation(CommandError::NotReusable { origin: origin() }), Answers { is_retryable: true, ..AT_SERVER }),
        (
            of_operation(CommandError::Wire { origin: origin(), source: Arc::new(WireError::Unasked { count: 1 }) }),
            AT_SERVER,
        ),
        (of_operation(cleared(io::Error::other("hung"), true)), Answers { is_network: true, ..AT_SERVER }),
        (
            of_operation(check_out(EstablishError::overloaded(Stage::Connect, reset()))),
            Answers { labels: overload, is_network: true, is_retryable: true, ..AT_SERVER },
        ),
        (
            of_operation(check_out(EstablishError::network(Stage::Authenticate, limit()))),
            Answers { is_timeout: true, is_retryable: true, ..AT_SERVER },
        ),
        (of_operation(check_out(EstablishError::permanent(Stage::Tls, io::Error::other("expired")))), AT_SERVER),
        (
            of_operation(CheckOutError::from(cleared(network(io::ErrorKind::ConnectionReset), false))),
            Answers { is_network: true, is_retryable: true, ..AT_SERVER },
        ),
        (
            of_operation(CheckOutError::from(cleared(server(refusal(91, "ShutdownInProgress")), false))),
            Answers { is_retryable: true, ..AT_SERVER },
        ),
        (of_operation(CheckOutError::from(PoolClosedError { address: HOST.into() })), AT_SERVER),
        (
            of_operation(in_time(TimeLimit::Timeout, PoolClosedError { address: HOST.into() }.into())),
            Answers { is_timeout: true, ..AT_SERVER },
        ),
        // A wrong password, and a hello that the server refuses.
        (
            of_operation(check_out(EstablishError::permanent(Stage::Authenticate, wrong_password()))),
            by_server(18, "AuthenticationFailed"),
        ),
        (
            of_operation(CommandError::Reauthentication { origin: origin(), source: Arc::new(wrong_password()) }),
            by_server(18, "AuthenticationFailed"),
        ),
        (
            of_operation(check_out(EstablishError::permanent(
                Stage::Hello,
                ServerError::read(&refusal(13, "Unauthorized")),
            ))),
            by_server(13, "Unauthorized"),
        ),
        // Write concerns.
        (concern(64, "WriteConcernTimeout", false).into(), Answers { ..unmet }),
        (
            concern(50, "MaxTimeMSExpired", true).into(),
            Answers {
                code: Some(50),
                code_name: Some("MaxTimeMSExpired"),
                of_concern: Some(50),
                is_timeout: true,
                labels: Labels::RETRYABLE_WRITE,
                ..AT_SERVER
            },
        ),
        // Series of writes.
        (
            ClientError::Write(Box::new(WriteFailure { address: Some(HOST.into()), ..write(vec![duplicate()], None) })),
            duplicate_key(),
        ),
        (
            ClientError::BulkWrite(Box::new(ClientBulkWriteFailure {
                other_labels: Vec::new(),
                address: Some(HOST.into()),
                ..bulk_write(vec![duplicate()], None)
            })),
            duplicate_key(),
        ),
        (
            ClientError::BulkWrite(Box::new(bulk_write(
                Vec::new(),
                Some(of_operation(check_out(EstablishError::permanent(Stage::Authenticate, wrong_password())))),
            ))),
            by_server(18, "AuthenticationFailed"),
        ),
        (
            ClientError::Write(Box::new(write(
                vec![duplicate()],
                Some(of_operation(network(io::ErrorKind::BrokenPipe))),
            ))),
            Answers { is_network: true, ..duplicate_key() },
        ),
        (
            ClientError::Write(Box::new(write(
                Vec::new(),
                Some(of_operation(check_out(EstablishError::permanent(Stage::Authenticate, wrong_password())))),
            ))),
            by_server(18, "AuthenticationFailed"),
        ),
        (
            ClientError::Write(Box::new(WriteFailure {
                labels: Labels::RETRYABLE_WRITE,
                other_labels: Vec::new(),
                address: Some(HOST.into()),
                write_concern_errors: vec![
                    concern(64, "WriteConcernTimeout", false).write_concern_error().unwrap().clone(),
                ],
                ..write(Vec::new(), None)
            })),
            Answers {
                code: Some(64),
                code_name: Some("WriteConcernTimeout"),
                of_concern: Some(64),
                labels: Labels::RETRYABLE_WRITE,
                ..AT_SERVER
            },
        ),
        // Transactions, and the application's errors in them.
        (
            ClientError::TransactionTimeout {
                last: Box::new(FailedOperation::operation(server(refusal(112, "WriteConflict")).into(), lost).into()),
            },
            Answers { labels: lost, is_timeout: true, ..by_server(112, "WriteConflict") },
        ),
        (ClientError::other("there is too little on the account"), NOTHING),
        (ClientError::GridFs { file: "_id 5".into(), problem: GridFsProblem::NotFound }, NOTHING),
        (in_application(of_operation(server(refusal(11_000, "DuplicateKey")))), duplicate_key()),
        (
            in_application(FailedOperation::operation(network(io::ErrorKind::BrokenPipe).into(), lost).into()),
            Answers { labels: lost, is_network: true, ..AT_SERVER },
        ),
        (in_application(selection(true).into()), Answers { is_timeout: true, is_retryable: true, ..NOTHING }),
    ]
}

/// Returns the variant's position. A new variant needs a new row.
fn place(error: &ClientError) -> usize {
    match error {
        ClientError::Selection(_) => 0,
        ClientError::Operation(_) => 1,
        ClientError::InvalidOption(_) => 2,
        ClientError::Session(_) => 3,
        ClientError::TransactionTimeout { .. } => 4,
        ClientError::Other(_) => 5,
        ClientError::Write(_) => 6,
        ClientError::Argument { .. } => 7,
        ClientError::OnRuntime => 8,
        ClientError::EventLoop { .. } => 9,
        ClientError::InUse { .. } => 10,
        ClientError::Reply { .. } => 11,
        ClientError::BulkWrite(_) => 12,
        ClientError::GridFs { .. } => 13,
    }
}

#[test]
fn every_error_answers_what_a_service_asks() {
    let mut rows = [0; 14];
    for (error, expected) in table() {
        assert_eq!(answers(&error), expected, "{error}");
        rows[place(&error)] += 1;
    }
    assert!(rows.iter().all(|&rows| rows > 0), "a variant has no row: {rows:?}");
}

#[test]
fn error_of_the_client_is_found_behind_boxes_and_shares_and_where_it_is_left_out() {
    /// An error that displays the client's error unchanged.
    #[derive(Debug, Error)]
    #[error(transparent)]
    struct Transparent(ClientError);

    fn found<K>(error: &impl BodyError<K>) -> Option<String> {
        error.client_error().map(|error| error.to_string())
    }

    let lost = FailedOperation::operation(network(io::ErrorKind::BrokenPipe).into(), Labels::TRANSIENT_TRANSACTION);
    let errors = [
        lost.into(),
        SessionError::TransactionCutOff.into(),
        selection(true).into(),
        ClientError::Write(Box::new(write(vec![duplicate()], None))),
    ];
    for error in errors {
        let (text, labels) = (Some(error.to_string()), error.labels());
        assert_eq!(found(&error), text);
        assert_eq!(found::<body::Pointer>(&Box::<dyn StdError + Send + Sync>::from(error.clone())), text);
        assert_eq!(found::<body::Pointer>(&Box::<dyn StdError>::from(error.clone())), text);
        let wrapped = [
            ClientError::other(Application(Box::new(Box::new(error.clone())))),
            ClientError::other(Application(Box::new(Arc::new(error.clone())))),
            ClientError::other(Application(Box::new(Transparent(error)))),
        ];
        for wrapped in wrapped {
            let ClientError::Other(application) = &wrapped else { panic!("{wrapped}") };
            let found = super::answers::client_error_in(&**application).unwrap();
            assert_eq!((Some(found.to_string()), found.labels()), (text.clone(), labels));
            assert_eq!((answers(&wrapped), wrapped.labels()), (answers(&found), labels));
        }
    }
    assert_eq!(found::<body::Pointer>(&Box::<dyn StdError>::from("no error of the client")), None);
}

#[test]
fn question_mark_converts_the_errors_that_code_around_a_client_meets() {
    fn customer(order: &bson::Document) -> crate::Result<&str> {
        Ok(order.get_str("customer")?)
    }
    fn fail<E: Into<ClientError>>(error: E) -> ClientError {
        error.into()
    }

    assert!(matches!(customer(&bson::Document::new()).unwrap_err(), ClientError::Other(_)));
    assert!(matches!(fail(io::Error::from(io::ErrorKind::NotFound)), ClientError::Other(_)));
    let of_stream = fail(io::Error::new(io::ErrorKind::TimedOut, ClientError::from(selection(true))));
    assert!(matches!(of_stream, ClientError::Selection(_)), "{of_stream}");
    let invalid = InvalidOption::new("maxPoolSize", "at least 1", "0".to_owned());
    assert!(matches!(fail(ResolveError::InvalidOption(invalid)), ClientError::InvalidOption(_)));
    let no_runtime = fail(ResolveError::NoRuntime { name: "db.example.com".to_owned() });
    assert_eq!(no_runtime.to_string(), "\"db.example.com\" can only be resolved on a tokio runtime");
}

#[test]
fn label_that_no_specification_defines_is_found() {
    let reply = rawdoc! { "ok": 0, "code": 1, "errorLabels": ["RetryableError", "OfTomorrow"] };
    let error = of_operation(server(reply));
    assert!(error.has_label("OfTomorrow") && error.has_label("RetryableError") && !error.has_label("Other"));
    assert_eq!(error.labels(), Labels::RETRYABLE);
}
