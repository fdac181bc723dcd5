//! How many sockets a client has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::rawdoc;
use wharf::{Client, Options, ReadPreference, ReadPreferenceMode};
use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};

use super::load::Load;
use super::{blocking, turn, within};

/// Returns how many connections with this application name each member has, by its `currentOp`.
async fn sockets(set: &Arc<ReplicaSet>, app_name: &'static str) -> [usize; 3] {
    let set = set.clone();
    let command = rawdoc! {
        "aggregate": 1,
        "pipeline": [
            { "$currentOp": { "allUsers": true, "idleConnections": true } },
            { "$match": { "appName": app_name } },
        ],
        "cursor": { "batchSize": 1000 },
        "$readPreference": { "mode": "secondaryPreferred" },
    };
    let of = move |member| {
        let reply = set.command(member, "admin", &command).unwrap();
        reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().into_iter().count()
    };
    blocking(move || [0, 1, 2].map(of)).await
}

/// Asks the members until the counts are these.
async fn reaches(set: &Arc<ReplicaSet>, app_name: &'static str, expected: [usize; 3]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let counted = sockets(set, app_name).await;
        if counted == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{app_name}: {counted:?} instead of {expected:?} sockets");
    }
}

fn each(primary: usize, of_primary: usize, of_others: usize) -> [usize; 3] {
    [0, 1, 2].map(|member| if member == primary { of_primary } else { of_others })
}

fn client(set: &ReplicaSet, app_name: &str, options: &str) -> Client {
    Client::new(Options::parse(&format!("{}&appName={app_name}&{options}", set.uri())).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_are_as_many_as_promised() {
    let _turn = turn().await;
    within(Duration::from_secs(90), async {
        let set = Arc::new(blocking(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()).await);
        let of_primary = set.clone();
        let primary = blocking(move || of_primary.primary().unwrap().unwrap()).await;

        // Two monitor each member, and only the primary is used: maxPoolSize + 6 at most.
        let used = client(&set, "used", "maxPoolSize=10&heartbeatFrequencyMS=500");
        used.connect().await.unwrap();
        let load = Load::start(&used).await;
        load.progress(500).await;
        reaches(&set, "used", each(primary, 12, 2)).await;
        for _ in 0..5 {
            load.progress(200).await;
            let counted = sockets(&set, "used").await;
            assert!(counted.iter().sum::<usize>() <= 16, "{counted:?}");
        }
        let outcome = load.stop().await;
        outcome.check_pools().await;
        outcome.check_writes().await;
        assert!(outcome.failed().is_empty(), "{outcome}");
        outcome.print("sockets of 64 tasks on 10 connections", "");
        assert!(used.shutdown(Duration::from_secs(5)).await);
        reaches(&set, "used", [0; 3]).await;

        // Each pool has its minimum, also that of a member that no operation uses.
        let kept = client(&set, "kept", "minPoolSize=3&heartbeatFrequencyMS=500");
        kept.connect().await.unwrap();
        reaches(&set, "kept", [5; 3]).await;

        // Idle sockets are closed at once, those in use as they come back.
        let held = kept.check_out(&ReadPreference::new(ReadPreferenceMode::Primary)).await.unwrap();
        assert!(!kept.shutdown(Duration::ZERO).await, "a connection is in use");
        reaches(&set, "kept", each(primary, 1, 0)).await;
        drop(held);
        assert!(kept.shutdown(Duration::from_secs(5)).await);
        reaches(&set, "kept", [0; 3]).await;
    })
    .await;
}
