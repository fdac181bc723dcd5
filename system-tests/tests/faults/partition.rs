//! A client that is cut off from the primary of a replica set while the members still reach each other: no operation
//! fails.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::rawdoc;
use wharf::client::{ServerType, TopologyEvent};
use wharf::{Client, Operation, Options, ReadPreference, ReadPreferenceMode};
use wharf_testbed::relay::Relay;
use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};
use wharf_testbed::socks::{SocksOptions, SocksProxy};

use super::load::Load;
use super::replica_set::{check, client, is_new_primary, primary, throughput};
use super::{blocking, turn, within};

/// The reads that can continue without a primary.
const READS: usize = 100;

/// How the client is cut off.
#[derive(Debug, Clone, Copy)]
enum Partition {
    /// Connections are closed and refused.
    Refusing,
    /// Connections stay open, but nothing gets through.
    Silent,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_from_the_primary_fails_no_operation() {
    let set = Arc::new(blocking(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()).await);
    let _turn = turn().await;
    within(Duration::from_secs(90), async {
        let member = primary(&set).await;
        // The client goes through a proxy, and from there through a relay to each member. The members connect to each
        // other directly.
        let mut relays = Vec::new();
        for &address in set.addresses() {
            relays.push(Relay::start(address).await.unwrap());
        }
        let detours = set.addresses().iter().copied().zip(relays.iter().map(Relay::address)).collect();
        let proxy = SocksProxy::start(SocksOptions { detours, ..SocksOptions::default() }).await.unwrap();
        let limits = "maxPoolSize=32&connectTimeoutMS=1000&heartbeatFrequencyMS=500";
        let uri = format!("{}&{limits}&proxyHost=127.0.0.1&proxyPort={}", set.uri(), proxy.port());
        let (client, events) = client(Options::parse(&uri).unwrap());
        let load = Load::start(&client).await;
        load.progress(1000).await;
        let usual = load.rate().await;

        let mut further = String::new();
        let mut longest = Duration::ZERO;
        for partition in [Partition::Refusing, Partition::Silent] {
            let (mark, cut) = (events.mark(), Instant::now());
            match partition {
                Partition::Refusing => relays[member].partition().await,
                Partition::Silent => relays[member].black_hole(),
            }
            events.after(mark, is_lost).await;
            let lost = Instant::now();
            read(&client).await;
            let reads = lost.elapsed();
            assert!(reads < Duration::from_secs(5), "{partition:?}: {READS} reads of secondaries took {reads:?}");
            // The next check does not get through either.
            let mark = events.mark();
            events.after(mark, |event| event.name() == "ServerHeartbeatFailed").await;
            longest = longest.max(cut.elapsed());
            let mark = events.mark();
            relays[member].heal();
            events.after(mark, is_new_primary).await;
            let back = load.regains(usual, Duration::from_secs(10)).await;
            let throughput = throughput(usual, back);
            further += &format!("; {partition:?}: lost after {:.2} s{throughput}", (lost - cut).as_secs_f64());
            assert!(back.is_some(), "{further}");
        }

        assert_eq!(primary(&set).await, member, "the members have reached each other");
        let outcome = load.stop().await;
        outcome.print("partition of the client from the primary", &further);
        check(&outcome).await;
        // Operations wait for the primary, but no longer than necessary.
        let stall = outcome.longest_stall();
        assert!(stall > longest / 2, "the client was cut off for {longest:?}: {outcome}");
        assert!(stall < longest + Duration::from_secs(5), "the client was cut off for {longest:?}: {outcome}");
        assert!(client.shutdown(Duration::from_secs(5)).await);
    })
    .await;
}

/// Returns whether the client has lost the primary.
fn is_lost(event: &TopologyEvent) -> bool {
    matches!(event, TopologyEvent::ServerDescriptionChanged { new, previous, .. }
        if new.server_type() == ServerType::Unknown && previous.server_type() == ServerType::RsPrimary)
}

/// Reads from the primary, or from a secondary if the primary is not available.
async fn read(client: &Client) {
    let preference = ReadPreference::new(ReadPreferenceMode::PrimaryPreferred);
    let command = rawdoc! { "find": "counters" };
    for _ in 0..READS {
        client.run(Operation::read("faults", &command).read_preference(&preference)).await.unwrap();
    }
}
