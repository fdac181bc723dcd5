//! `connectTimeoutMS`, or the callback's own limit, ends the wait for a server, service or callback that hangs.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;
use wharf::endpoint::{AuthenticationError, Command, CommandError};
use wharf::unstable::endpoint::AuthenticationCause;

use super::*;

/// Long enough for a busy machine to reach the step that hangs.
const LIMIT: Duration = Duration::from_millis(400);

fn cause(error: &EstablishError) -> &AuthenticationCause {
    let failed: &AuthenticationError = error.cause().downcast_ref().unwrap();
    failed.source().and_then(|source| source.downcast_ref()).unwrap()
}

/// Asserts that connecting times out, but not before the limit.
async fn assert_ended(server: &Server, credential: Credential) {
    let endpoint = options(server, credential).connect_timeout(LIMIT).endpoint().unwrap();
    let begun = Instant::now();
    let error = tokio::time::timeout(AGES, endpoint.connect()).await.unwrap().unwrap_err();
    assert!(matches!(cause(&error), AuthenticationCause::Timeout(_)), "{error}");
    assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn silent_server_times_out() {
    let keys = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];
    for step in ["saslStart", "saslContinue"] {
        let server = Server::of_key(KEY_ID, SECRET_KEY, None).await;
        server.state().silent_at = Some(step);
        assert_ended(&server, aws::credential(variables(&keys))).await;
        assert_eq!(server.state().count(step), 1);
    }
    for step in ["saslStart", "saslContinue"] {
        let server = Server::of_tokens(&["token-a"]).await;
        server.state().silent_at = Some(step);
        let call = |_: OidcContext| async { Ok(OidcToken::new("token-a")) };
        assert_ended(&server, Credential::of(Mechanism::MongoDbOidc).oidc_human_callback(call)).await;
        assert_eq!(server.state().count(step), 1);
    }
}

#[tokio::test]
async fn silent_cloud_service_times_out() {
    let server = Server::start(Default::default()).await;
    let stalls =
        [Vec::new(), b"HTTP/1.1 200 OK\r\n".to_vec(), b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()];
    for stall in stalls {
        for step in 1..=3 {
            let stall = stall.clone();
            let metadata = HttpServer::start(move |seen| {
                let reached = match &*seen.line {
                    "PUT /latest/api/token" => 1,
                    "GET /latest/meta-data/iam/security-credentials/" => 2,
                    _ => 3,
                };
                if reached == step { Answer::Stalls(stall.clone()) } else { Answer::ok("text") }
            })
            .await;
            assert_ended(&server, aws::credential(variables(&[]).aws_ec2(&metadata.url))).await;
            assert_eq!(metadata.seen().len(), step);
        }
    }
}

#[tokio::test]
async fn hanging_provider_times_out() {
    let server = Server::start(Default::default()).await;
    let provider = || std::future::pending();
    assert_ended(&server, aws::credential(variables(&[])).aws_credential_provider(provider)).await;
}

/// Notifies the test when this value is dropped.
struct Tells(Arc<Notify>);

impl Drop for Tells {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn callback_is_cancelled_with_its_connection() {
    let server = Server::of_tokens(&["token-a"]).await;
    let (begun, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (tell_begun, tell_dropped) = (Arc::clone(&begun), Arc::clone(&dropped));
    let credential = Credential::of(Mechanism::MongoDbOidc).oidc_callback(move |_: OidcContext| {
        let (begun, tells) = (Arc::clone(&tell_begun), Tells(Arc::clone(&tell_dropped)));
        async move {
            let _tells = tells;
            begun.notify_one();
            std::future::pending().await
        }
    });
    let endpoint = options(&server, credential).endpoint().unwrap();
    for _ in 0..2 {
        // The second connection calls the callback again, because nothing remains of the first call.
        let connecting = tokio::spawn({
            let endpoint = endpoint.clone();
            async move { endpoint.connect().await.map(drop) }
        });
        tokio::time::timeout(AGES, begun.notified()).await.unwrap();
        connecting.abort();
        tokio::time::timeout(AGES, dropped.notified()).await.unwrap();
        assert!(connecting.await.unwrap_err().is_cancelled());
    }
}

#[tokio::test]
async fn time_of_a_callback_counts_only_with_timeout_ms() {
    let server = Server::of_tokens(&["token-a"]).await;
    let slow = || {
        Credential::of(Mechanism::MongoDbOidc).oidc_callback(|context: OidcContext| async move {
            // This is twice the time limit of the whole connection attempt.
            tokio::time::sleep(LIMIT * 2).await;
            assert_eq!(context.timeout, Duration::from_secs(60));
            Ok(OidcToken::new("token-a"))
        })
    };
    let endpoint = options(&server, slow()).connect_timeout(LIMIT).endpoint().unwrap();
    endpoint.connect().await.unwrap();

    let (limited, timeout) = (options(&server, slow()).connect_timeout(AGES), Duration::from_millis(50));
    let error = limited.timeout(timeout).endpoint().unwrap().connect().await.unwrap_err();
    assert!(shown(&error).contains("no access token was obtained within 50 ms"), "{error}");
    assert!(error.is_timeout() && error.is_retryable(), "{error}");
    let error = options(&server, slow()).connect_timeout(LIMIT).timeout(AGES).endpoint().unwrap().connect().await;
    let error = error.unwrap_err();
    assert!(shown(&error).contains("no access token was obtained within"));
    assert!(error.is_timeout() && error.is_retryable(), "{error}");
}

#[tokio::test]
async fn command_timeout_limits_its_callback() {
    let server = Server::of_tokens(&["token-a"]).await;
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let credential = Credential::of(Mechanism::MongoDbOidc).oidc_callback(move |context: OidcContext| {
        let first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        async move {
            if !first {
                assert!(context.timeout <= LIMIT, "{:?}", context.timeout);
                std::future::pending::<()>().await;
            }
            Ok(OidcToken::new("token-a"))
        }
    });
    let failure = refused_once(&server, credential, None).await;
    assert!(failure.to_string().contains("no access token was obtained within"), "{failure}");
    assert!(failure.is_timeout() && !failure.is_network_error() && !failure.clears_pool(), "{failure}");
}

/// Runs a command with the time limit [`LIMIT`] on a connection that must reauthenticate, and returns the failure to
/// reauthenticate.
async fn refused_once(server: &Server, credential: Credential, silent_at: Option<&'static str>) -> CommandError {
    let mut connection = connect(server, credential).await.unwrap();
    server.state().silent_at = silent_at;
    server.state().failures.push_back(("find", 391));
    let find = find();
    let running = connection.run(Command::new("test", &find).timeout(LIMIT));
    let failure = tokio::time::timeout(AGES, running).await.unwrap().unwrap_err();
    assert!(matches!(failure, CommandError::Reauthentication { .. }), "{failure}");
    // The connection cannot be reused, because its authentication state is unknown.
    assert!(!connection.condition().is_reusable());
    failure
}

/// Returns a credential whose callback returns a token on the first call. Later calls fail after part of their time
/// limit.
fn callback_that_fails_after(part: fn(Duration) -> Duration) -> Credential {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    Credential::of(Mechanism::MongoDbOidc).oidc_callback(move |context: OidcContext| {
        let first = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        async move {
            if !first {
                tokio::time::sleep(part(context.timeout)).await;
                return Err("the error of the callback".into());
            }
            Ok(OidcToken::new("token-a"))
        }
    })
}

#[tokio::test]
async fn failed_callback_is_a_timeout_only_after_its_deadline() {
    let server = Server::of_tokens(&["token-a"]).await;
    let failure = refused_once(&server, callback_that_fails_after(|all| all), None).await;
    assert!(failure.is_timeout(), "{failure}");

    let failure = refused_once(&server, callback_that_fails_after(|_| Duration::ZERO), None).await;
    assert!(failure.to_string().ends_with("the error of the callback"), "{failure}");
    assert!(!failure.is_timeout() && !failure.is_network_error(), "{failure}");
}

#[tokio::test]
async fn unanswered_reauthentication_is_a_timeout() {
    let server = Server::of_tokens(&["token-a"]).await;
    let call = |_: OidcContext| async { Ok(OidcToken::new("token-a")) };
    let credential = Credential::of(Mechanism::MongoDbOidc).oidc_callback(call);
    let failure = refused_once(&server, credential, Some("saslStart")).await;
    assert!(failure.is_timeout() && !failure.is_network_error(), "{failure}");
}
