//! Faults of a standalone server. Writes to it cannot be repeated, so writes in flight fail. Reads do not fail.

use std::time::Duration;

use wharf::client::{ServerType, TopologyEvent};
use wharf::{Client, Options};
use wharf_testbed::mongod::{Mongod, MongodOptions};
use wharf_testbed::relay::Relay;

use super::events::Events;
use super::load::{Kind, Load, Outcome};
use super::{blocking, within};

/// Returns the options of a client with fewer connections than the load has tasks. Writes are acknowledged only when a
/// kill cannot undo them.
fn options(address: std::net::SocketAddr) -> Options {
    Options::parse(&format!("mongodb://{address}/?journal=true&maxPoolSize=32")).unwrap()
}

fn client(options: Options) -> (Client, Events) {
    let events = Events::default();
    (Client::builder(options).topology_subscriber(events.clone()).build().unwrap(), events)
}

fn is_lost(event: &TopologyEvent) -> bool {
    matches!(event, TopologyEvent::ServerDescriptionChanged { new, .. } if new.server_type() == ServerType::Unknown)
}

/// Checks which operations may fail: each task loses at most the write in flight.
async fn check(outcome: &Outcome) {
    outcome.check_pools().await;
    outcome.check_writes().await;
    for done in outcome.failed() {
        assert_ne!(done.kind, Kind::Read, "a read failed: {:?}", done.error);
        let refusal = done.error.as_ref().and_then(|error| error.server_error());
        assert!(refusal.is_none(), "the server refused a write: {refusal:?}");
    }
    assert!(outcome.failed().len() <= 64, "{outcome}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_standalone_serves_again_after_its_restart() {
    within(Duration::from_secs(60), async {
        let mut server = blocking(|| Mongod::start(MongodOptions::default()).unwrap()).await;
        let (client, events) = client(options(server.address()));
        let load = Load::start(&client).await;
        load.progress(1000).await;
        let mark = events.mark();
        server.kill().unwrap();
        events.after(mark, is_lost).await;
        let _server = blocking(move || {
            server.restart().unwrap();
            server
        })
        .await;
        load.progress(1000).await;
        let outcome = load.stop().await;
        check(&outcome).await;
        outcome.print("kill -9 and restart of a standalone", "");
        assert!(outcome.longest_stall() < Duration::from_secs(20), "{outcome}");
        assert!(client.shutdown(Duration::from_secs(5)).await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn black_hole_is_noticed_and_healed() {
    within(Duration::from_secs(60), async {
        let server = blocking(|| Mongod::start(MongodOptions::default()).unwrap()).await;
        let relay = Relay::start(server.address()).await.unwrap();
        let options = options(relay.address());
        let (client, events) =
            client(options.connect_timeout(Duration::from_secs(1)).heartbeat_frequency(Duration::from_millis(500)));
        let load = Load::start(&client).await;
        load.progress(1000).await;
        let mark = events.mark();
        relay.black_hole();
        events.after(mark, is_lost).await;
        // The next check, on a separate connection, does not get through either.
        let mark = events.mark();
        events.after(mark, |event| event.name() == "ServerHeartbeatFailed").await;
        relay.heal();
        load.progress(1000).await;
        let outcome = load.stop().await;
        check(&outcome).await;
        outcome.print("black hole in front of a standalone", "");
        let stall = outcome.longest_stall();
        assert!(stall > Duration::from_secs(2), "nothing passes a black hole: {outcome}");
        assert!(stall < Duration::from_secs(15), "{outcome}");
        assert!(client.shutdown(Duration::from_secs(5)).await);
        drop(relay);
    })
    .await;
}
