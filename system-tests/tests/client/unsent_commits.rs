//! Commits by `with_transaction` that fail before anything is sent, on a runtime with a single thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use tokio::time::{sleep, timeout};
use wharf::client::{ServerSelectionError, Session};
use wharf::{Client, ClientError, Options, PoolEvent, PoolOptions};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cancelled::until;
use super::cluster::{after, ok};
use super::cut_off::insert;
use super::repetitions::{client, count, primary, start};

/// The time limit of a transaction.
const LIMIT: Duration = Duration::from_millis(500);

fn session(client: &Client) -> Session {
    client.start_session().default_timeout(LIMIT).into_future().into_inner().unwrap()
}

/// This test runs on the real clock. On the paused clock, commits without a pause would be repeated forever.
#[tokio::test]
async fn commit_that_the_pool_refuses_lets_other_tasks_run() {
    let (server, arrived) = start(primary(), |command, _| match name(command).as_str() {
        "ping" => after(50, ok()),
        _ => ok(),
    })
    .await;
    let pool = PoolOptions::default().max_pool_size(1).refuse_late(true);
    let options = Options::parse(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap();
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = refused.clone();
    let client = Client::builder(options.pool(pool))
        .subscriber(move |event: &PoolEvent| {
            if matches!(event, PoolEvent::ConnectionCheckOutFailed { .. }) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build()
        .unwrap();
    let has_fired = Arc::new(AtomicBool::new(false));
    let fired = has_fired.clone();
    let error = session(&client)
        .with_transaction(async |mut session| {
            insert(&client, &mut session).await?;
            for _ in 0..40 {
                let client = client.clone();
                tokio::spawn(async move { client.run_command("admin", &rawdoc! { "ping": 1 }).await });
            }
            until("the pool has served waiters", || count(&arrived, "ping") == 3).await;
            let fired = fired.clone();
            tokio::spawn(async move {
                sleep(Duration::from_millis(10)).await;
                fired.store(true, Ordering::Relaxed);
            });
            Ok(())
        })
        .await
        .unwrap_err();
    assert!(matches!(error, ClientError::TransactionTimeout { .. }), "{error}");
    assert!(has_fired.load(Ordering::Relaxed), "the commits have held the thread");
    let refused = refused.load(Ordering::Relaxed);
    assert!((2..200).contains(&refused), "{refused} commits");
}

#[tokio::test(start_paused = true)]
async fn commit_is_not_repeated_on_an_incompatible_server() {
    let is_new = Arc::new(AtomicBool::new(false));
    let becomes_new = is_new.clone();
    let server = ScriptedServer::start(move || {
        let is_new = is_new.clone();
        Box::new(move |command: &Document| {
            if name(command) != "hello" && name(command) != "isMaster" {
                return ok();
            }
            let mut hello = primary();
            if is_new.load(Ordering::Relaxed) {
                hello.extend(doc! { "minWireVersion": 99, "maxWireVersion": 99 });
            }
            Answer::Reply(hello)
        })
    })
    .await
    .unwrap();
    let client = client(&server, "directConnection=true");
    let mut session = session(&client);
    let transaction = session.with_transaction(async |mut session| {
        insert(&client, &mut session).await?;
        becomes_new.store(true, Ordering::Relaxed);
        while client.run_command("admin", &rawdoc! { "ping": 1 }).await.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    });
    let error = timeout(Duration::from_secs(60), transaction).await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Selection(ServerSelectionError::Incompatible(_))), "{error}");
    assert!(!server.command_names().contains(&"commitTransaction".to_owned()));
}
