//! Components that fall silent before a server is reached, and mechanisms that need only one message.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::rustls::version::TLS13;
use wharf::unstable::endpoint::ConnectError;
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name, reply_length};
use wharf_testbed::tls_front::TlsFront;

use super::chain::Chain;
use super::*;

/// A time limit that keeps the tests short.
const LIMIT: Duration = Duration::from_millis(400);

#[test]
fn name_not_resolved_in_time_says_nothing_about_the_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    runtime.block_on(async {
        // The operating system's resolver blocks, so it runs on one of the runtime's threads for blocking calls. The
        // only such thread is busy.
        let busy = tokio::task::spawn_blocking(move || released.recv());
        let options = Options::new(["nonexistent.invalid"]).unwrap().connect_timeout(LIMIT);
        let error = assert_refused(options, Stage::Resolve, Labels::NONE).await;
        assert_eq!(cause::<ConnectTimeoutError>(&error).limit, LIMIT);
        drop(release);
        busy.await.unwrap().unwrap_err();
    });
}

#[tokio::test]
async fn server_that_does_not_accept_in_time_may_be_overloaded() {
    // Connections beyond a full backlog receive no answer: Linux drops their SYN packets.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(accepted) = tokio::time::timeout(LIMIT, TcpStream::connect(address)).await {
        queued.push(accepted.unwrap());
        assert!(queued.len() < 100, "the accept queue does not fill up");
    }
    let options = Options::new([&*address.to_string()]).unwrap().connect_timeout(LIMIT);
    let error = assert_refused(options, Stage::Connect, OVERLOADED).await;
    assert_eq!(cause::<ConnectError>(&error).timeout, Some(ConnectTimeoutError::new("connectTimeoutMS", LIMIT)));
}

#[tokio::test]
async fn proxy_that_falls_silent_at_any_message_says_nothing_about_the_server() {
    let secured = Secured::shared().await;
    for message in [SocksMessage::Method, SocksMessage::Login, SocksMessage::Reply] {
        for fault in [SocksFault::Hang(message), SocksFault::Close(message), SocksFault::Garbage(message)] {
            let chain = Chain::new(Arc::clone(&secured), secured.mongod.address(), Some(fault)).await;
            let hangs = matches!(fault, SocksFault::Hang(_));
            let limit = if hangs { "connectTimeoutMS=400" } else { "connectTimeoutMS=60000" };
            let options = chain.options("connectTimeoutMS=60000", limit).await.unwrap();
            let error = assert_refused(options, Stage::Proxy, Labels::NONE).await;
            let timeout = cause::<ProxyError>(&error).source.downcast_ref::<ConnectTimeoutError>().copied();
            let expected = hangs.then_some(ConnectTimeoutError::new("connectTimeoutMS", LIMIT));
            assert_eq!(timeout, expected, "{error}");
        }
    }
}

#[tokio::test]
async fn proxy_that_closes_at_any_byte_says_nothing_about_the_server() {
    let secured = Secured::shared().await;
    let address = secured.mongod.address();
    let chain = Chain::new(secured, address, None).await;
    let relay = Relay::start(SocketAddr::from(([127, 0, 0, 1], chain.proxy.port()))).await.unwrap();
    let mut options = chain.options("", "").await.unwrap();
    options.proxy.as_mut().unwrap().port = relay.address().port();
    // The method, the login and the reply.
    const ANSWERS: u64 = 2 + 2 + 10;
    for bytes in 0..ANSWERS {
        relay.cut_after(Direction::ToClient, bytes);
        let error = assert_refused(options.clone(), Stage::Proxy, Labels::NONE).await;
        cause::<ProxyError>(&error);
    }
    // The bytes after the proxy's answers come from the server.
    relay.cut_after(Direction::ToClient, ANSWERS);
    assert_refused(options, Stage::Tls, OVERLOADED).await;
}

/// Starts a server without speculative authentication. `last` turns the reply to the only authentication message into
/// the answer.
async fn one_message(last: impl Fn(Document) -> Answer + Clone + Send + 'static) -> ScriptedServer {
    let script = move || -> Script {
        let last = last.clone();
        Box::new(move |command| match &*name(command) {
            "isMaster" => Answer::Reply(doc! { "ok": 1, "maxWireVersion": 21, "minWireVersion": 0 }),
            "saslStart" => last(doc! {
                "ok": 1, "conversationId": 1, "done": true,
                "payload": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: Vec::new() },
            }),
            "authenticate" => last(doc! { "ok": 1, "dbname": "$external", "user": CLIENT }),
            _ => Answer::Reply(doc! { "ok": 1 }),
        })
    };
    ScriptedServer::start(script).await.unwrap()
}

/// Returns a credential for each mechanism that needs only one message. One of the credentials is the connection's
/// certificate, so all attempts use TLS.
fn of_one_message() -> [Credential; 2] {
    [certified(), Credential::new("app", "secret").mechanism(Mechanism::Plain)]
}

/// Returns a TLS front for the server, which shuts down when dropped, and the options of a client with a certificate.
async fn in_tls(server: &ScriptedServer) -> (TlsFront, Options) {
    let certificates = Certificates::create().unwrap();
    let (address, file) = (server.address().parse().unwrap(), certificates.file(Pem::Server));
    let front = TlsFront::start(address, &file, &TLS13, None).await.unwrap();
    let read = |pem| std::fs::read(certificates.file(pem)).unwrap();
    let tls = TlsOptions::default().ca_pem(read(Pem::Authority)).certificate_key_pem(read(Pem::Client));
    let options = localhost(front.address().port()).tls(tls);
    (front, options)
}

#[tokio::test]
async fn mechanisms_of_one_message_fail_at_the_connect_timeout() {
    for credential in of_one_message() {
        let server = one_message(|_| Answer::Hang).await;
        let (_front, options) = in_tls(&server).await;
        let options = options.credential(credential).connect_timeout(LIMIT);
        let error = assert_refused(options, Stage::Authenticate, Labels::NONE).await;
        let AuthenticationCause::Timeout(timeout) = reason(cause(&error)) else { panic!("unexpected cause: {error}") };
        assert_eq!(timeout.limit, LIMIT);
    }
}

#[tokio::test]
async fn mechanisms_of_one_message_fail_when_the_reply_is_cut_anywhere() {
    for credential in of_one_message() {
        let (bytes, length) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
        let (cut, noted) = (Arc::clone(&bytes), Arc::clone(&length));
        let server = one_message(move |reply| {
            noted.store(reply_length(&reply), Ordering::SeqCst);
            Answer::Cut(reply, cut.load(Ordering::SeqCst))
        })
        .await;
        let (_front, options) = in_tls(&server).await;
        let options = options.credential(credential);
        while bytes.load(Ordering::SeqCst) < length.load(Ordering::SeqCst) {
            let error = assert_refused(options.clone(), Stage::Authenticate, Labels::NONE).await;
            let failed: &AuthenticationError = cause(&error);
            assert!(matches!(reason(failed), AuthenticationCause::Network(_)), "{error}");
            bytes.fetch_add(1, Ordering::SeqCst);
        }
        assert!(bytes.load(Ordering::SeqCst) > 60);
        // A complete reply is enough, even if the server then closes the connection.
        drop(options.endpoint().unwrap().connect().await.unwrap());
    }
}
