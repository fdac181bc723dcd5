//! Commits of `with_transaction` that fail before anything is sent, on a runtime with a single thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bson::rawdoc;
use tokio::time::sleep;
use wharf::client::Session;
use wharf::{Client, ClientError, Options, PoolEvent, PoolOptions};
use wharf_testbed::scripted::name;

use super::cancelled::until;
use super::cluster::{after, ok};
use super::cut_off::insert;
use super::repetitions::{count, primary, start};

/// The time limit of a transaction.
const LIMIT: Duration = Duration::from_millis(500);

fn session(client: &Client) -> Session {
    client.start_session().default_timeout(LIMIT).into_future().into_inner().unwrap()
}

/// On the real clock: on the paused clock, commits without a pause would never end.
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
