//! Servers that stop answering or close the connection in the middle of a conversation.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;
use wharf::CommandError;
use wharf::endpoint::ConnectTimeoutError;
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name, reply_length};

use super::scripted_scram::{Behaviour, credential, replies};
use super::*;

/// Returns the behaviour of a server to which a client sends four commands: hello, and a separate command for each of
/// the client's three SCRAM messages.
fn longest() -> Behaviour {
    Behaviour { wants_empty_exchange: true, ..Behaviour::default() }
}

/// Starts a server that answers the first `commands` commands of each connection. For any later command, `last` turns
/// the normal reply into the answer.
async fn answering(commands: usize, last: impl Fn(Document) -> Answer + Clone + Send + 'static) -> ScriptedServer {
    let script = move || -> Script {
        let (mut reply, last, mut answered) = (replies(longest()), last.clone(), 0);
        Box::new(move |command| {
            let reply = reply(command);
            answered += 1;
            if answered <= commands { Answer::Reply(reply) } else { last(reply) }
        })
    };
    ScriptedServer::start(script).await.unwrap()
}

#[tokio::test]
async fn silent_server_fails_with_the_connect_timeout() {
    let limit = Duration::from_secs(3_000);
    for answered in 1..4 {
        let server = answering(answered, |_| Answer::Hang).await;
        let options = Options::new([&*server.address()]).unwrap().credential(credential()).connect_timeout(limit);
        let endpoint = options.endpoint().unwrap();
        let connecting = tokio::spawn(async move { endpoint.connect().await });
        server.until(answered + 1).await;
        tokio::time::pause();
        tokio::time::advance(limit).await;
        let error = connecting.await.unwrap().unwrap_err();
        tokio::time::resume();
        let AuthenticationCause::Timeout(timeout) = reason(failure(&error)) else { panic!("another cause: {error}") };
        assert_eq!(*timeout, ConnectTimeoutError::new("connectTimeoutMS", limit));
        assert_eq!(server.commands().len(), answered + 1);
    }
}

#[tokio::test]
async fn connection_closed_at_any_byte_of_any_reply_is_a_network_error() {
    for answered in 1..4 {
        let (bytes, length) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (cut, noted) = (Arc::clone(&bytes), Arc::clone(&length));
        let server = answering(answered, move |reply| {
            noted.store(reply_length(&reply), Ordering::SeqCst);
            Answer::Cut(reply, cut.load(Ordering::SeqCst))
        })
        .await;
        let endpoint = Options::new([&*server.address()]).unwrap().credential(credential()).endpoint().unwrap();
        loop {
            let error = tokio::time::timeout(AGES, endpoint.connect()).await.unwrap().unwrap_err();
            let AuthenticationCause::Network(error) = reason(failure(&error)) else { panic!("another cause: {error}") };
            assert!(matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset), "{error}");
            if bytes.fetch_add(1, Ordering::SeqCst) + 1 == length.load(Ordering::SeqCst) {
                break;
            }
        }
        let bytes = bytes.load(Ordering::SeqCst);
        assert!(bytes > 60, "only {bytes} bytes were cut: is this the right reply?");
    }
}

#[tokio::test]
async fn connection_closed_instead_of_a_reply_is_a_network_error() {
    for answered in 1..4 {
        let server = answering(answered, |_| Answer::Close).await;
        let error = connect(&server.address(), credential()).await.unwrap_err();
        assert!(matches!(reason(failure(&error)), AuthenticationCause::Network(_)), "{error}");
    }
}

#[tokio::test]
async fn pool_reports_the_failure_and_keeps_no_connection() {
    let server = answering(2, |_| Answer::Close).await;
    let endpoint = Options::new([&*server.address()]).unwrap().credential(credential()).endpoint().unwrap();
    let pool = endpoint.pool().build().unwrap();
    pool.ready();
    let error = tokio::time::timeout(AGES, pool.check_out()).await.unwrap().unwrap_err();
    let wharf::CheckOutError::Establish(error) = error else { panic!("another error: {error}") };
    assert_eq!((error.stage(), error.labels()), (Stage::Authenticate, Labels::NONE));
    assert!(error.cause().is::<AuthenticationError>());
    assert_eq!(error.connection_id(), Some(1));
}

/// Notifies the test when this value is dropped. A script holds it, so it is dropped with the connection.
struct Closing(mpsc::UnboundedSender<()>);

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn cancelled_conversation_closes_the_connection() {
    for answered in 0..4 {
        let (closing, mut closed) = mpsc::unbounded_channel();
        let script = move || -> Script {
            let (closing, mut reply, mut left) = (Closing(closing.clone()), replies(longest()), answered);
            Box::new(move |command| {
                let _held = &closing;
                let reply = reply(command);
                left -= 1;
                if left >= 0 { Answer::Reply(reply) } else { Answer::Hang }
            })
        };
        let server = ScriptedServer::start(script).await.unwrap();
        let endpoint = Options::new([&*server.address()]).unwrap().credential(credential()).endpoint().unwrap();
        tokio::select! {
            outcome = endpoint.connect() => panic!("it did not wait: {outcome:?}"),
            () = server.until(answered as usize + 1) => {}
        }
        tokio::time::timeout(AGES, closed.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn cancelled_reauthentication_makes_the_connection_unusable() {
    // The server never completes the second conversation.
    for answered in 1..3 {
        let script = move || -> Script {
            let (mut reply, mut expired, mut left) = (replies(longest()), false, answered);
            Box::new(move |command| {
                if name(command) == "ping" {
                    (reply, expired) = (replies(longest()), true);
                    return Answer::Reply(doc! { "ok": 0.0, "code": 391, "errmsg": "expired" });
                }
                let reply = reply(command);
                left -= i32::from(expired);
                if left >= 0 { Answer::Reply(reply) } else { Answer::Hang }
            })
        };
        let server = ScriptedServer::start(script).await.unwrap();
        let mut connection = connect(&server.address(), credential()).await.unwrap();
        let (before, ping) = (server.commands().len(), rawdoc! { "ping": 1 });
        tokio::select! {
            outcome = connection.run_command("admin", &ping) => panic!("it did not wait: {outcome:?}"),
            () = server.until(before + 2 + answered as usize) => {}
        }
        assert!(!connection.condition().is_reusable());
        let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
        assert!(matches!(failure, CommandError::NotReusable { .. }), "{failure}");
        assert!(!tokio::time::timeout(AGES, connection.drain()).await.unwrap());
    }
}
