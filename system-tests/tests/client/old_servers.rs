//! How the client adapts to servers of earlier versions, and to servers without sessions.

use bson::{Document, doc, rawdoc};
use wharf::client::{IndexModel, TransactionOptions, WatchTarget};
use wharf::{Acknowledgement, Client, Operation, ReadPreference, ReadPreferenceMode, WriteConcern};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

/// Starts the members of a replica set, the primary first, each with its wire version.
async fn members<const N: usize>(max_wire_versions: [i32; N]) -> ([ScriptedServer; N], Client) {
    let addresses = std::sync::Arc::new(std::sync::OnceLock::<Vec<String>>::new());
    let mut servers = Vec::new();
    for (index, version) in max_wire_versions.into_iter().enumerate() {
        let addresses = addresses.clone();
        let script = move |command: &Document| {
            Answer::Reply(match name(command).as_str() {
                "hello" | "isMaster" | "ismaster" => doc! {
                    "ok": 1, "helloOk": true, "minWireVersion": 0, "maxWireVersion": version, "setName": "rs",
                    "isWritablePrimary": index == 0, "secondary": index != 0, "logicalSessionTimeoutMinutes": 30,
                    "hosts": addresses.get().expect("all servers are there").clone(),
                },
                "find" => doc! { "ok": 1, "cursor": { "id": 5_i64, "ns": "test.c", "firstBatch": [] } },
                "getMore" => doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "test.c", "nextBatch": [] } },
                "aggregate" => doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "test.c", "firstBatch": [] } },
                _ => doc! { "ok": 1 },
            })
        };
        servers.push(ScriptedServer::start(move || Box::new(script.clone())).await.unwrap());
    }
    addresses.set(servers.iter().map(ScriptedServer::address).collect()).unwrap();
    let uri = format!("mongodb://{}/?replicaSet=rs", addresses.get().unwrap().join(","));
    let Ok(servers) = servers.try_into() else { unreachable!("there is one server for each version") };
    (servers, Client::from_uri(&uri).unwrap())
}

fn named(server: &ScriptedServer, of: &str) -> Vec<Document> {
    server.commands().into_iter().filter(|command| name(command) == of).collect()
}

/// Waits until all servers are known.
async fn all_known(client: &Client) {
    client.connect().await.unwrap();
    while !client.status().servers.iter().all(|server| server.server_type.starts_with("RS")) {
        tokio::task::yield_now().await;
    }
}

/// CRUD, "getMore": only MongoDB 4.4 and later receive the comment.
#[tokio::test]
async fn comment_goes_with_the_further_batches_from_wire_version_9_on() {
    for (version, is_sent) in [(8, false), (9, true)] {
        let ([server], client) = members([version]).await;
        let find = rawdoc! { "find": "c", "comment": "why" };
        let mut cursor = client.cursor(Operation::read("test", &find)).await.unwrap();
        assert!(cursor.next().await.unwrap().is_none());
        assert_eq!(named(&server, "find")[0].get_str("comment").ok(), Some("why"));
        let more = named(&server, "getMore");
        assert_eq!(more.len(), 1);
        assert_eq!(more[0].contains_key("comment"), is_sent, "wire version {version}: {more:?}");
    }
}

/// CRUD, "Read preferences and server selection", for aggregations that write their results.
#[tokio::test]
async fn aggregation_that_writes_goes_to_the_primary_while_a_server_is_older_than_wire_version_13() {
    let secondary = ReadPreference::new(ReadPreferenceMode::Secondary);
    let out = rawdoc! { "aggregate": "c", "pipeline": [{ "$out": "d" }], "cursor": {} };
    let reads = rawdoc! { "aggregate": "c", "pipeline": [], "cursor": {} };
    for (versions, expected) in [([12, 13], 0), ([13, 12], 0), ([13, 13], 1)] {
        let (servers, client) = members(versions).await;
        all_known(&client).await;
        client.run(Operation::read("test", &out).read_preference(&secondary)).await.unwrap();
        let sent: Vec<_> = servers.iter().map(|server| named(server, "aggregate")).collect();
        assert_eq!((sent[expected].len(), sent[1 - expected].len()), (1, 0), "wire versions {versions:?}");
        // The server receives the read preference that was used to select it.
        let preference = sent[expected][0].get_document("$readPreference").cloned().ok();
        assert_eq!(preference, (expected == 1).then(|| doc! { "mode": "secondary" }), "wire versions {versions:?}");
        client.run(Operation::read("test", &reads).read_preference(&secondary)).await.unwrap();
        assert_eq!(named(&servers[1], "aggregate").len(), 1 + expected, "other aggregations keep their preference");
    }
}

/// Driver Sessions: an implicit session is left out if the server does not support sessions.
#[tokio::test]
async fn change_stream_without_sessions_has_none() {
    let replies = |command: &Document| {
        Answer::Reply(match name(command).as_str() {
            "hello" | "isMaster" | "ismaster" => doc! {
                "ok": 1, "isWritablePrimary": true, "msg": "isdbgrid", "helloOk": true, "minWireVersion": 0,
                "maxWireVersion": 21,
            },
            "aggregate" => doc! { "ok": 1, "cursor": { "id": 5_i64, "ns": "test.c", "firstBatch": [] } },
            "getMore" => doc! { "ok": 1, "cursor": { "id": 5_i64, "ns": "test.c", "nextBatch": [] } },
            _ => doc! { "ok": 1 },
        })
    };
    let server = ScriptedServer::start(move || Box::new(replies)).await.unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let mut changes = client.watch(WatchTarget::Collection("test", "c"), ()).await.unwrap();
    assert!(changes.next_if_any().await.unwrap().is_none());
    for of in ["aggregate", "getMore"] {
        let sent = named(&server, of);
        assert!(sent.len() == 1 && !sent[0].contains_key("lsid"), "{sent:?}");
    }
    // An explicit session causes an error.
    let mut session = client.start_session().await.unwrap();
    let refused = client.watch(WatchTarget::Collection("test", "c"), ()).session(&mut session).await.unwrap_err();
    assert!(matches!(refused, wharf::ClientError::Session(_)), "{refused}");
}

/// Server Selection, "Topology type: Single": any server can handle the request.
#[tokio::test]
async fn command_on_a_direct_connection_to_a_secondary_may_read() {
    let ([primary, secondary], _) = members([17, 17]).await;
    for (server, is_direct) in [(&secondary, true), (&primary, true), (&primary, false)] {
        let rest = if is_direct { "directConnection=true" } else { "replicaSet=rs" };
        let client = Client::from_uri(&format!("mongodb://{}/?{rest}", server.address())).unwrap();
        client.run_command("test", &rawdoc! { "count": "c" }).await.unwrap();
        let sent = named(server, "count").pop().unwrap();
        let preference = sent.get_document("$readPreference").cloned().ok();
        assert_eq!(preference, is_direct.then(|| doc! { "mode": "primaryPreferred" }));
        // If there were two preferences, the last one would apply.
        client.run_command("test", &rawdoc! { "count": "c", "$readPreference": { "mode": "nearest" } }).await.unwrap();
        let sent = named(server, "count").pop().unwrap();
        assert_eq!(sent.get_document("$readPreference").unwrap(), &doc! { "mode": "nearest" });
    }
}

/// Index Management, "CreateIndexOptions"; CRUD, "DeleteOptions": a server with a wire version below 9 does not refuse
/// the options itself.
#[tokio::test]
async fn options_that_servers_before_wire_version_9_ignore_are_refused() {
    for (version, is_sent) in [(8, false), (9, true)] {
        let ([server], client) = members([version]).await;
        let test = client.database("test");
        let (acknowledged, c) = (test.collection::<Document>("c"), test.collection::<Document>("c"));
        let c = c.write_concern(WriteConcern::default().w(Acknowledgement::Servers(0)));
        // With an acknowledgement, the server itself reports unsupported options.
        acknowledged.delete_one(doc! {}).hint("a_1").await.unwrap();
        acknowledged.create_index(IndexModel::new(doc! { "a": 1 })).await.unwrap();
        let index = acknowledged.create_index(IndexModel::new(doc! { "a": 1 })).commit_quorum(1).await.map(drop);
        let modify = c.find_one_and_delete(doc! {}).hint("a_1").await.map(drop);
        let delete = c.delete_one(doc! {}).hint("a_1").await.map(drop);
        for (outcome, option) in [(index, "commitQuorum"), (delete, "hint"), (modify, "hint")] {
            match outcome {
                Ok(()) => assert!(is_sent, "{option} was sent"),
                Err(error) => assert_eq!((error.to_string(), is_sent), (format!("{option} needs MongoDB 4.4"), false)),
            }
        }
        assert_eq!(named(&server, "createIndexes").len(), 1 + usize::from(is_sent));
        assert_eq!(named(&server, "findAndModify").len(), usize::from(is_sent));
    }
}

#[tokio::test]
async fn refused_option_does_not_begin_the_transaction() {
    let ([server], client) = members([8]).await;
    let c = client.database("test").collection::<Document>("c");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let index = IndexModel::new(doc! { "a": 1 });
    let refused = c.create_index(index).commit_quorum(1).session(&mut session).await.unwrap_err();
    assert_eq!(refused.to_string(), "commitQuorum needs MongoDB 4.4");
    c.insert_one(doc! {}).session(&mut session).await.unwrap();
    assert!(named(&server, "insert")[0].get_bool("startTransaction").unwrap());
}
