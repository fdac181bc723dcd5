//! The spans and warnings that `tracing` receives from pools. `operations.rs` has the tests for operations.
#![cfg(not(any(loom, shuttle)))]

mod collector;
mod operations;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bson::{RawDocumentBuf, doc};
use tracing::Level;
use wharf::{Clear, Establish, EstablishError, Establishing, Options, Pool, PoolOptions, Stage};
use wharf_testbed::certificates::{Certificates, Pem};
use wharf_testbed::mongod::{Mongod, MongodOptions};

use self::collector::Collector;

/// Opens dummy connections, or fails.
struct Plain {
    fails: bool,
}

impl Establish for Plain {
    type Connection = ();

    async fn establish(&self, _: Establishing) -> Result<(), EstablishError> {
        match self.fails {
            true => Err(EstablishError::permanent(Stage::Hello, io::Error::other("told\nto fail"))),
            false => Ok(()),
        }
    }
}

fn pool_of(most: u32, fails: bool, slow: Option<Duration>) -> Pool<Plain> {
    let options = PoolOptions::default().max_pool_size(most);
    let pool = Pool::builder("here:1", Plain { fails }).options(options).slow_check_out(slow).build().unwrap();
    pool.ready();
    pool
}

/// Polls a future once, and asserts that it is pending.
async fn begin(mut future: std::pin::Pin<&mut impl Future>) {
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn check_out_that_waits_has_a_span_and_a_hit_has_none() {
    let collector = Collector::of_pools(Level::DEBUG);
    let _guard = tracing::subscriber::set_default(collector.clone());
    let pool = pool_of(1, false, None);
    drop(pool.check_out().await.unwrap());
    assert_eq!(collector.names(), ["check_out", "establish"]);
    for name in ["check_out", "establish"] {
        assert_eq!(
            (collector.field(name, "address"), collector.field(name, "connection_id")),
            ("here:1".into(), "1".into())
        );
        assert_eq!(
            (collector.field(name, "error"), collector.span(collector.only(name), |span| span.parent)),
            (String::new(), None)
        );
    }
    assert_eq!(collector.field("establish", "in_background"), "false");
    let followed = collector.span(collector.only("establish"), |span| span.follows.clone());
    assert_eq!(followed, [collector.only("check_out")]);

    let held = pool.check_out().await.unwrap();
    assert_eq!(collector.names().len(), 2, "a hit has a span");
    {
        let mut waits = pin!(pool.check_out());
        begin(waits.as_mut()).await;
        drop(held);
        waits.await.unwrap();
    }
    assert_eq!(collector.names(), ["check_out", "establish", "check_out"]);
}

#[tokio::test]
async fn spans_say_why_there_is_no_connection() {
    let collector = Collector::of_pools(Level::DEBUG);
    let _guard = tracing::subscriber::set_default(collector.clone());
    pool_of(1, true, None).check_out().await.unwrap_err();
    assert_eq!(collector.names(), ["check_out", "establish"]);
    for name in ["check_out", "establish"] {
        let error = collector.field(name, "error");
        assert!(error.contains(r"told\nto fail"), "{error}");
    }
}

#[tokio::test]
async fn span_of_a_cancelled_check_out_ends() {
    let collector = Collector::of_pools(Level::DEBUG);
    let _guard = tracing::subscriber::set_default(collector.clone());
    let pool = pool_of(1, false, None);
    let _held = pool.check_out().await.unwrap();
    begin(pin!(pool.check_out())).await;
    assert_eq!(collector.names(), ["check_out", "establish", "check_out"]);
}

#[tokio::test]
async fn nothing_is_built_for_a_subscriber_of_higher_levels() {
    let collector = Collector::of_pools(Level::INFO);
    let _guard = tracing::subscriber::set_default(collector.clone());
    drop(pool_of(1, false, None).check_out().await.unwrap());
    assert!(collector.names().is_empty());
    assert!(collector.take_messages().is_empty());
}

#[tokio::test]
async fn slow_check_out_is_reported_with_the_pools_numbers() {
    let collector = Collector::of_pools(Level::WARN);
    let _guard = tracing::subscriber::set_default(collector.clone());
    // The check-out that opens the connection is slow and is reported. Slow check-outs within the next second are only
    // counted.
    let pool = pool_of(1, false, Some(Duration::ZERO));
    let held = pool.check_out().await.unwrap();
    let told = collector.take_messages();
    let expected = [
        ("level", "WARN"),
        ("message", "slow check-out"),
        ("address", "here:1"),
        ("outcome", "checked out"),
        ("threshold_ms", "0.0"),
        ("max", "1"),
        ("available", "0"),
        ("waiting", "0"),
        ("suppressed", "0"),
    ];
    for (field, value) in expected {
        assert_eq!(told[0].get(field).map(String::as_str), Some(value), "{field} of {told:?}");
    }
    assert!(told[0]["waited_ms"].parse::<f64>().unwrap() >= 0.0);
    assert!(told[0].contains_key("in_use") && told[0].contains_key("pending"));
    begin(pin!(pool.check_out())).await;
    assert!(collector.take_messages().is_empty(), "two warnings within a second");
    drop(held);
    drop(pool.check_out().await.unwrap());
    assert!(collector.take_messages().is_empty(), "a hit was reported");
}

#[tokio::test]
async fn slow_check_out_that_gets_nothing_is_reported_with_its_outcome() {
    let collector = Collector::of_pools(Level::WARN);
    let _guard = tracing::subscriber::set_default(collector.clone());
    let outcome = || {
        let mut told = collector.take_messages();
        assert_eq!(told.len(), 1, "{told:?}");
        told.remove(0).remove("outcome").unwrap()
    };

    pool_of(1, true, Some(Duration::ZERO)).check_out().await.unwrap_err();
    assert_eq!(outcome(), "failed");

    let pool = pool_of(1, false, Some(Duration::ZERO));
    begin(pin!(pool.check_out())).await;
    assert_eq!(outcome(), "cancelled");
    pool.clear(Clear::new()).unwrap();
    assert!(collector.take_messages().is_empty());
}

#[tokio::test]
async fn check_out_below_the_threshold_is_not_reported() {
    let collector = Collector::of_pools(Level::WARN);
    let _guard = tracing::subscriber::set_default(collector.clone());
    for threshold in [None, Some(Duration::from_secs(3600))] {
        drop(pool_of(1, false, threshold).check_out().await.unwrap());
    }
    assert!(collector.take_messages().is_empty());
}

#[tokio::test]
async fn establishment_has_a_span_for_each_stage() {
    let certificates = Certificates::create().unwrap();
    let tls = certificates.of_mongod(false);
    let mongod = Mongod::start(MongodOptions { auth: true, tls: Some(tls), ..MongodOptions::default() }).unwrap();
    let authority = certificates.file(Pem::Authority).display().to_string().replace('/', "%2F");
    let uri = |user: &str| format!("mongodb://{user}localhost:{}/?tls=true&tlsCAFile={authority}", mongod.port());
    // The localhost exception allows creating the user.
    let create = doc! { "createUser": "root", "pwd": "root", "roles": ["root"] };
    let mut direct = Options::parse(&uri("")).unwrap().endpoint().unwrap().connect().await.unwrap();
    direct.run_command("admin", &RawDocumentBuf::try_from(create).unwrap()).await.unwrap();

    let collector = Collector::of_pools(Level::DEBUG);
    let _guard = tracing::subscriber::set_default(collector.clone());
    let pool = Options::parse(&uri("root:root@")).unwrap().endpoint().unwrap().pool().build().unwrap();
    pool.ready();
    drop(pool.check_out().await.unwrap());
    let stages = ["resolve", "connect", "tls", "hello", "authenticate"];
    assert_eq!(collector.names(), [&["check_out", "establish"], &stages[..]].concat());
    let establishment = collector.only("establish");
    for stage in stages {
        assert_eq!(collector.span(collector.only(stage), |span| span.parent), Some(establishment), "{stage}");
    }
}
