//! How clients start and shut down, on servers that follow scripts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{Bson, Document, Timestamp, doc, rawdoc};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use wharf::client::{CommandEvent, ServerSelectionError, TransactionOptions};
use wharf::{Budget, Client, ClientError, Options, PoolEvent, ReadPreference};
use wharf_testbed::relay::Relay;
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cancelled::until;
use super::cut_off;
use super::repetitions::{client, count, primary, service, standalone, start};

/// Longer than any wait in these tests on the paused clock.
const LONG: Duration = Duration::from_secs(60);

fn mongos() -> Document {
    let mut hello = standalone();
    hello.insert("msg", "isdbgrid");
    hello
}

fn ok() -> Answer {
    Answer::Reply(doc! { "ok": 1 })
}

/// Starts a mongos that answers the `hello` on the first connection, and hangs on all other connections.
async fn monitored_only() -> ScriptedServer {
    let connections = AtomicUsize::new(0);
    let server = ScriptedServer::start(move || {
        let number = connections.fetch_add(1, Ordering::Relaxed);
        Box::new(move |_: &Document| if number == 0 { Answer::Reply(mongos()) } else { Answer::Hang })
    });
    server.await.unwrap()
}

/// Shuts a client down in a separate task.
fn shut_down(client: &Client) -> tokio::task::JoinHandle<bool> {
    let client = client.clone();
    tokio::spawn(async move { client.shutdown(LONG).await })
}

async fn is_closed(client: &Client) -> bool {
    let refused = client.run_command("admin", &rawdoc! { "ping": 1 }).await;
    matches!(refused, Err(ClientError::Selection(ServerSelectionError::Closed)))
}

/// Returns the identifiers of the sessions that a command ends.
fn ended(command: &Document) -> Vec<Bson> {
    command.get_array("endSessions").unwrap().clone()
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
    let warming = tokio::spawn(async move {
        warming.warm_up_with(5, |opened, wanted| seen.lock().unwrap().push((opened, wanted))).await
    });
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

#[tokio::test(start_paused = true)]
async fn warm_up_never_waits_for_connections_in_use() {
    let (server, _) = start(primary(), |_, _| ok()).await;
    let uri = format!("mongodb://{}/?directConnection=true&maxPoolSize=4", server.address());
    let client = Client::builder(Options::parse(&uri).unwrap()).budget(&Budget::new(3).unwrap()).build().unwrap();
    let held = client.check_out(&ReadPreference::default()).await.unwrap();
    let both = async { tokio::join!(client.warm_up(4), client.warm_up(4)) };
    let (one, other) = timeout(Duration::from_secs(60), both).await.expect("a warm-up hangs");
    one.and(other).unwrap();
    let pool = client.status().servers[0].pool.unwrap();
    assert_eq!((pool.total, pool.in_use, pool.available), (3, 1, 2), "the budget is used up");
    drop(held);
    client.warm_up_with(u32::MAX, |open, wanted| assert!(open <= 3 && wanted == 4)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_closes_idle_connections_while_a_server_hangs() {
    let hanging = || start(mongos(), |command, _| if name(command) == "endSessions" { Answer::Hang } else { ok() });
    let (first, second) = (hanging().await.0, hanging().await.0);
    let closed = Arc::new(AtomicUsize::new(0));
    let seen = closed.clone();
    let options = Options::parse(&format!("mongodb://{},{}", first.address(), second.address())).unwrap();
    let client = Client::builder(options)
        .subscriber(move |event: &PoolEvent| {
            if matches!(event, PoolEvent::ConnectionClosed { .. }) {
                seen.fetch_add(1, Ordering::SeqCst);
            }
        })
        .build()
        .unwrap();
    client.connect().await.unwrap();
    until("both servers are known", || client.status().servers.iter().all(|server| server.server_type == "Mongos"))
        .await;
    client.warm_up(3).await.unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    let begun = Instant::now();
    let shutting_down = shut_down(&client);
    until("all but one are closed", || closed.load(Ordering::SeqCst) == 5).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(is_closed(&client).await && !shutting_down.is_finished());
    assert!(!shutting_down.await.unwrap(), "the server has not answered");
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_a_moment_for_a_connection_to_end_sessions_on() {
    let (server, _) = start(primary(), |_, _| ok()).await;
    let uri = format!("mongodb://{}/?directConnection=true&maxPoolSize=1", server.address());
    let client = Client::from_uri(&uri).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    let held = client.check_out(&ReadPreference::default()).await.unwrap();
    let begun = Instant::now();
    let shutting_down = shut_down(&client);
    until("the client is closed", || client.status().servers.is_empty()).await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(is_closed(&client).await && !shutting_down.is_finished());
    drop(held);
    assert!(shutting_down.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn session_that_comes_back_during_the_shutdown_is_ended() {
    let slow = || Answer::After(Duration::from_secs(5), Box::new(ok()));
    let (server, arrived) =
        start(primary(), move |command, _| if name(command) == "ping" { slow() } else { ok() }).await;
    let client = Client::from_uri(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap();
    client.run_command("admin", &rawdoc! { "count": "c" }).await.unwrap();
    let in_flight: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.run_command("admin", &rawdoc! { "ping": 1 }).await })
        })
        .collect();
    let sent = |wanted: &str| {
        let arrived = arrived.lock().unwrap();
        arrived.iter().filter(|command| name(command) == wanted).cloned().collect::<Vec<_>>()
    };
    until("both commands have arrived", || sent("ping").len() == 2).await;
    // One of the commands uses the session of the first command, so no session is idle.
    assert!(client.shutdown(LONG).await);
    for running in in_flight {
        running.await.unwrap().unwrap();
    }
    let mut used: Vec<_> = sent("ping").iter().map(|command| command.get("lsid").unwrap().to_string()).collect();
    let mut over: Vec<_> = sent("endSessions").iter().flat_map(ended).map(|id| id.to_string()).collect();
    used.sort_unstable();
    over.sort_unstable();
    assert_eq!(used, over);
}

#[tokio::test(start_paused = true)]
async fn command_that_ends_sessions_has_the_cluster_time_and_events() {
    let time = doc! { "clusterTime": Timestamp { time: 7, increment: 1 } };
    let gossiped = time.clone();
    let (server, arrived) =
        start(primary(), move |_, _| Answer::Reply(doc! { "ok": 1, "$clusterTime": gossiped.clone() })).await;
    let events = Arc::<Mutex<Vec<CommandEvent>>>::default();
    let noted = events.clone();
    let options = Options::parse(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap();
    let client = Client::builder(options)
        .command_subscriber(move |event: &CommandEvent| noted.lock().unwrap().push(event.clone()))
        .build()
        .unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    assert!(client.shutdown(LONG).await);
    let last = arrived.lock().unwrap().last().unwrap().clone();
    assert_eq!((name(&last).as_str(), last.get_document("$clusterTime").unwrap()), ("endSessions", &time));
    assert_eq!(last.get_str("$db").unwrap(), "admin");
    let events = events.lock().unwrap();
    let [CommandEvent::Started(started), CommandEvent::Succeeded(succeeded)] = &events[2..] else {
        panic!("{events:?}")
    };
    assert_eq!(started.source, succeeded.source);
    assert_eq!(Document::try_from(started.command.clone()).unwrap(), last);
}

#[tokio::test(start_paused = true)]
async fn session_that_comes_back_while_others_are_ended_is_ended() {
    let after = |millis| Answer::After(Duration::from_millis(millis), Box::new(ok()));
    let (server, arrived) = start(primary(), move |command, _| match name(command).as_str() {
        "ping" => after(20),
        "endSessions" => after(50),
        _ => after(10),
    })
    .await;
    let client = Client::from_uri(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap();
    let command = rawdoc! { "count": "c" };
    let (first, second) = tokio::join!(client.run_command("admin", &command), client.run_command("admin", &command));
    first.and(second).unwrap();
    // One of the two sessions is idle.
    let ping = rawdoc! { "ping": 1 };
    let (running, is_closed) = tokio::join!(client.run_command("admin", &ping), client.shutdown(LONG));
    running.unwrap();
    assert!(is_closed);
    let arrived = arrived.lock().unwrap();
    let of = |wanted: &str| arrived.iter().filter(|command| name(command) == wanted).cloned().collect::<Vec<_>>();
    assert_eq!((of("ping").len(), of("endSessions").len()), (1, 2));
    let mut used: Vec<_> = of("count").iter().map(|command| command.get("lsid").unwrap().to_string()).collect();
    let mut over: Vec<_> = of("endSessions").iter().flat_map(ended).map(|id| id.to_string()).collect();
    used.sort_unstable();
    over.sort_unstable();
    assert_eq!(used, over);
}

#[tokio::test]
async fn sessions_are_ended_on_another_connection_if_the_idle_one_was_lost() {
    let (server, arrived) = start(service(), |_, _| ok()).await;
    let relay = Relay::start(server.address().parse().unwrap()).await.unwrap();
    let client = Client::from_uri(&format!("mongodb://{}/?loadBalanced=true", relay.address())).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    // Behind a load balancer, no monitor notices the loss.
    relay.partition().await;
    relay.heal();
    while TcpStream::connect(relay.address()).await.is_err() {
        tokio::task::yield_now().await;
    }
    assert!(client.shutdown(LONG).await);
    let arrived = arrived.lock().unwrap();
    let [ping, end_sessions] = &arrived[..] else { panic!("{arrived:?}") };
    assert_eq!(ended(end_sessions), [ping.get("lsid").unwrap().clone()]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_aborts_and_cursors_in_the_background() {
    let (server, arrived) = start(primary(), |command, _| cut_off::usual(command)).await;
    let client = Client::from_uri(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    cut_off::insert(&client, &mut session).await.unwrap();
    let cursor = client.find("test", "c", doc! {}).await.unwrap();
    drop((session, cursor));
    assert!(client.shutdown(LONG).await);
    assert_eq!((count(&arrived, "abortTransaction"), count(&arrived, "killCursors")), (1, 1));
    let last = arrived.lock().unwrap().last().unwrap().clone();
    assert_eq!(ended(&last).len(), 2, "their sessions are ended as well");
}

#[tokio::test(start_paused = true)]
async fn shutdown_without_a_server_does_not_wait_for_work_in_the_background() {
    let (server, _) = start(primary(), |command, _| cut_off::usual(command)).await;
    let client = client(&server, "directConnection=true");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    cut_off::insert(&client, &mut session).await.unwrap();
    drop(server);
    until("the server is not known", || client.status().servers[0].server_type == "Unknown").await;
    drop(session);
    let begun = Instant::now();
    assert!(client.shutdown(LONG).await);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}
