//! Transactions whose bodies return the application's own errors.

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::{Document, rawdoc};
use wharf::client::{Session, TransactionOptions};
use wharf::{ClientError, Operation};
use wharf_testbed::scripted::{Answer, name};

use super::cluster::{Cluster, failure, ok};

/// An application's error.
#[derive(Debug)]
enum OrderError {
    SoldOut,
    Database(ClientError),
    /// Displays the client's error unchanged, and does not return it as a source.
    Transparent(ClientError),
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SoldOut => f.write_str("nothing is left of it"),
            Self::Database(_) => f.write_str("the order was not placed"),
            Self::Transparent(error) => error.fmt(f),
        }
    }
}

impl Error for OrderError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::SoldOut => None,
            Self::Database(error) => Some(error),
            Self::Transparent(error) => error.source(),
        }
    }
}

impl From<ClientError> for OrderError {
    fn from(error: ClientError) -> Self {
        Self::Database(error)
    }
}

/// Refuses the first commands with this name. The errors have this label.
fn refusing(
    wanted: &'static str,
    label: &'static str,
    first: usize,
) -> impl Fn(&Document, usize) -> Answer + Clone + Send + 'static {
    move |command, number| match name(command) == wanted && number < first {
        true => failure(251, &[label]),
        false => ok(),
    }
}

async fn insert(mut session: Session) -> Result<(), ClientError> {
    let (client, insert) = (session.client().clone(), rawdoc! { "insert": "c", "documents": [{}] });
    client.run(Operation::write("test", &insert).session(&mut session)).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn transaction_returns_the_error_type_of_its_body_and_is_repeated() {
    const TRANSIENT: &str = "TransientTransactionError";
    let answer = refusing("insert", TRANSIENT, 2);
    let set = Cluster::replica_set(1, move |_, command, number| answer(command, number)).await;
    let (client, told) = set.client("").await;
    let mut session = client.start_session().await.unwrap();
    let mut runs = 0;
    let ended = session.with_transaction_as(TransactionOptions::default(), async |session| {
        runs += 1;
        match runs {
            1 => insert(session).await?,
            2 => insert(session).await.map_err(OrderError::Transparent)?,
            _ => return Err(OrderError::SoldOut),
        }
        Ok(())
    });
    assert!(matches!(ended.await, Err(OrderError::SoldOut)));
    assert_eq!((runs, told.started("insert").len(), told.started("commitTransaction").len()), (3, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn body_in_a_task_may_return_boxed_errors() {
    let answer = refusing("insert", "TransientTransactionError", 1);
    let set = Cluster::replica_set(1, move |_, command, number| answer(command, number)).await;
    let (client, _) = set.client("").await;
    let mut session = client.start_session().await.unwrap();
    let task = tokio::spawn(async move {
        let runs = AtomicUsize::new(0);
        let body = |session| {
            let runs = &runs;
            async move {
                runs.fetch_add(1, Ordering::Relaxed);
                insert(session).await?;
                Err("nothing is left of it".into())
            }
        };
        let ended: Result<(), Box<dyn Error + Send + Sync>> =
            session.with_transaction_in_task_as(TransactionOptions::default(), body).await;
        (ended.unwrap_err().to_string(), runs.into_inner())
    });
    assert_eq!(task.await.unwrap(), ("nothing is left of it".to_owned(), 2));
}

/// The time runs out during the first run, or during the first commit.
#[tokio::test(start_paused = true)]
async fn errors_of_the_client_are_converted() {
    for (command, label) in
        [("insert", "TransientTransactionError"), ("commitTransaction", "UnknownTransactionCommitResult")]
    {
        for (pause, is_timeout) in [(1, false), (121, true)] {
            let answer = refusing(command, label, if is_timeout { 1 } else { 0 });
            let set = Cluster::replica_set(1, move |_, command, number| answer(command, number)).await;
            let (client, _) = set.client("").await;
            let mut session = client.start_session().await.unwrap();
            let ended = session.with_transaction_as::<OrderError, _, _>(Default::default(), async |session| {
                tokio::time::sleep(Duration::from_secs(pause)).await;
                Ok(insert(session).await?)
            });
            let error = match ended.await {
                Ok(()) => {
                    assert!(!is_timeout, "{command}");
                    continue;
                }
                Err(error) => error,
            };
            let OrderError::Database(error) = error else { panic!("{error:?}") };
            let ClientError::TransactionTimeout { last, .. } = &error else { panic!("{error:?}") };
            assert!(is_timeout && last.code() == Some(251) && error.has_label(label), "{command}: {error}");
        }
    }
}

/// An error that `ClientError::other` wraps keeps its labels.
#[tokio::test(start_paused = true)]
async fn wrapped_error_of_the_client_lets_the_transaction_be_repeated() {
    let answer = refusing("insert", "TransientTransactionError", 1);
    let set = Cluster::replica_set(1, move |_, command, number| answer(command, number)).await;
    let (client, told) = set.client("").await;
    let mut session = client.start_session().await.unwrap();
    let ended = session.with_transaction(async |session| {
        insert(session).await.map_err(|error| ClientError::other(OrderError::Database(error)))?;
        Ok(())
    });
    ended.await.unwrap();
    assert_eq!((told.started("insert").len(), told.started("commitTransaction").len()), (2, 1));
}
