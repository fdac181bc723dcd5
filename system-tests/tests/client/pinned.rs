//! Transactions that stay on their mongos even if a new connection to it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bson::{Document, doc};
use wharf::client::{Cursor, Session, TransactionOptions};
use wharf::endpoint::Endpoint;
use wharf::{Client, Connection, ReadPreference};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cancelled::until;
use super::cluster;
use super::cut_off::{insert, usual};
use super::repetitions::standalone;

/// How many times to repeat a test whose outcome could be right by chance half the time.
const ROUNDS: usize = 10;

/// How many times an operation that finds overloaded servers is attempted.
const ATTEMPTS: usize = 3;

/// A mongos, and how many of the next connections to it fail during the handshake.
struct Mongos {
    server: ScriptedServer,
    refusals: Arc<AtomicUsize>,
}

impl Mongos {
    async fn start() -> Self {
        let refusals = Arc::new(AtomicUsize::new(0));
        let refuses = refusals.clone();
        let server = ScriptedServer::start(move || {
            let refuses = refuses.clone();
            Box::new(move |command: &Document| {
                if !matches!(name(command).as_str(), "hello" | "isMaster") {
                    return usual(command);
                }
                let refusal = refuses.try_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                let mut hello = standalone();
                hello.insert("msg", "isdbgrid");
                if refusal.is_ok() { Answer::Close } else { Answer::Reply(hello) }
            })
        });
        Self { server: server.await.unwrap(), refusals }
    }

    fn refusals(&self) -> usize {
        self.refusals.load(Ordering::Relaxed)
    }
}

/// A transaction that is pinned to one of two mongos, with a cursor there.
struct Pinned {
    pinned: Mongos,
    other: Mongos,
    client: Client,
    session: Session,
    cursor: Option<Cursor>,
    /// All connections to the mongos of the transaction.
    held: Vec<Connection<Endpoint>>,
}

impl Pinned {
    /// Starts a transaction. The next connections to its mongos fail.
    async fn start(refusals: usize) -> Self {
        let (one, two) = (Mongos::start().await, Mongos::start().await);
        let hosts = format!("{},{}", one.server.address(), two.server.address());
        // The monitors' own connections must not be refused.
        let uri = format!("mongodb://{hosts}/?localThresholdMS=10000&heartbeatFrequencyMS=1000000");
        let (client, _, _) = cluster::client(&uri);
        client.connect().await.unwrap();
        until("both are known", || client.status().servers.iter().all(|server| server.server_type == "Mongos")).await;
        let mut session = client.start_session().await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        let mut cursor = client.find("test", "c", doc! {}).session(&mut session).await.unwrap();
        cursor.next().await.unwrap().unwrap();
        let has_it = |mongos: &Mongos| mongos.server.command_names().contains(&"find".to_owned());
        let (pinned, other) = if has_it(&one) { (one, two) } else { (two, one) };
        let mut held = Vec::new();
        let idle = || {
            let servers = client.status().servers;
            let pinned = servers.iter().find(|server| server.address.to_string() == pinned.server.address()).unwrap();
            pinned.pool.as_ref().unwrap().available
        };
        while idle() > 0 {
            held.push(client.check_out(&ReadPreference::default()).await.unwrap());
        }
        pinned.refusals.store(refusals, Ordering::Relaxed);
        Self { pinned, other, client, session, cursor: Some(cursor), held }
    }

    /// Commits the transaction, which must not have left its mongos.
    async fn commit_there(mut self) {
        insert(&self.client, &mut self.session).await.unwrap();
        self.session.commit_transaction().await.unwrap();
        assert_eq!(self.pinned.refusals(), 0);
        let arrived = self.pinned.server.command_names();
        assert_eq!(arrived[arrived.len() - 2..], ["insert", "commitTransaction"]);
        let names = self.other.server.command_names();
        assert!(names.iter().all(|name| matches!(name.as_str(), "hello" | "isMaster")), "{names:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn operation_that_is_repeated_after_an_overload_stays_on_its_mongos() {
    for _ in 0..ROUNDS {
        let mut fetches = Pinned::start(1).await;
        fetches.cursor.as_mut().unwrap().next().await.unwrap().unwrap();
        fetches.commit_there().await;
        // Here, the repeated operation is the one that might go to the other mongos.
        Pinned::start(1).await.commit_there().await;
    }
}

#[tokio::test(start_paused = true)]
async fn cursor_that_cannot_be_closed_leaves_the_transaction_on_its_mongos() {
    for _ in 0..ROUNDS {
        let mut transaction = Pinned::start(ATTEMPTS).await;
        transaction.cursor.take().unwrap().close().await;
        assert_eq!(transaction.pinned.refusals(), 0);
        assert!(!transaction.pinned.server.command_names().contains(&"killCursors".to_owned()));
        transaction.commit_there().await;
    }
}

/// Transactions, "When to unpin".
#[tokio::test(start_paused = true)]
async fn operation_that_fails_because_of_an_overload_unpins_the_transaction() {
    let mut transaction = Pinned::start(ATTEMPTS).await;
    let error = insert(&transaction.client, &mut transaction.session).await.unwrap_err();
    assert!(error.has_label("TransientTransactionError") && error.has_label("SystemOverloadedError"), "{error}");
    assert_eq!((transaction.pinned.refusals(), transaction.session.is_pinned_and_dirty().0), (0, false));
    drop(transaction.held);
}
