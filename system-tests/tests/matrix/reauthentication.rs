//! Connections that a server asks to authenticate again (error 391).

use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};

use super::*;

const EXPIRED: i32 = 391;

/// Returns a pool of one connection as `app`, with TLS and zstd.
fn pool(secured: &Secured, application: &str, credential: Credential) -> Pool<Endpoint> {
    let options = secured.options().credential(credential).compressors([Compressor::Zstd]).app_name(application);
    pool_of(options.pool(PoolOptions::default().max_pool_size(1)))
}

fn expire() -> Document {
    doc! { "failCommands": ["ping"], "errorCode": EXPIRED }
}

#[tokio::test]
async fn command_is_retried_once_after_reauthentication() {
    let secured = Secured::shared().await;
    let (root, fail_point) = (secured.root().await, secured.fail_point().await);
    for mechanism in [Mechanism::ScramSha1, Mechanism::ScramSha256] {
        let pool = pool(&secured, "again", user().mechanism(mechanism));
        run(&pool, "admin", doc! { "ping": 1 }).await.unwrap();

        fail_point.set(&root, "again", doc! { "times": 1 }, expire()).await;
        run(&pool, "admin", doc! { "ping": 1 }).await.unwrap();
        let status = run(&pool, "admin", doc! { "connectionStatus": 1 }).await.unwrap();
        assert_eq!(user_of(&status).as_deref(), Some("app"));

        // The second refusal is the command's outcome, like any other server error, and has no further effect.
        fail_point.set(&root, "again", doc! { "times": 3 }, expire()).await;
        for left in [1, 0] {
            let outcome = run(&pool, "admin", doc! { "ping": 1 }).await;
            if left == 0 {
                // The third refusal is the first refusal of this command.
                outcome.unwrap();
                break;
            }
            let error = outcome.unwrap_err();
            let OperationError::Command(CommandError::Server { source, .. }) = &error else { panic!("{error}") };
            assert_eq!(source.code, EXPIRED);
            assert!(!error.clears_pool() && !error.is_retryable(), "{error}");
        }
        assert_eq!(pool.check_out().await.unwrap().id(), 1, "the commands did not share one connection");
    }
}

#[tokio::test]
async fn failed_reauthentication_is_reported_and_closes_the_connection() {
    let secured = Secured::shared().await;
    let (root, fail_point) = (secured.root().await, secured.fail_point().await);
    let roles = vec![doc! { "role": "root", "db": "admin" }];
    run(&root, "admin", doc! { "createUser": "leaver", "pwd": "secret", "roles": roles }).await.unwrap();
    let pool = pool(&secured, "leaving", Credential::new("leaver", "secret"));
    run(&pool, "admin", doc! { "ping": 1 }).await.unwrap();
    run(&root, "admin", doc! { "dropUser": "leaver" }).await.unwrap();

    fail_point.set(&root, "leaving", doc! { "times": 1 }, expire()).await;
    let error = run(&pool, "admin", doc! { "ping": 1 }).await.unwrap_err();
    let OperationError::Command(CommandError::Reauthentication { origin, source, .. }) = &error else {
        panic!("{error}")
    };
    assert_eq!(source.server_error().unwrap().code, 18);
    assert_eq!((source.username.as_deref(), origin.connection_id), (Some("leaver"), Some(1)));
    assert!(!error.clears_pool() && !error.is_retryable() && !error.has_label("RetryableError"), "{error}");
    assert_eq!(pool.status().total, 0, "a connection without a known user was kept");

    let error = run(&pool, "admin", doc! { "ping": 1 }).await.unwrap_err();
    let OperationError::CheckOut(CheckOutError::Establish(error)) = &error else { panic!("{error}") };
    assert_eq!((error.stage(), error.labels()), (Stage::Authenticate, Labels::NONE));
}

#[tokio::test]
async fn reauthentication_without_a_user_is_the_commands_error() {
    let secured = Secured::shared().await;
    let (root, fail_point) = (secured.root().await, secured.fail_point().await);
    let pool = pool_of(secured.options().app_name("nobody"));
    fail_point.set(&root, "nobody", doc! { "times": 1 }, expire()).await;
    let error = run(&pool, "admin", doc! { "ping": 1 }).await.unwrap_err();
    assert_eq!(error.command_error().unwrap().server_error().unwrap().code, EXPIRED);
    run(&pool, "admin", doc! { "ping": 1 }).await.unwrap();
}

/// Starts a server that lets every client in with PLAIN, refuses every command on a connection with 391, and answers
/// the second authentication with `second`.
async fn refusing_again(second: Answer) -> ScriptedServer {
    let empty = || bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: Vec::new() };
    let script = move || -> Script {
        let (second, mut authenticated) = (second.clone(), false);
        Box::new(move |command| match &*name(command) {
            "isMaster" => Answer::Reply(doc! { "ok": 1, "maxWireVersion": 21, "minWireVersion": 0 }),
            "saslStart" if !std::mem::replace(&mut authenticated, true) => {
                Answer::Reply(doc! { "ok": 1, "conversationId": 1, "done": true, "payload": empty() })
            }
            "saslStart" => second.clone(),
            _ => Answer::Reply(doc! { "ok": 0, "code": EXPIRED, "errmsg": "expired" }),
        })
    };
    ScriptedServer::start(script).await.unwrap()
}

#[tokio::test]
async fn reauthentication_reports_how_it_ended() {
    let refusal = |code: i32, labels: &[&str]| {
        Answer::Reply(doc! { "ok": 0, "code": code, "errmsg": "no", "errorLabels": labels.to_vec() })
    };
    // `expected` says whether the failure is a network error, is a timeout, clears the pool, marks the server unknown,
    // and is retryable.
    for (second, expected) in [
        (Answer::Close, [true, false, true, true, false]),
        (Answer::Cut(doc! { "ok": 1 }, 20), [true, false, true, true, false]),
        (Answer::Hang, [false, true, false, false, false]),
        (refusal(18, &[]), [false, false, false, false, false]),
        (refusal(EXPIRED, &[]), [false, false, false, false, false]),
        (refusal(91, &[]), [false, false, true, true, false]),
        (refusal(10107, &[]), [false, false, false, true, false]),
        (refusal(462, &["SystemOverloadedError", "RetryableError"]), [false, false, false, false, true]),
    ] {
        let server = refusing_again(second.clone()).await;
        let credential = Credential::new("app", "secret").mechanism(Mechanism::Plain);
        let options = Options::new([&*server.address()]).unwrap().credential(credential);
        let pool = pool_of(options.connect_timeout(Duration::from_millis(400)));
        let error = run(&pool, "admin", doc! { "ping": 1 }).await.unwrap_err();
        let failure = error.command_error().unwrap();
        assert!(matches!(failure, CommandError::Reauthentication { .. }), "{error}");
        let found = [
            failure.is_network_error(),
            error.is_timeout(),
            error.clears_pool(),
            error.marks_server_unknown(),
            error.is_retryable(),
        ];
        assert_eq!(found, expected, "{second:?}: {error}");
        assert_eq!(server.command_names(), ["isMaster", "saslStart", "ping", "saslStart"]);
        assert_eq!(pool.clear_after(&error), expected[2]);
        assert_eq!(pool.status().total, 0);
    }
}
