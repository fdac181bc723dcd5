//! The prose tests of Client Backpressure, and the retry prose tests that concern overload, on a server that follows a
//! script, in virtual time. The pauses depend on real random numbers, so a test repeats an operation until its pauses
//! come close to their bounds. The unit tests of `src/client/session/retry.rs` cover the smallest and the largest
//! random number.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use tokio::time::Instant;
use wharf::{Client, ClientError, Operation};
use wharf_testbed::scripted::{Answer, name};

use super::cluster::{Cluster, failure, ok};

const OVERLOAD: &[&str] = &["SystemOverloadedError", "RetryableError"];
/// How many times an operation is repeated. With this many repetitions, its pauses come within a sixth of both bounds
/// in all but one of 10^12 runs.
const ROUNDS: usize = 400;

async fn insert(client: &Client) -> Result<RawDocumentBuf, ClientError> {
    client.run(Operation::write("test", &rawdoc! { "insert": "c", "documents": [{ "a": 1 }] })).await
}

async fn find(client: &Client) -> Result<RawDocumentBuf, ClientError> {
    client.run(Operation::read("test", &rawdoc! { "find": "c", "limit": 1 })).await
}

/// Returns the shortest and the longest time that a refused insert takes, in milliseconds.
async fn bounds_of_refused_inserts(refusal: Document) -> (u128, u128) {
    let set = Cluster::replica_set(1, move |_, command, _| match name(command).as_str() {
        "insert" => Answer::Reply(refusal.clone()),
        _ => ok(),
    })
    .await;
    let (client, told) = set.client("").await;
    let (mut shortest, mut longest) = (u128::MAX, 0);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        insert(&client).await.unwrap_err();
        let took = begun.elapsed().as_millis();
        (shortest, longest) = (shortest.min(took), longest.max(took));
    }
    assert_eq!(told.started("insert").len(), 3 * ROUNDS);
    (shortest, longest)
}

/// Client Backpressure 1 and 5.
#[tokio::test(start_paused = true)]
async fn pauses_after_overloads_grow_up_to_the_base_that_the_server_names() {
    let mut refusal = doc! { "ok": 0, "code": 2, "errmsg": "it failed", "errorLabels": OVERLOAD };
    let (shortest, longest) = bounds_of_refused_inserts(refusal.clone()).await;
    // Two pauses of up to 0.2 and 0.4 s, each rounded up to the next millisecond of the clock.
    assert!(shortest < 100 && (500..=605).contains(&longest), "{shortest} to {longest} ms");
    refusal.insert("baseBackoffMS", 50);
    let (shortest, longest) = bounds_of_refused_inserts(refusal).await;
    assert!(shortest < 50 && (250..=305).contains(&longest), "{shortest} to {longest} ms");
}

/// Client Backpressure 3 and 4.
#[tokio::test(start_paused = true)]
async fn overload_is_retried_as_often_as_the_options_say() {
    for (parameters, attempts) in [("", 3), ("maxAdaptiveRetries=1", 2), ("maxAdaptiveRetries=0", 1)] {
        let set = Cluster::replica_set(1, |_, _, _| failure(462, OVERLOAD)).await;
        let (client, told) = set.client(parameters).await;
        let error = find(&client).await.unwrap_err();
        assert!(OVERLOAD.iter().all(|label| error.has_label(label)), "{error}");
        assert_eq!(told.started("find").len(), attempts, "{parameters}");
    }
}

/// Retryable Reads 4, Retryable Writes 6.4.
#[tokio::test(start_paused = true)]
async fn overload_limits_the_retries_of_the_errors_after_it() {
    for (is_read, later) in [(true, &["RetryableError"][..]), (false, &["RetryableError", "RetryableWriteError"])] {
        let set = Cluster::replica_set(1, move |_, _, number| match number {
            0 => failure(91, OVERLOAD),
            _ => failure(91, later),
        })
        .await;
        let (client, told) = set.client("").await;
        let error = if is_read { find(&client).await } else { insert(&client).await }.unwrap_err();
        assert_eq!(error.server_error().unwrap().code, 91);
        assert_eq!(told.failed().len(), 3, "as many as after overloads alone");
    }
}

/// Retryable Reads 5, Retryable Writes 6.5, with an error that does not make the server unknown, because otherwise the
/// retry would have to wait for the server.
#[tokio::test(start_paused = true)]
async fn only_overload_has_a_back_off() {
    for (is_read, later) in [(true, &["RetryableError"][..]), (false, &["RetryableError", "RetryableWriteError"])] {
        let arrivals = Arc::<Mutex<Vec<Instant>>>::default();
        let noted = arrivals.clone();
        let set = Cluster::replica_set(1, move |_, _, number| {
            noted.lock().unwrap().push(Instant::now());
            if number % 3 == 0 { failure(6, OVERLOAD) } else { failure(6, later) }
        })
        .await;
        let (client, _) = set.client("").await;
        for _ in 0..50 {
            if is_read { find(&client).await } else { insert(&client).await }.unwrap_err();
        }
        let arrivals = std::mem::take(&mut *arrivals.lock().unwrap());
        assert_eq!(arrivals.len(), 150);
        let pauses = |from: usize| arrivals.chunks(3).map(move |of_one| of_one[from + 1] - of_one[from]);
        assert!(pauses(0).max().unwrap() > Duration::from_millis(100), "the overload has a back-off");
        assert!(pauses(0).max().unwrap() <= Duration::from_millis(202));
        assert_eq!(pauses(1).max().unwrap(), Duration::ZERO, "the next error has none");
    }
}

/// Tests 5 of Retryable Reads and 6.5 of Retryable Writes, without any overload: none of the twenty retries pauses.
#[tokio::test(start_paused = true)]
async fn retry_without_overload_has_no_back_off() {
    for (is_read, labels) in [(true, &["RetryableError"]), (false, &["RetryableWriteError"])] {
        let set = Cluster::replica_set(1, move |_, _, number| match number % 2 {
            0 => failure(6, labels),
            _ => ok(),
        })
        .await;
        let (client, told) = set.client("").await;
        let begun = Instant::now();
        for _ in 0..20 {
            if is_read { find(&client).await } else { insert(&client).await }.unwrap();
        }
        assert_eq!((told.failed().len(), begun.elapsed()), (20, Duration::ZERO), "{labels:?}");
    }
}
