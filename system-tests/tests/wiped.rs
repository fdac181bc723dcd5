//! Memory that contained a secret is overwritten before it is freed.
//!
//! The servers also hold the secrets. They run on a separate thread, whose memory is not searched.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, doc};
use tokio::sync::oneshot;
use wharf::{Credential, DirectConnection, EstablishError, Mechanism, Options};
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};

const SECRET: &str = "correct-horse-battery-staple";

/// The time after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

/// The number of freed blocks that contained the secret.
static FOUND: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static IS_WATCHED: Cell<bool> = const { Cell::new(true) };
}

/// An allocator that searches each block that is freed. Blocks cannot grow in place, so growing a block also frees it.
struct Searching;

#[allow(unsafe_code)]
// SAFETY: every call is forwarded to the system's allocator. The search allocates nothing: the thread-local needs no
// initialization.
unsafe impl GlobalAlloc for Searching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller makes the same promises to this function. The block is zeroed so that `dealloc` may read
        // all of it.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller owns the block, which has this size, and `alloc` has initialized all of it.
        let block = unsafe { std::slice::from_raw_parts(pointer, layout.size()) };
        if IS_WATCHED.try_with(Cell::get).unwrap_or(false) {
            let first = SECRET.as_bytes()[0];
            let mut starts = block.iter().enumerate().filter(|(_, byte)| **byte == first);
            if starts.any(|(at, _)| block[at..].starts_with(SECRET.as_bytes())) {
                FOUND.fetch_add(1, Ordering::Relaxed);
            }
        }
        // SAFETY: the caller makes the same promises to this allocator, and `alloc` obtained the block from the
        // system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Searching = Searching;

#[track_caller]
fn assert_nothing_found(what: &str) {
    assert_eq!(FOUND.swap(0, Ordering::Relaxed), 0, "{what}");
}

#[test]
fn secrets_are_overwritten_before_memory_is_freed() {
    // Check that the search finds a secret in both kinds of freed blocks.
    drop(SECRET.to_owned());
    let mut growing = Vec::with_capacity(SECRET.len());
    growing.extend_from_slice(SECRET.as_bytes());
    growing.push(0);
    growing.fill(0);
    assert_eq!(FOUND.swap(0, Ordering::Relaxed), 2);

    connection_strings();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(conversations());
    drop(runtime);
    assert_nothing_found("what the runtime frees when it ends");
    #[cfg(feature = "aws")]
    messages_of_aws();
}

fn connection_strings() {
    for uri in [
        concat!("mongodb://user:", "correct-horse-battery-staple", "@host/?authMechanism=PLAIN"),
        concat!("mongodb://h/?proxyHost=p&proxyUsername=u&proxyPassword=", "correct-horse-battery-staple", "&w=-1&x=y"),
        concat!("mongodb://h/?tlsCertificateKeyFilePassword=", "correct-horse-battery-staple", "&tls=true"),
        concat!("mongodb://u:p@h/?authMechanismProperties=AWS_SESSION_TOKEN:", "correct-horse-battery-staple"),
        concat!("mongodb://user:", "correct-horse-battery-staple", "%@host"),
        concat!("mongodb://user:", "correct-horse-battery-staple", "@"),
    ] {
        drop(Options::parse(uri).map(|options| (options.clone(), options)));
        assert_nothing_found(uri);
    }
}

/// A server on a separate thread.
struct Server {
    address: String,
    // Dropped to stop the server.
    _stop: oneshot::Sender<()>,
}

impl Server {
    fn start() -> Self {
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            IS_WATCHED.set(false);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let server = ScriptedServer::start(script).await.unwrap();
                tell.send(server.address()).unwrap();
                let _ = stopped.await;
            });
        });
        Self { address: told.recv().unwrap(), _stop: stop }
    }

    async fn connect(&self, credential: Credential) -> Result<DirectConnection, EstablishError> {
        let endpoint = Options::new([&*self.address]).unwrap().credential(credential).endpoint().unwrap();
        let first = tokio::time::timeout(AGES, endpoint.connect()).await.unwrap();
        // The second connection may use data that the first connection learned.
        drop(tokio::time::timeout(AGES, endpoint.connect()).await.unwrap());
        first
    }
}

/// Returns the script of a server that accepts any client, but does not know the password.
fn script() -> Script {
    Box::new(|command| {
        let sasl = |payload: &[u8], done: bool| {
            let payload = Binary { subtype: BinarySubtype::Generic, bytes: payload.to_vec() };
            doc! { "ok": 1.0, "conversationId": 1, "payload": payload, "done": done }
        };
        let start = |command: &Document| {
            let Some(Bson::Binary(Binary { bytes: payload, .. })) = command.get("payload") else {
                panic!("no payload: {command}")
            };
            match command.get_str("mechanism") {
                Ok("PLAIN" | "MONGODB-OIDC") => sasl(b"", true),
                _ => {
                    let nonce = String::from_utf8_lossy(payload).split(",r=").nth(1).unwrap().to_owned();
                    sasl(format!("r={nonce}x,s=c2FsdA==,i=4096").as_bytes(), false)
                }
            }
        };
        Answer::Reply(match &*name(command) {
            "isMaster" => {
                let mut hello = doc! { "ok": 1.0, "maxWireVersion": 17 };
                if let Ok(speculative) = command.get_document("speculativeAuthenticate") {
                    hello.insert("speculativeAuthenticate", start(speculative));
                }
                hello
            }
            "saslStart" => start(command),
            _ => sasl(b"v=AAAA", true),
        })
    })
}

async fn conversations() {
    let server = Server::start();
    let plain = Credential::new("user", SECRET).mechanism(Mechanism::Plain);
    drop(server.connect(plain).await.unwrap());
    assert_nothing_found("PLAIN");
    for mechanism in [Mechanism::ScramSha1, Mechanism::ScramSha256] {
        // The conversation goes as far as it can without the server knowing the password.
        drop(server.connect(Credential::new("user", SECRET).mechanism(mechanism)).await.unwrap_err());
        assert_nothing_found(mechanism.name());
    }
    #[cfg(feature = "oidc")]
    {
        let callback = |_| async { Ok(wharf::OidcToken::new(SECRET)) };
        let credential = Credential::of(Mechanism::MongoDbOidc).oidc_callback(callback);
        drop(server.connect(credential).await.unwrap());
        assert_nothing_found("MONGODB-OIDC");
    }
}

#[cfg(feature = "aws")]
fn messages_of_aws() {
    use wharf::unstable::wire::auth::aws::{AccessKeys, NONCE_LENGTH, ServerFirst, Timestamp, client_second};
    use zeroize::Zeroize;

    let server = ServerFirst { nonce: [0; 2 * NONCE_LENGTH], host: "sts.amazonaws.com".to_owned() };
    for keys in [
        AccessKeys { access_key_id: "id", secret_access_key: SECRET, session_token: None },
        AccessKeys { access_key_id: "id", secret_access_key: "key", session_token: Some(SECRET) },
    ] {
        client_second(&server, keys, Timestamp(0)).unwrap().into_bytes().zeroize();
        assert_nothing_found("MONGODB-AWS");
    }
}
