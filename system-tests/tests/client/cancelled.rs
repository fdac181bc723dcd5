//! Operations that are cancelled at each of their await points.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use tokio::time::{Instant, sleep, timeout};
use wharf::client::{Session, TransactionState, WatchTarget};
use wharf::{Client, ClientError, Options, PoolEvent, ReadPreference};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::repetitions::{primary, service, start};

/// Polls a future at most this many times, and then drops it. Returns `None` if it was never ready.
pub(super) async fn cancel_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Waits until the condition holds.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what}");
        sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until no connection is in use or being drained, and no operation is waiting for one.
async fn free(client: &Client, what: &str) {
    until(what, || {
        client.status().servers.iter().all(|server| {
            let pool = server.pool.as_ref().unwrap();
            assert!(pool.total <= 1, "{what}: {pool:?}");
            pool.in_use + pool.draining + pool.pending + pool.waiting == 0 && server.operations == 0
        })
    })
    .await;
}

/// Starts a server, and a client that may open only one connection to it. `hello` determines the kind of server.
async fn server(hello: Document) -> (ScriptedServer, Client) {
    let kind = if hello.contains_key("serviceId") { "loadBalanced=true" } else { "directConnection=true" };
    let (server, _) = start(hello, |command, _| {
        let batch =
            |field: &str, id: i64| doc! { "ok": 1, "cursor": { "id": id, "ns": "test.c", field: [{ "_id": 1 }] } };
        Answer::Reply(match name(command).as_str() {
            "find" => batch("firstBatch", 7),
            "getMore" => batch("nextBatch", 0),
            "aggregate" => doc! { "ok": 1, "cursor": { "id": 7_i64, "ns": "test.c", "firstBatch": [] } },
            _ => doc! { "ok": 1, "n": 1 },
        })
    })
    .await;
    let client = Client::from_uri(&format!("mongodb://{}/?{kind}&maxPoolSize=1", server.address())).unwrap();
    (server, client)
}

/// Cancels an operation after one poll, after two, and so on until it completes. Each time, the client's only
/// connection must become free.
async fn cancel_at_each_point<T>(client: &Client, what: &str, operation: impl AsyncFn() -> T) -> T {
    let mut polls = 0;
    loop {
        polls += 1;
        let done = cancel_after(polls, operation()).await;
        free(client, &format!("{what}, after {polls} polls")).await;
        if let Some(done) = done {
            assert!(polls > 2, "{what} was ready after {polls} polls");
            return done;
        }
    }
}

/// Asserts that the session of the last operation, which was not cancelled, is used again.
async fn reuses_the_session(server: &ScriptedServer, client: &Client) {
    client.run_command("test", &rawdoc! { "ping": 1 }).await.unwrap();
    let commands = server.commands();
    let mut sessions = commands.iter().rev().filter_map(|command| command.get("lsid"));
    assert_eq!(sessions.next().unwrap(), sessions.next().unwrap());
}

async fn read_all(client: &Client, session: Option<&mut Session>) -> Result<usize, ClientError> {
    let find = client.find("test", "c", doc! {});
    let mut cursor = match session {
        Some(session) => find.session(session).await?,
        None => find.await?,
    };
    let mut count = 0;
    while cursor.next().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

async fn transact(client: &Client, session: &mut Session) -> Result<usize, ClientError> {
    let body = async |mut session: Session| {
        client.insert("test", "c", [doc! {}]).session(&mut session).await?;
        read_all(client, Some(&mut session)).await
    };
    session.with_transaction(body).await
}

#[tokio::test(start_paused = true)]
async fn cancelled_operations_leave_their_only_connection_free() {
    for hello in [primary(), service()] {
        let (_server, client) = server(hello).await;
        for polls in 1.. {
            let read = cancel_after(polls, read_all(&client, None)).await;
            free(&client, &format!("a query, after {polls} polls")).await;
            if read.is_some() {
                assert!(matches!(read, Some(Ok(2))) && polls > 2, "{read:?} after {polls} polls");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_cancelled_transaction_is_ended_and_leaves_its_only_connection_free() {
    for hello in [primary(), service()] {
        let (server, client) = server(hello).await;
        for polls in 1.. {
            server.forget();
            let mut session = client.start_session().await.unwrap();
            let done = cancel_after(polls, transact(&client, &mut session)).await;
            let is_open = session.transaction_state() == TransactionState::InProgress;
            drop(session);
            let what = format!("a transaction, after {polls} polls");
            free(&client, &what).await;
            let begun_and_ended = || {
                let sent = server.commands();
                let ends = ["commitTransaction", "abortTransaction"];
                let ended = sent.iter().filter(|command| ends.contains(&name(command).as_str())).count();
                (sent.iter().filter(|command| command.contains_key("startTransaction")).count(), ended)
            };
            // The abort starts in the background.
            until(&what, || {
                let (begun, ended) = begun_and_ended();
                begun == ended && (ended == 1 || !is_open)
            })
            .await;
            free(&client, &what).await;
            let (begun, ended) = begun_and_ended();
            assert_eq!(begun, ended, "{what}: {:?}", server.commands());
            if done.is_some() {
                assert!(matches!(done, Some(Ok(2))) && polls > 2, "{done:?} after {polls} polls");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn write_of_several_commands_leaves_its_only_connection_free_where_it_is_cancelled() {
    let mut hello = primary();
    hello.insert("maxWriteBatchSize", 1);
    let (server, client) = server(hello).await;
    let write = async || client.insert("test", "c", [doc! {}, doc! {}, doc! {}]).await;
    let written = cancel_at_each_point(&client, "a write", write).await.unwrap();
    assert_eq!(written.inserted, 3);
    assert!(server.command_names().ends_with(&["insert"; 3].map(str::to_owned)));
    reuses_the_session(&server, &client).await;
}

#[tokio::test(start_paused = true)]
async fn change_stream_leaves_its_only_connection_free_where_its_opening_is_cancelled() {
    let (_server, client) = server(primary()).await;
    let open = async || client.watch(WatchTarget::Collection("test", "c"), ()).await.map(drop);
    cancel_at_each_point(&client, "a change stream", open).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn operation_holds_nothing_where_it_is_cancelled_in_its_pause() {
    let (server, _) = start(primary(), |command, _| {
        let labels = vec!["SystemOverloadedError", "RetryableError"];
        Answer::Reply(match name(command).as_str() {
            "ping" => doc! { "ok": 1 },
            _ => doc! { "ok": 0, "code": 462, "errmsg": "overloaded", "errorLabels": labels },
        })
    })
    .await;
    let uri = format!("mongodb://{}/?directConnection=true&maxPoolSize=1", server.address());
    let client = Client::from_uri(&uri).unwrap();
    let insert = async || client.insert("test", "c", [doc! {}]).await;
    let refused = cancel_at_each_point(&client, "an operation that is repeated", insert).await.unwrap_err();
    assert!(refused.has_label("SystemOverloadedError"), "{refused}");
    assert!(server.command_names().ends_with(&["insert"; 3].map(str::to_owned)), "{:?}", server.command_names());
    reuses_the_session(&server, &client).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_beginning_of_a_client_can_be_repeated() {
    let (server, _) = start(primary(), |_, _| Answer::Reply(doc! { "ok": 1 })).await;
    let begin = async |client: &Client, warms_up: bool| match warms_up {
        true => client.warm_up(3).await.unwrap(),
        false => client.connect().await.unwrap(),
    };
    for warms_up in [false, true] {
        for polls in 1.. {
            let client = Client::from_uri(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap();
            let done = cancel_after(polls, begin(&client, warms_up)).await;
            until("nothing is under way", || {
                let servers = client.status().servers;
                let mut pools = servers.iter().filter_map(|server| server.pool.as_ref());
                pools.all(|pool| pool.in_use + pool.pending + pool.waiting == 0)
            })
            .await;
            begin(&client, warms_up).await;
            let pool = client.status().servers[0].pool.unwrap();
            let expected = if warms_up { 3 } else { 0 };
            assert_eq!((pool.total, pool.available), (expected, expected), "after {polls} polls");
            if done.is_some() {
                assert!(polls > 1);
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_shutdown_can_be_repeated() {
    let (server, _) = start(primary(), |command, _| {
        let reply = Answer::Reply(doc! { "ok": 1 });
        let is_slow = matches!(name(command).as_str(), "count" | "endSessions");
        if is_slow { Answer::After(Duration::from_millis(20), Box::new(reply)) } else { reply }
    })
    .await;
    for polls in 1.. {
        let open = Arc::new(AtomicI64::new(0));
        let seen = open.clone();
        let options = Options::parse(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap();
        let client = Client::builder(options)
            .subscriber(move |event: &PoolEvent| match event {
                PoolEvent::ConnectionCreated { .. } => _ = seen.fetch_add(1, Ordering::SeqCst),
                PoolEvent::ConnectionClosed { .. } => _ = seen.fetch_sub(1, Ordering::SeqCst),
                _ => {}
            })
            .build()
            .unwrap();
        client.warm_up(3).await.unwrap();
        client.run_command("test", &rawdoc! { "ping": 1 }).await.unwrap();
        let running = client.clone();
        server.forget();
        let running = tokio::spawn(async move { running.run_command("test", &rawdoc! { "count": "c" }).await });
        server.until(1).await;
        let limit = Duration::from_secs(60);
        let done = cancel_after(polls, client.shutdown(limit)).await;
        assert!(client.shutdown(limit).await, "after {polls} polls");
        running.await.unwrap().unwrap();
        assert_eq!(open.load(Ordering::SeqCst), 0, "after {polls} polls");
        if let Some(are_closed) = done {
            assert!(are_closed && polls > 2, "after {polls} polls");
            break;
        }
    }
}

/// A transaction that stayed open would block others until the server aborted it after a minute.
#[tokio::test(start_paused = true)]
async fn transaction_whose_commit_was_never_sent_is_aborted_with_its_session() {
    let (server, client) = server(primary()).await;
    let (preference, holder) = (ReadPreference::default(), std::sync::Mutex::new(None));
    let mut session = client.start_session().await.unwrap();
    let committing = session.with_transaction(async |mut session| {
        client.insert("test", "c", [doc! {}]).session(&mut session).await?;
        // The commit is waiting for the only connection.
        let held = client.check_out(&preference).await?;
        holder.lock().unwrap().replace(held);
        Ok(())
    });
    timeout(Duration::from_secs(1), committing).await.unwrap_err();
    drop(session);
    drop(holder);
    let ended = |name: &str| server.command_names().iter().any(|other| other == name);
    until("the transaction is aborted", || ended("abortTransaction")).await;
    assert!(!ended("commitTransaction"));
}
