//! Commands on an established connection.

use super::*;

#[tokio::test]
async fn command_gets_its_reply() {
    let server = start().await;
    let mut connection = connect(&server).await;
    for _ in 0..3 {
        let reply = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
        assert_eq!(reply, rawdoc! { "ok": 1.0 });
    }
    assert_eq!(server.counters().commands("ping"), 3);
    assert_eq!(server.counters().connections_opened, 1);

    let find = rawdoc! { "find": COLLECTION, "filter": { "_id": 42 } };
    let reply = connection.run_command(DATABASE, &find).await.unwrap();
    assert_eq!(ids(&reply, "firstBatch"), [42]);
}

/// Returns the `_id`s in a batch.
fn ids(reply: &RawDocument, batch: &str) -> Vec<i64> {
    let documents = reply.get_document("cursor").unwrap().get_array(batch).unwrap().into_iter();
    documents.map(|document| document.unwrap().as_document().unwrap().get_i64("_id").unwrap()).collect()
}

#[tokio::test]
async fn cursor_returns_its_documents_in_batches() {
    let server = start().await;
    let mut connection = connect(&server).await;
    let find = rawdoc! { "find": COLLECTION, "batchSize": 40, "limit": 90 };
    let reply = connection.run_command(DATABASE, &find).await.unwrap();
    let mut found = ids(&reply, "firstBatch");
    let cursor = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
    loop {
        let get_more = rawdoc! { "getMore": cursor, "collection": COLLECTION, "batchSize": 40 };
        let reply = connection.run_command(DATABASE, &get_more).await.unwrap();
        found.extend(ids(&reply, "nextBatch"));
        if reply.get_document("cursor").unwrap().get_i64("id").unwrap() == 0 {
            break;
        }
    }
    assert_eq!(found, (0..90).collect::<Vec<i64>>());

    let reply = connection.run_command(DATABASE, &rawdoc! { "find": COLLECTION, "batchSize": 0 }).await.unwrap();
    let cursor = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
    let kill = rawdoc! { "killCursors": COLLECTION, "cursors": [cursor, 999_i64] };
    let reply = connection.run_command(DATABASE, &kill).await.unwrap();
    let expected = doc! {
        "cursorsKilled": [cursor], "cursorsNotFound": [999_i64], "cursorsAlive": [], "cursorsUnknown": [], "ok": 1.0,
    };
    assert_eq!(Document::try_from(reply).unwrap(), expected);
}

#[tokio::test]
async fn reply_may_be_much_larger_than_the_buffer() {
    let server =
        EmbeddedServer::start(EmbeddedOptions { documents: 20_000, ..EmbeddedOptions::default() }).await.unwrap();
    let mut connection = connect(&server).await;
    for _ in 0..2 {
        let find = rawdoc! { "find": COLLECTION, "batchSize": 20_000 };
        let reply = connection.run_command(DATABASE, &find).await.unwrap();
        assert_eq!(ids(&reply, "firstBatch").len(), 20_000);
    }
}

#[tokio::test]
async fn failed_command_leaves_the_connection_reusable() {
    let server = start().await;
    let mut connection = connect(&server).await;
    let failure = connection.run_command("admin", &rawdoc! { "nonsense": 1 }).await.unwrap_err();
    assert_eq!(failure.address(), server.address());
    let error = failure.server_error().unwrap();
    assert_eq!((error.code, &*error.code_name), (59, "CommandNotFound"));

    let reply = connection.reply_to("admin", &rawdoc! { "nonsense": 1 }).await.unwrap();
    assert_eq!(reply.get_i32("code").unwrap(), 59);
    assert!(connection.condition().is_reusable());
    assert!(connection.run_command("admin", &rawdoc! { "ping": 1 }).await.is_ok());
}

#[tokio::test]
async fn command_larger_than_the_servers_limit_is_not_sent() {
    let server = start().await;
    let mut connection = connect(&server).await;
    let failure = connection.run_command("admin", &rawdoc! { "ping": "x".repeat(48_000_000) }).await.unwrap_err();
    let Some(WireError::Length { field: "messageLength", most: 48_000_000, .. }) = wire_error(&failure) else {
        panic!("unexpected failure: {failure}")
    };
    assert!(connection.condition().is_reusable());
    assert!(connection.run_command("admin", &rawdoc! { "ping": 1 }).await.is_ok());
    assert_eq!(server.counters().commands("ping"), 1);
}

#[tokio::test]
async fn reply_cut_at_any_byte_is_a_network_error() {
    let server = start().await;
    let reply = 16 + 4 + 1 + rawdoc! { "ok": 1.0 }.as_bytes().len();
    for bytes in 0..reply {
        server.faults().clear();
        let mut connection = connect(&server).await;
        server.faults().cut_replies_after(Some(bytes));
        let ping = rawdoc! { "ping": 1 };
        let failure = tokio::time::timeout(AGES, connection.run_command("admin", &ping)).await.unwrap().unwrap_err();
        assert!(matches!(failure, CommandError::Network { .. }), "{failure}");
        assert!(!connection.condition().is_reusable());
    }
}

#[tokio::test]
async fn connection_closed_by_the_server_fails_the_command() {
    let server = start().await;
    let mut connection = connect(&server).await;
    set_fail_point(&server, doc! { "times": 1 }, doc! { "failCommands": ["ping"], "closeConnection": true }).await;
    let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    assert!(matches!(failure, CommandError::Network { .. }), "{failure}");
    assert!(!endpoint(&server).condition(&mut connection).is_reusable());
}

#[tokio::test]
async fn command_cancelled_after_it_was_sent_leaves_the_connection_not_reusable() {
    let server = start().await;
    let mut connection = connect(&server).await;
    let data = doc! { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": 60_000 };
    set_fail_point(&server, "alwaysOn", data).await;
    let ping = rawdoc! { "ping": 1 };
    tokio::select! {
        reply = connection.run_command("admin", &ping) => panic!("the blocked command was answered: {reply:?}"),
        _ = server.until(|counters| counters.commands("ping") == 1) => {}
    }
    assert!(!connection.condition().is_reusable());
    let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    assert!(matches!(failure, CommandError::NotReusable { .. }), "{failure}");
    assert_eq!(server.counters().commands("ping"), 1);
}

#[tokio::test]
async fn command_cancelled_before_its_first_poll_leaves_the_connection_reusable() {
    let server = start().await;
    let mut connection = connect(&server).await;
    drop(connection.run_command("admin", &rawdoc! { "ping": 1 }));
    assert!(connection.condition().is_reusable());
    assert!(connection.run_command("admin", &rawdoc! { "ping": 1 }).await.is_ok());
}

#[tokio::test]
async fn connection_abandoned_after_a_fork_is_closed_and_the_runtime_continues() {
    let server = start().await;
    let (abandoned, mut other) = (connect(&server).await, connect(&server).await);
    endpoint(&server).abandon_after_fork(abandoned.into());
    server.until(|counters| counters.connections_open == 1).await;
    assert!(other.run_command("admin", &rawdoc! { "ping": 1 }).await.is_ok());
}
