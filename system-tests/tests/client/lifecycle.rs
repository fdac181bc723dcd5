//! The beginning and the end of clients, on servers that follow scripts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bson::{Document, doc};
use wharf::Client;
use wharf_testbed::scripted::{Answer, ScriptedServer};

use super::cancelled::until;
use super::repetitions::{standalone, start};

fn mongos() -> Document {
    let mut hello = standalone();
    hello.insert("msg", "isdbgrid");
    hello
}

fn ok() -> Answer {
    Answer::Reply(doc! { "ok": 1 })
}

/// A mongos that answers the first connection's `hello`, and hangs on all others.
async fn monitored_only() -> ScriptedServer {
    let connections = AtomicUsize::new(0);
    let server = ScriptedServer::start(move || {
        let number = connections.fetch_add(1, Ordering::Relaxed);
        Box::new(move |_: &Document| if number == 0 { Answer::Reply(mongos()) } else { Answer::Hang })
    });
    server.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn warm_up_of_one_server_does_not_wait_for_another() {
    let (quick, _) = start(mongos(), |_, _| ok()).await;
    let slow = monitored_only().await;
    let parameters = "serverMonitoringMode=poll&maxPoolSize=2&connectTimeoutMS=60000";
    let client = Client::from_uri(&format!("mongodb://{},{}/?{parameters}", quick.address(), slow.address())).unwrap();
    client.connect().await.unwrap();
    let servers = || client.status().servers;
    until("both servers are known", || servers().iter().all(|server| server.server_type == "Mongos")).await;
    let (warming, progress) = (client.clone(), Arc::<Mutex<Vec<(u32, u32)>>>::default());
    let seen = progress.clone();
    let warming =
        tokio::spawn(
            async move { warming.warm_up(5, |opened, wanted| seen.lock().unwrap().push((opened, wanted))).await },
        );
    until("the connections of the quick server are there, and free", || {
        let servers = servers();
        let quick = servers.iter().find(|server| server.address.to_string() == quick.address()).unwrap();
        let pool = quick.pool.as_ref().unwrap();
        (pool.total, pool.available) == (2, 2)
    })
    .await;
    assert!(!warming.is_finished());
    assert_eq!(*progress.lock().unwrap(), [(0, 4), (1, 4), (2, 4)]);
    warming.await.unwrap().unwrap_err();
}
