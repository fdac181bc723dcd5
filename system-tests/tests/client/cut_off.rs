//! Transactions with cancelled operations, behind a load balancer. A transaction's server can only be reached through
//! the transaction's own connection.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Document, doc};
use wharf::client::{Session, SessionError, TransactionOptions, TransactionState};
use wharf::{Client, ClientError};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cancelled::{cancel_after, until};
use super::repetitions::{balanced, service};

const CUT_OFF: SessionError = SessionError::TransactionCutOff;

/// A load balancer that gives each connection a number, from 0.
pub(super) struct Balancer {
    pub(super) server: ScriptedServer,
    /// The received commands, each with the number of its connection.
    arrived: Arc<Mutex<Vec<(usize, Document)>>>,
}

impl Balancer {
    pub(super) async fn start(answer: impl Fn(&Document) -> Answer + Clone + Send + 'static) -> Self {
        let (arrived, connections) = (Arc::<Mutex<Vec<_>>>::default(), AtomicUsize::new(0));
        let noted = arrived.clone();
        let server = ScriptedServer::start(move || {
            let (number, noted, answer) = (connections.fetch_add(1, Ordering::Relaxed), noted.clone(), answer.clone());
            Box::new(move |command: &Document| {
                if name(command) == "hello" {
                    return Answer::Reply(service());
                }
                noted.lock().unwrap().push((number, command.clone()));
                answer(command)
            })
        });
        Self { server: server.await.unwrap(), arrived }
    }

    /// Returns the names of the commands and the numbers of their connections.
    pub(super) fn arrived(&self) -> Vec<(String, usize)> {
        self.arrived.lock().unwrap().iter().map(|(number, command)| (name(command), *number)).collect()
    }

    pub(super) fn count(&self, wanted: &str) -> usize {
        self.arrived().iter().filter(|(name, _)| name == wanted).count()
    }
}

pub(super) fn usual(command: &Document) -> Answer {
    Answer::Reply(match name(command).as_str() {
        "find" => doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.c", "firstBatch": [{ "_id": 1 }] } },
        "getMore" => doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.c", "nextBatch": [{ "_id": 2 }] } },
        _ => doc! { "ok": 1, "n": 1 },
    })
}

pub(super) async fn session_of(client: &Client) -> Session {
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    session
}

pub(super) fn connections(client: &Client) -> usize {
    client.status().servers[0].pool.as_ref().unwrap().total as usize
}

pub(super) async fn insert(client: &Client, session: &mut Session) -> Result<(), ClientError> {
    client.insert("test", "c", [doc! {}]).session(session).await.map(drop)
}

pub(super) fn is_cut_off<T>(outcome: Result<T, ClientError>) {
    let Err(error) = outcome else { panic!("it was not refused") };
    assert!(error.has_label("TransientTransactionError"), "{error}");
    let is_refused = |error: &ClientError| matches!(error, ClientError::Session(error) if *error == CUT_OFF);
    let cause = match &error {
        ClientError::Write(failure) => failure.cause.as_deref(),
        error => Some(error),
    };
    assert!(cause.is_some_and(is_refused), "{error}");
}

/// Cancels an operation after each possible number of polls, first as the first operation of a transaction and then as
/// the second. Afterwards, `then` examines the resulting state.
async fn cancelled_at_each_point<F: Future>(
    operation: impl AsyncFn(&Client, &mut Session) -> Result<(), ClientError>,
    then: impl Fn(Arc<Balancer>, Client, Session) -> F,
) {
    for is_first in [true, false] {
        let (mut unsent, mut cut_off) = (0, 0);
        for polls in 1.. {
            let balancer = Arc::new(Balancer::start(usual).await);
            let client = balanced(&balancer.server);
            let mut session = session_of(&client).await;
            if !is_first {
                insert(&client, &mut session).await.unwrap();
            }
            let done = cancel_after(polls, operation(&client, &mut session)).await;
            match (done, session.transaction_state()) {
                (Some(done), _) => {
                    done.unwrap();
                    break;
                }
                (None, TransactionState::Starting) => {
                    insert(&client, &mut session).await.expect("nothing had been sent");
                    unsent += 1;
                }
                (None, state) => {
                    assert_eq!(state, TransactionState::InProgress);
                    until("the connection is closed", || connections(&client) == 0).await;
                    cut_off += 1;
                    then(balancer, client, session).await;
                }
            }
        }
        assert!(cut_off > 0 && (unsent > 0) == is_first, "{is_first}: {unsent}, {cut_off}");
    }
}

#[tokio::test(start_paused = true)]
async fn operations_and_commit_after_a_cancelled_one_are_refused() {
    cancelled_at_each_point(insert, async |balancer, client, mut session| {
        let sent = balancer.arrived();
        is_cut_off(insert(&client, &mut session).await);
        is_cut_off(client.find("test", "c", doc! {}).session(&mut session).await);
        for _ in 0..2 {
            is_cut_off(session.commit_transaction().await);
            assert_eq!(session.transaction_state(), TransactionState::InProgress);
        }
        assert_eq!(balancer.arrived(), sent, "nothing was sent");
        session.abort_transaction().await.expect("what the error says to do");
        // The session can still be used.
        session.start_transaction(TransactionOptions::default()).unwrap();
        insert(&client, &mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
        assert_eq!(balancer.count("abortTransaction"), 1);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn transaction_with_a_cancelled_operation_is_aborted_by_its_owner_or_with_its_session() {
    for by_owner in [true, false] {
        cancelled_at_each_point(insert, async |balancer, client, mut session| {
            let lost = balancer.arrived().iter().map(|(_, number)| *number).max();
            if by_owner {
                session.abort_transaction().await.unwrap();
            }
            drop(session);
            until("the transaction is aborted", || balancer.count("abortTransaction") == 1).await;
            let (_, last) = balancer.arrived().pop().unwrap();
            assert!(lost.is_none_or(|lost| last > lost), "on another connection");
            until("nothing is in use", || client.status().servers[0].pool.as_ref().unwrap().in_use == 0).await;
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn body_with_a_cancelled_operation_is_repeated_as_a_whole() {
    let balancer = Balancer::start(usual).await;
    let client = balanced(&balancer.server);
    let mut session = client.start_session().await.unwrap();
    let runs = AtomicUsize::new(0);
    let body = async |mut session: Session| {
        insert(&client, &mut session).await?;
        if runs.fetch_add(1, Ordering::Relaxed) == 0 {
            assert!(cancel_after(1, insert(&client, &mut session)).await.is_none());
        }
        Ok(())
    };
    session.with_transaction(body).await.unwrap();
    assert_eq!((runs.into_inner(), balancer.count("commitTransaction")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn operation_that_times_out_takes_its_connection_along_and_unpins_the_transaction() {
    let balancer = Balancer::start(|command| match name(command).as_str() {
        "insert" if !command.contains_key("startTransaction") => Answer::Hang,
        _ => usual(command),
    })
    .await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    insert(&client, &mut session).await.unwrap();
    let slow = client.insert("test", "c", [doc! {}]).session(&mut session).timeout(Duration::from_millis(100)).await;
    let error = slow.unwrap_err();
    assert!(error.is_timeout() && error.has_label("TransientTransactionError"), "{error}");
    until("the connection is closed", || connections(&client) == 0).await;
    // The error unpinned the transaction, so the client leaves it to the server to report the outcome.
    session.commit_transaction().await.unwrap();
    assert_eq!(balancer.arrived().last(), Some(&("commitTransaction".to_owned(), 1)));
}

#[tokio::test(start_paused = true)]
async fn cancelled_commit_can_be_repeated_on_another_connection() {
    let balancer = Balancer::start(|command| match name(command).as_str() {
        // Repeated commits use the write concern majority.
        "commitTransaction" if !command.contains_key("writeConcern") => Answer::Hang,
        _ => usual(command),
    })
    .await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    insert(&client, &mut session).await.unwrap();
    assert!(cancel_after(1, session.commit_transaction()).await.is_none());
    session.commit_transaction().await.unwrap();
    until("both commits have arrived", || balancer.count("commitTransaction") == 2).await;
    let on: Vec<_> = balancer.arrived().into_iter().filter(|(name, _)| name == "commitTransaction").collect();
    assert_ne!(on[0].1, on[1].1);
}

#[tokio::test(start_paused = true)]
async fn transaction_is_cut_off_as_long_as_a_cancelled_fetch_has_its_connection() {
    let balancer = Balancer::start(usual).await;
    let client = balanced(&balancer.server);
    let mut session = session_of(&client).await;
    let mut cursor = client.find("test", "c", doc! {}).session(&mut session).await.unwrap();
    cursor.next().await.unwrap().unwrap();
    assert!(cancel_after(1, cursor.next()).await.is_none());
    is_cut_off(insert(&client, &mut session).await);
    // The cursor continues where it left off, and pins the connection again.
    cursor.next().await.unwrap().unwrap();
    insert(&client, &mut session).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert!(balancer.arrived().iter().all(|(_, number)| *number == 0), "{:?}", balancer.arrived());
}

#[tokio::test(start_paused = true)]
async fn cursor_that_closes_late_leaves_the_next_transaction_alone() {
    for fails in [false, true] {
        let balancer = Balancer::start(move |command| match name(command).as_str() {
            "getMore" if fails => Answer::Close,
            _ => usual(command),
        })
        .await;
        let client = balanced(&balancer.server);
        let mut session = session_of(&client).await;
        let mut cursor = client.find("test", "c", doc! {}).session(&mut session).await.unwrap();
        cursor.next().await.unwrap().unwrap();
        assert!(cancel_after(1, cursor.next()).await.is_none());
        session.abort_transaction().await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        insert(&client, &mut session).await.unwrap();
        assert_eq!(connections(&client), 2);
        drop(cursor);
        until("the connection of the first transaction is closed", || connections(&client) == 1).await;
        assert_eq!(client.status().servers[0].pool.as_ref().unwrap().in_use, 1, "the second one has its own");
        insert(&client, &mut session).await.unwrap();
        session.commit_transaction().await.unwrap();
        let on: Vec<_> = balancer.arrived().into_iter().filter(|(_, number)| *number != 0).collect();
        let names: Vec<_> = on.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["abortTransaction", "insert", "insert", "commitTransaction"], "{fails}: {on:?}");
        assert_eq!(balancer.count("killCursors"), 0);
    }
}
