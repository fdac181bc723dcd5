//! The specification's prose tests ("Prose Tests" in the README of its tests), in order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wharf::{
    CheckOutFailedReason, Endpoint, Establish, EstablishError, Establishing, OptionValue, Options, Pool, PoolEvent,
    PoolOptions, Stage,
};

/// The pool options, each with a distinct value other than its default.
const GIVEN: [(&str, u64); 5] = [
    ("maxIdleTimeMS", 4_000),
    ("minPoolSize", 3),
    ("maxPoolSize", 17),
    ("maxConnecting", 5),
    ("waitQueueTimeoutMS", 600),
];

fn in_code() -> PoolOptions {
    PoolOptions::default()
        .max_pool_size(17)
        .min_pool_size(3)
        .max_idle_time(Duration::from_millis(4_000))
        .max_connecting(5)
        .wait_queue_timeout(Duration::from_millis(600))
}

/// Builds the pools of a deployment, and returns the options in each pool's `PoolCreated` event.
async fn options_of_created_pools(options: &Options) -> HashMap<String, Vec<(&'static str, OptionValue)>> {
    let created = Arc::new(Mutex::new(HashMap::new()));
    let build = |endpoint: Endpoint| {
        let created = created.clone();
        let note = move |event: &PoolEvent| {
            if let PoolEvent::PoolCreated { address, options, .. } = event {
                created.lock().unwrap().insert(address.to_string(), options.non_default());
            }
        };
        endpoint.pool().subscriber(note).build().expect("valid options")
    };
    let pools: Vec<Pool<Endpoint>> = options.endpoints().expect("valid options").into_iter().map(build).collect();
    for pool in pools {
        pool.close();
        pool.closed().await;
    }
    let created = created.lock().unwrap();
    created.clone()
}

fn given() -> Vec<(&'static str, OptionValue)> {
    GIVEN.map(|(name, value)| (name, OptionValue::Number(value))).to_vec()
}

const ADDRESSES: [&str; 3] = ["a.example:27017", "b.example:27018", "c.example:27019"];

#[tokio::test]
async fn prose_1_all_pool_options_are_specified_for_the_deployment() {
    let options = Options::new([ADDRESSES[0]]).unwrap().pool(in_code());
    let created = options_of_created_pools(&options).await;
    assert_eq!(created, HashMap::from([(ADDRESSES[0].to_owned(), given())]));
}

#[tokio::test]
async fn prose_2_all_pools_of_a_deployment_have_the_same_options() {
    let options = Options::new(ADDRESSES).unwrap().pool(in_code());
    let created = options_of_created_pools(&options).await;
    assert_eq!(created, ADDRESSES.map(|address| (address.to_owned(), given())).into());
}

#[tokio::test]
async fn prose_3_a_connection_string_specifies_all_pool_options() {
    let pairs = GIVEN.map(|(name, value)| format!("{name}={value}")).join("&");
    let options = Options::from_uri(&format!("mongodb://{}/?{pairs}", ADDRESSES.join(","))).await.unwrap();
    assert_eq!(options.pool, in_code());
    let created = options_of_created_pools(&options).await;
    assert_eq!(created, ADDRESSES.map(|address| (address.to_owned(), given())).into());
    // Options that are not given have their default values.
    let default = Options::from_uri("mongodb://a.example").await.unwrap();
    assert_eq!(default.pool, PoolOptions::default());
}

struct Unreachable;

impl Establish for Unreachable {
    type Connection = ();

    async fn establish(&self, _: Establishing) -> Result<(), EstablishError> {
        Err(EstablishError::network(Stage::Connect, std::io::Error::other("the server is away")))
    }
}

/// A closure subscribes (test 4), and receives the reason a check-out failed to establish a connection (test 5).
#[tokio::test]
async fn prose_4_and_5_subscriber_gets_the_reason_of_a_failed_check_out() {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let pool = Pool::builder("mock:27017", Unreachable).build().unwrap();
    pool.subscribe({
        let reasons = reasons.clone();
        move |event: &PoolEvent| {
            if let PoolEvent::ConnectionCheckOutFailed { reason, .. } = event {
                reasons.lock().unwrap().push(*reason);
            }
        }
    });
    pool.ready();
    pool.check_out().await.expect_err("no connection can be opened");
    assert_eq!(*reasons.lock().unwrap(), [CheckOutFailedReason::ConnectionError]);
}
