//! How many sockets a client opens.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{doc, rawdoc};
use wharf::{BackgroundInterval, Client, Connection, Endpoint, Options, ReadPreference, ReadPreferenceMode};
use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};

use super::load::Load;
use super::{blocking, within};

/// Returns how many connections with this application name each member reports in its `currentOp`.
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

/// Polls the members until the counts match.
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
    within(Duration::from_secs(90), async {
        let set = Arc::new(blocking(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()).await);
        let of_primary = set.clone();
        let primary = blocking(move || of_primary.primary().unwrap().unwrap()).await;

        // Two connections monitor each member, and only the primary is used. So there are at most maxPoolSize + 6
        // sockets.
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

        // Each pool holds its minimum, even for a member that no operation uses.
        let kept = client(&set, "kept", "minPoolSize=3&heartbeatFrequencyMS=500");
        kept.connect().await.unwrap();
        reaches(&set, "kept", [5; 3]).await;

        // Idle sockets are closed immediately, and sockets in use are closed when their connections are checked in.
        let held = kept.check_out(&ReadPreference::new(ReadPreferenceMode::Primary)).await.unwrap();
        assert!(!kept.shutdown(Duration::ZERO).await, "a connection is in use");
        reaches(&set, "kept", each(primary, 1, 0)).await;
        drop(held);
        assert!(kept.shutdown(Duration::from_secs(5)).await);
        reaches(&set, "kept", [0; 3]).await;
    })
    .await;
}

/// The default for `maxPoolSize`.
const MAX_POOL_SIZE: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_with_the_defaults_are_as_many_as_promised() {
    within(Duration::from_secs(90), async {
        let tagged = (0..3).map(|member| doc! { "tags": { "member": member.to_string() } }).collect();
        let options = ReplicaSetOptions { member_fields: tagged, ..ReplicaSetOptions::default() };
        let set = Arc::new(blocking(|| ReplicaSet::start(options).unwrap()).await);
        let of_primary = set.clone();
        let primary = blocking(move || of_primary.primary().unwrap().unwrap()).await;
        let client = Client::new(Options::parse(&format!("{}&appName=defaults", set.uri())).unwrap()).unwrap();

        // While only the primary is used, there are maxPoolSize + 6 sockets.
        let on_primary = ReadPreference::new(ReadPreferenceMode::Primary);
        let mut held = vec![hold_all(&client, &on_primary).await];
        reaches(&set, "defaults", each(primary, MAX_POOL_SIZE + 2, 2)).await;
        one_more_waits(&client, &on_primary, &mut held[0]).await;
        assert_eq!(sockets(&set, "defaults").await, each(primary, MAX_POOL_SIZE + 2, 2));

        // Once all members are used, there are (maxPoolSize + 2) x 3 sockets.
        for member in (0..3).filter(|&member| member != primary) {
            let tags = [("member", member.to_string())];
            let on_member = ReadPreference::new(ReadPreferenceMode::Secondary).tag_set(tags);
            held.push(hold_all(&client, &on_member).await);
            one_more_waits(&client, &on_member, held.last_mut().unwrap()).await;
        }
        reaches(&set, "defaults", [MAX_POOL_SIZE + 2; 3]).await;
        drop(held);
        assert_eq!(sockets(&set, "defaults").await, [MAX_POOL_SIZE + 2; 3]);
        assert!(client.shutdown(Duration::from_secs(5)).await);
        reaches(&set, "defaults", [0; 3]).await;
    })
    .await;
}

/// Checks out as many connections as a pool may hold.
async fn hold_all(client: &Client, preference: &ReadPreference) -> Vec<Connection<Endpoint>> {
    let mut held = Vec::new();
    for _ in 0..MAX_POOL_SIZE {
        held.push(client.check_out(preference).await.unwrap());
    }
    held
}

/// Checks that, if all of a pool's connections are held, another check-out waits until a connection is checked in.
async fn one_more_waits(client: &Client, preference: &ReadPreference, held: &mut Vec<Connection<Endpoint>>) {
    let is_there = || client.status().servers.iter().any(|server| server.pool.is_some_and(|pool| pool.waiting == 1));
    let waiter = async {
        while !is_there() {
            tokio::task::yield_now().await;
        }
    };
    let mut one_more = pin!(client.check_out(preference));
    tokio::select! {
        _ = &mut one_more => panic!("more connections than maxPoolSize"),
        () = waiter => {}
    }
    held.pop();
    held.push(one_more.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_sockets_are_closed_without_traffic() {
    within(Duration::from_secs(60), async {
        let set = Arc::new(blocking(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()).await);
        let uri = format!("{}&appName=idle&heartbeatFrequencyMS=500&maxIdleTimeMS=500", set.uri());
        let mut options = Options::parse(&uri).unwrap();
        options.pool = options.pool.background_interval(BackgroundInterval::Every(Duration::from_millis(100)));
        let client = Client::new(options).unwrap();
        client.connect().await.unwrap();
        reaches(&set, "idle", [2; 3]).await;
        let mut opened = (0, 0);
        client.warm_up_with(5, |open, wanted| opened = (open, wanted)).await.unwrap();
        assert_eq!(opened, (15, 15));
        // The two connections of each monitor stay open.
        reaches(&set, "idle", [2; 3]).await;
        assert!(client.shutdown(Duration::from_secs(5)).await);
        reaches(&set, "idle", [0; 3]).await;
    })
    .await;
}
