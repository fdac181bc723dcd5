//! The prose tests of CRUD and of SOCKS5 proxies.

use std::collections::HashMap;
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use wharf::client::{CommandEvent, WriteConcernError};
use wharf::{Client, ClientError, Operation, Options, ProxyOptions};
use wharf_testbed::scripted::{Answer, name};
use wharf_testbed::socks::{SocksOptions, SocksProxy};

use super::cluster::{Cluster, Told, ok};

/// CRUD 1.
#[tokio::test(start_paused = true)]
async fn unmet_write_concern_keeps_its_details() {
    let details = doc! { "writeConcern": { "w": 2, "wtimeout": 0, "provenance": "clientSupplied" } };
    let sent = details.clone();
    let cluster = Cluster::replica_set(1, move |_, command, _| match &*name(command) {
        "insert" => Answer::Reply(doc! {
            "ok": 1, "n": 1,
            "writeConcernError": {
                "code": 100, "codeName": "UnsatisfiableWriteConcern", "errmsg": "Not enough data-bearing nodes",
                "errInfo": sent.clone(),
            },
        }),
        _ => ok(),
    })
    .await;
    let (client, _) = cluster.client("").await;
    let details_of = |error: &WriteConcernError| {
        let details = error.reply.get_document("writeConcernError").unwrap().get_document("errInfo").unwrap();
        Document::try_from(details).unwrap()
    };
    let failed = client.insert("test", "c", [rawdoc! { "_id": 1 }]).await.unwrap_err();
    let ClientError::Write(failure) = &failed else { panic!("{failed}") };
    let concern = &failure.write_concern_errors[0];
    assert_eq!(concern.code, 100);
    assert_eq!(details_of(concern), details);
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }] };
    let failed = client.run(Operation::write("test", &insert)).await.unwrap_err();
    assert_eq!(details_of(failed.write_concern_error().unwrap()), details);
}

/// CRUD 2.
#[tokio::test(start_paused = true)]
async fn failed_write_keeps_its_details() {
    let details = doc! { "failingDocumentId": 1, "details": { "operatorName": "$type" } };
    let sent = details.clone();
    let cluster = Cluster::replica_set(1, move |_, command, _| match &*name(command) {
        "insert" => Answer::Reply(doc! {
            "ok": 1, "n": 0,
            "writeErrors": [{
                "index": 0, "code": 121, "errmsg": "Document failed validation", "errInfo": sent.clone(),
            }],
        }),
        _ => ok(),
    })
    .await;
    let (client, told) = cluster.client("").await;
    let failed = client.insert("test", "c", [rawdoc! { "_id": 1, "x": 1 }]).await.unwrap_err();
    let ClientError::Write(failure) = &failed else { panic!("{failed}") };
    let [error] = &failure.errors[..] else { panic!("{failed}") };
    assert_eq!(error.error.code, 121);
    assert_eq!(Document::try_from(error.error.reply.get_document("errInfo").unwrap()).unwrap(), details);
    // The command itself succeeded.
    let reply = Document::try_from(told.last_reply()).unwrap();
    let in_event = reply.get_array("writeErrors").unwrap()[0].as_document().unwrap();
    assert_eq!(in_event.get_document("errInfo").unwrap(), &details);
}

/// CRUD 16.
#[tokio::test(start_paused = true)]
async fn generated_identifier_is_the_first_field() {
    let cluster = Cluster::replica_set(1, |_, _, _| ok()).await;
    let (client, told) = cluster.client("").await;
    client.insert("test", "c", [rawdoc! { "a": 1, "b": 2 }]).await.unwrap();
    client.write("test", "c").insert(rawdoc! { "a": 1 }).await.unwrap();
    let inserts = told.started("insert");
    assert_eq!(inserts.len(), 2);
    for insert in inserts {
        let document = insert.get_array("documents").unwrap()[0].as_document().unwrap();
        assert_eq!(document.keys().next().unwrap(), "_id", "{insert}");
    }
}

/// The servers named in a connection string of the SOCKS5 prose test.
#[derive(Clone, Copy, Debug)]
enum At {
    /// A name that only the proxy resolves.
    Mapped,
    /// All members of the replica set.
    ReplicaSet,
}

/// The prose test of SOCKS5 Support, with connection strings and with options that are set in code.
#[tokio::test(start_paused = true)]
async fn client_reaches_its_servers_through_a_proxy_if_it_may_log_in() {
    let set = Cluster::replica_set(3, |_, _, _| ok()).await;
    let proxy = async |login: Option<(&str, &str)>| {
        let login = login.map(|(user, password)| (user.to_owned(), password.to_owned()));
        let names = HashMap::from([("localhost:12345".to_owned(), set.servers[0].address().parse().unwrap())]);
        SocksProxy::start(SocksOptions { login, names, ..SocksOptions::default() }).await.unwrap()
    };
    let (closed, open) = (proxy(Some(("username", "p4ssw0rd"))).await, proxy(None).await);
    let (right, wrong) = (Some(("username", "p4ssw0rd")), Some(("nonexistentuser", "badauth")));
    let hosts = set.servers.iter().map(|server| server.address()).collect::<Vec<_>>().join(",");
    for (at, proxy, login, succeeds) in [
        (At::Mapped, &closed, None, false),
        (At::Mapped, &open, None, true),
        (At::ReplicaSet, &closed, None, false),
        (At::ReplicaSet, &open, None, true),
        (At::Mapped, &closed, wrong, false),
        (At::Mapped, &open, wrong, true),
        (At::ReplicaSet, &open, wrong, true),
        (At::Mapped, &closed, right, true),
        (At::ReplicaSet, &closed, right, true),
    ] {
        let base = match at {
            At::Mapped => "mongodb://localhost:12345/?directConnection=true".to_owned(),
            At::ReplicaSet => format!("mongodb://{hosts}/?replicaSet=rs"),
        };
        let of_login = login.map(|(user, password)| format!("&proxyUsername={user}&proxyPassword={password}"));
        let uri = format!("{base}&proxyHost=127.0.0.1&proxyPort={}{}", proxy.port(), of_login.unwrap_or_default());
        let mut in_code = ProxyOptions::new("127.0.0.1").port(proxy.port());
        if let Some((user, password)) = login {
            in_code = in_code.login(user, password);
        }
        for options in [Options::parse(&uri).unwrap(), Options::parse(&base).unwrap().proxy(in_code)] {
            let told = Told::default();
            let events = told.clone();
            let builder = Client::builder(options.server_selection_timeout(Duration::from_secs(2)));
            let client = builder
                .command_subscriber(move |event: &CommandEvent| events.0.lock().unwrap().push(event.clone()))
                .build()
                .unwrap();
            let outcome = client.run_command("admin", &rawdoc! { "hello": 1 }).await;
            assert_eq!(outcome.is_ok(), succeeds, "{at:?} {login:?}: {outcome:?}");
            // The events name the server rather than the proxy.
            let expected = match at {
                _ if !succeeds => Vec::new(),
                At::Mapped => vec!["localhost:12345".to_owned()],
                At::ReplicaSet => vec![set.servers[0].address()],
            };
            assert_eq!(told.succeeded(), expected, "{at:?} {login:?}");
        }
    }
}
