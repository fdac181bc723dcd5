//! A client whose servers' pools share a budget.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::{doc, rawdoc};
use tokio::task::JoinSet;
use wharf::{Budget, Client, Options, PoolEvent};
use wharf_testbed::scripted::{Answer, ScriptedServer};

use super::cluster::Cluster;

/// The number of open connections in all pools, counted from events, and its maximum.
static OPEN: AtomicU32 = AtomicU32::new(0);
static MOST: AtomicU32 = AtomicU32::new(0);

fn count(event: &PoolEvent) {
    match event {
        PoolEvent::ConnectionCreated { .. } => {
            MOST.fetch_max(OPEN.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        }
        PoolEvent::ConnectionClosed { .. } => {
            OPEN.fetch_sub(1, Ordering::SeqCst);
        }
        _ => {}
    }
}

#[tokio::test]
async fn pools_of_all_servers_of_a_client_share_its_budget() {
    let answer = |_, _: &_, _| Answer::After(Duration::from_millis(2), Box::new(Answer::Reply(doc! { "ok": 1 })));
    let cluster = Cluster::of_mongos(3, answer).await;
    let hosts: Vec<_> = cluster.servers.iter().map(ScriptedServer::address).collect();
    let options = Options::parse(&format!("mongodb://{}/?localThresholdMS=60000", hosts.join(","))).unwrap();
    let budget = Budget::new(2).unwrap();
    let client = Client::builder(options).budget(&budget).subscriber(count).build().unwrap();
    client.connect().await.unwrap();
    let mut users = JoinSet::new();
    for _ in 0..12 {
        let client = client.clone();
        users.spawn(async move {
            for _ in 0..10 {
                client.run_command("test", &rawdoc! { "ping": 1 }).await.unwrap();
            }
        });
    }
    while let Some(user) = users.join_next().await {
        user.unwrap();
    }
    assert_eq!(cluster.arrived("ping").len(), 120);
    let used = |server| cluster.arrived("ping").iter().filter(|(of, _)| *of == server).count();
    assert!((0..3).all(|server| used(server) > 0), "{:?}", [0, 1, 2].map(used));
    assert_eq!((MOST.load(Ordering::SeqCst), budget.status().waiting_pools), (2, 0));
    let total: u32 = client.status().servers.iter().filter_map(|server| server.pool).map(|pool| pool.total).sum();
    assert_eq!(budget.status().connections, total);
    drop(client);
}
