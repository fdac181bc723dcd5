//! What a handshake error means for the operation that needs the connection, and for the pool.

use std::sync::{Arc, Mutex};

use wharf::{CheckOutError, Credential, Mechanism, OperationError, Pool};
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};

use super::*;

/// The error from a check-out, and whether the failure sink was told to clear the pool.
struct Failed {
    error: CheckOutError,
    clears_pool: bool,
}

/// Checks out a connection to a server that gives `answer` to every command with the name `command`.
async fn check_out(command: &'static str, answer: Answer) -> Failed {
    let script = move || -> Script {
        let answer = answer.clone();
        Box::new(move |received| match &*name(received) {
            received if received == command => answer.clone(),
            _ => Answer::Reply(doc! { "ok": 1, "maxWireVersion": 21, "minWireVersion": 0 }),
        })
    };
    let server = ScriptedServer::start(script).await.unwrap();
    let credential = Credential::new("app", "secret").mechanism(Mechanism::ScramSha256);
    let options = Options::new([&*server.address()]).unwrap().credential(credential);
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    let pool: Pool<Endpoint> = options
        .connect_timeout(Duration::from_millis(200))
        .endpoint()
        .unwrap()
        .pool()
        .on_failure(move |failure| sink.lock().unwrap().push(failure.clears_pool()))
        .build()
        .unwrap();
    pool.ready();
    let error = tokio::time::timeout(AGES, pool.check_out()).await.unwrap().unwrap_err();
    let told = std::mem::take(&mut *told.lock().unwrap());
    let [clears_pool] = told[..] else { panic!("the sink was not told once: {told:?}") };
    Failed { error, clears_pool }
}

fn refusal(code: i32) -> Answer {
    Answer::Reply(doc! { "ok": 0, "code": code, "errmsg": "refused" })
}

#[tokio::test]
async fn network_errors_of_the_handshake_are_retryable() {
    for (command, clears_pool) in [("isMaster", false), ("saslStart", true)] {
        for answer in [Answer::Close, Answer::Hang, Answer::Cut(doc! { "ok": 1 }, 20)] {
            let failed = check_out(command, answer.clone()).await;
            let CheckOutError::Establish(error) = &failed.error else { panic!("unexpected error: {}", failed.error) };
            // A failure may be a sign of overload only before the end of hello.
            assert_eq!(error.labels(), if clears_pool { Labels::NONE } else { OVERLOADED }, "{error}");
            assert_eq!(
                (failed.error.is_retryable(), failed.clears_pool),
                (true, clears_pool),
                "{command} {answer:?}: {error}"
            );
            assert!(failed.error.is_retryable() && OperationError::from(failed.error).is_retryable());
        }
    }
}

#[tokio::test]
async fn refusals_of_the_handshake_are_retryable_and_clear_the_pool_by_their_code() {
    let cases = [
        // A wrong credential, and an error that is not in any specification.
        (18, false, true),
        (8000, false, true),
        // The server is shutting down.
        (91, true, true),
        (11600, true, true),
        // The server is recovering, or not the primary.
        (189, true, false),
        (11602, true, false),
        (13436, true, false),
        (10107, true, false),
        (13435, true, false),
        // An old error code that no specification lists as retryable.
        (10058, false, false),
        // The server lost its connection to another server.
        (6, true, true),
        (7, true, true),
        (89, true, true),
        (9001, true, true),
        (262, true, true),
    ];
    for command in ["isMaster", "saslStart"] {
        for (code, retryable, clears_pool) in cases {
            let failed = check_out(command, refusal(code)).await;
            assert_eq!(
                (failed.error.is_retryable(), failed.clears_pool),
                (retryable, clears_pool),
                "{command} {code}: {}",
                failed.error
            );
        }
    }
}

#[tokio::test]
async fn unresolved_name_is_retryable_and_a_protocol_error_is_not() {
    let options = Options::new(["nowhere.invalid"]).unwrap();
    let pool = options.endpoint().unwrap().pool().build().unwrap();
    pool.ready();
    let error = tokio::time::timeout(AGES, pool.check_out()).await.unwrap().unwrap_err();
    let CheckOutError::Establish(connection) = &error else { panic!("unexpected error: {error}") };
    assert_eq!((connection.stage(), connection.labels()), (Stage::Resolve, Labels::NONE), "{error}");
    assert!(error.is_retryable());

    let failed = check_out("isMaster", Answer::Reply(doc! { "ok": 1, "maxWireVersion": "many" })).await;
    assert!(!failed.error.is_retryable() && failed.clears_pool, "{}", failed.error);
}
