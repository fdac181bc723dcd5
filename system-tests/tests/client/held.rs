//! Commands on a connection that the application holds, on a server that follows a script.

use std::sync::{Arc, Mutex};

use bson::{doc, rawdoc};
use wharf::client::CommandEvent;
use wharf::{Client, Command, CommandError, Options, ReadPreference};
use wharf_testbed::scripted::{Answer, name};

use super::repetitions::{client, primary, start};

#[tokio::test(start_paused = true)]
async fn lost_connection_that_was_held_makes_its_server_unknown_once() {
    let (server, _) = start(primary(), |_, _| Answer::Close).await;
    let client = client(&server, "directConnection=true");
    let preference = ReadPreference::default();
    let mut first = client.check_out(&preference).await.unwrap();
    let mut second = client.check_out(&preference).await.unwrap();
    let ping = rawdoc! { "ping": 1 };
    let generation = || client.status().servers[0].pool.as_ref().unwrap().generation;
    let error = client.run_on(&mut first, Command::new("admin", &ping)).await.unwrap_err();
    assert!(matches!(error.command_error(), Some(CommandError::Network { .. })), "{error}");
    assert_eq!((client.status().servers[0].server_type, generation()), ("Unknown", 1));
    client.connect().await.unwrap();
    client.run_on(&mut second, Command::new("admin", &ping)).await.unwrap_err();
    assert_eq!((client.status().servers[0].server_type, generation()), ("RSPrimary", 1), "a stale connection");
}

#[tokio::test(start_paused = true)]
async fn command_on_a_held_connection_has_events_and_the_cluster_time() {
    let time = doc! { "clusterTime": bson::Timestamp { time: 7, increment: 2 } };
    let of_server = time.clone();
    let (server, arrived) =
        start(primary(), move |_, _| Answer::Reply(doc! { "ok": 1, "$clusterTime": of_server.clone() })).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let of_client = told.clone();
    let options = Options::parse(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap();
    let client = Client::builder(options)
        .command_subscriber(move |event: &CommandEvent| {
            let has_succeeded = matches!(event, CommandEvent::Succeeded(_));
            of_client.lock().unwrap().push((event.source().command_name.to_string(), has_succeeded));
        })
        .build()
        .unwrap();
    let mut held = client.check_out(&ReadPreference::default()).await.unwrap();
    let (ping, count) = (rawdoc! { "ping": 1 }, rawdoc! { "count": "c" });
    client.run_on(&mut held, Command::new("admin", &ping)).await.unwrap();
    client.run_on(&mut held, Command::new("test", &count)).await.unwrap();
    let arrived = arrived.lock().unwrap();
    let sent = arrived.iter().find(|command| name(command) == "count").unwrap();
    assert_eq!(sent.get_document("$clusterTime").ok(), Some(&time), "{sent}");
    let expected = [("ping", false), ("ping", true), ("count", false), ("count", true)];
    assert_eq!(*told.lock().unwrap(), expected.map(|(name, has_succeeded)| (name.to_owned(), has_succeeded)));
}
