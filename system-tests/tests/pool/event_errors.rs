//! The errors that events carry.

use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use wharf::{
    Cause, CheckOutError, CheckOutFailedReason, Clear, Condition, Establish, EstablishError, Establishing, Pool,
    PoolEvent, PoolOptions, Stage,
};

use super::mock::poll_once;

/// Opens connections. A connection is just the fault that it reports, if any.
struct Faulty;

impl Establish for Faulty {
    type Connection = Option<&'static str>;

    async fn establish(&self, connecting: Establishing) -> Result<Self::Connection, EstablishError> {
        match connecting.connection_id() {
            2 => Err(EstablishError::overloaded(Stage::Connect, io::Error::other("the cable is cut"))),
            3 => panic!("the establisher was told to panic"),
            _ => Ok(None),
        }
    }

    fn condition(&self, connection: &mut Self::Connection) -> Condition {
        if connection.is_some() { Condition::Broken } else { Condition::Reusable }
    }

    fn broken_by(&self, connection: &Self::Connection) -> Option<Cause> {
        connection.filter(|fault| !fault.is_empty()).map(|fault| Arc::new(io::Error::other(fault)) as Cause)
    }
}

/// Returns a ready pool of one connection, and the events of its closed connections and failed check-outs.
fn pool() -> (Pool<Faulty>, Arc<Mutex<Vec<PoolEvent>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let kept = events.clone();
    let pool = Pool::builder("here:1", Faulty)
        .options(PoolOptions::default().max_pool_size(1))
        .subscriber(move |event: &PoolEvent| {
            if event.reason().is_some() {
                kept.lock().unwrap().push(event.clone());
            }
        })
        .build()
        .unwrap();
    pool.ready();
    (pool, events)
}

/// Returns the name, reason and error of each event since the last call.
fn take(events: &Mutex<Vec<PoolEvent>>) -> Vec<(&'static str, &'static str, Option<String>)> {
    let events = std::mem::take(&mut *events.lock().unwrap());
    let told =
        |event: &PoolEvent| (event.name(), event.reason().unwrap(), event.error().map(|error| error.to_string()));
    events.iter().map(told).collect()
}

#[tokio::test(start_paused = true)]
async fn events_carry_their_errors() {
    let (pool, events) = pool();
    *pool.check_out().await.unwrap() = Some("the reply made no sense");
    let fault = Some("the reply made no sense".to_owned());
    assert_eq!(take(&events), [("ConnectionClosed", "error", fault)]);

    // The second establishment fails.
    let error = pool.check_out().await.unwrap_err();
    let text = "connection 2 to here:1 could not be established: connecting: the cable is cut";
    let failed =
        |name| (name, if name == "ConnectionClosed" { "error" } else { "connectionError" }, Some(text.to_owned()));
    assert!(error.to_string().starts_with(text), "{error}");
    let seen = events.lock().unwrap().clone();
    assert_eq!(take(&events), [failed("ConnectionClosed"), failed("ConnectionCheckOutFailed")]);
    assert!(seen[0].error().unwrap().downcast_ref::<wharf::EstablishError>().is_some());
    assert!(seen[1].error().unwrap().downcast_ref::<CheckOutError>().is_some());

    // The third establishment panics. The fourth connection is broken and reports no fault.
    pool.check_out().await.unwrap_err();
    let given_up = "the task that was opening the connection ended early";
    assert_eq!(take(&events)[0], ("ConnectionClosed", "error", Some(given_up.to_owned())));
    *pool.check_out().await.unwrap() = Some("");
    let unknown = "the connection was left in a state in which it cannot be reused";
    assert_eq!(take(&events), [("ConnectionClosed", "error", Some(unknown.to_owned()))]);

    // The fifth connection is closed as stale, without any error.
    let connection = pool.check_out().await.unwrap();
    pool.clear(Clear::new()).unwrap();
    drop(connection);
    assert_eq!(take(&events), [("ConnectionClosed", "stale", None)]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_check_out_is_not_a_timeout() {
    let (pool, events) = pool();
    let connection = pool.check_out().await.unwrap();
    {
        let mut waits = pin!(pool.check_out());
        assert!(poll_once(waits.as_mut()).await.is_none(), "the check-out does not wait");
    }
    let seen = events.lock().unwrap().clone();
    assert_eq!(take(&events), [("ConnectionCheckOutFailed", "cancelled", None)]);
    assert!(matches!(seen[..], [PoolEvent::ConnectionCheckOutFailed { reason: CheckOutFailedReason::Cancelled, .. }]));
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_millis(5);
    pool.check_out_until(deadline).await.unwrap_err();
    assert_eq!(take(&events)[0].1, "timeout", "the caller's own deadline counts as a timeout");
    drop(connection);
}
