//! The commands and the reported outcomes of operations, on servers that follow scripts.

use std::time::Duration;

use bson::{Document, doc, rawdoc};
use tokio::time::Instant;
use wharf::client::{CommandEvent, CommandFailure, TimeoutMode, TransactionOptions};
use wharf::{Client, ClientError, Operation, Options};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::cluster::{self, Cluster, after, batch, failure, ok};
use super::repetitions::{client, count, primary, standalone, start};

const MS: Duration = Duration::from_millis(1);

/// Starts a server that takes this long to answer a hello.
async fn distant(hello: Document, pause: u64, answer: impl Fn() -> Answer + Clone + Send + 'static) -> ScriptedServer {
    let server = ScriptedServer::start(move || {
        let (hello, answer) = (hello.clone(), answer.clone());
        Box::new(move |command: &Document| match name(command).as_str() {
            "hello" | "isMaster" | "ismaster" => after(pause, Answer::Reply(hello.clone())),
            _ => answer(),
        })
    });
    server.await.unwrap()
}

/// CSOT, "Retryability": the time left for the last attempt is less than a round trip, so the attempt is not made.
#[tokio::test(start_paused = true)]
async fn time_that_retries_use_up_is_a_timeout() {
    let server = distant(standalone(), 30, || after(35, failure(134, &[]))).await;
    let client = client(&server, "");
    let read = rawdoc! { "count": "c" };
    // First, a connection is opened and round trips are measured.
    client.run(Operation::read("test", &read)).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let error = client.run(Operation::read("test", &read).timeout(100 * MS)).await.unwrap_err();
    assert_eq!(error.server_error().map(|error| error.code), Some(134), "{error}");
    assert!(error.is_timeout(), "{error}");
    assert!(error.to_string().contains("timeoutMS"), "{error}");
}

/// The server stops refusing after this many refusals, so that the test terminates.
const ENDLESS: usize = 1_000;

fn refusing(wanted: &'static str, code: i32) -> impl Fn(&Document, usize) -> Answer + Clone + Send + 'static {
    move |command, number| match name(command) == wanted && number < ENDLESS {
        true => failure(code, &["RetryableWriteError"]),
        false => ok(),
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_keep_a_distance_until_the_time_is_up() {
    for (wanted, code) in [("count", 262), ("insert", 6)] {
        let (server, arrived) = start(primary(), refusing(wanted, code)).await;
        let client = client(&server, "directConnection=true&timeoutMS=1000");
        let begun = Instant::now();
        let (read, write) = (rawdoc! { "count": "c" }, rawdoc! { "insert": "c", "documents": [{}] });
        let operation = if wanted == "count" { Operation::read("t", &read) } else { Operation::write("t", &write) };
        let error = client.run(operation).await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        assert!(begun.elapsed() <= 1_010 * MS, "{:?}", begun.elapsed());
        let attempts = count(&arrived, wanted);
        assert!((70..=210).contains(&attempts), "{attempts} attempts of {wanted}");
    }
}

#[tokio::test(start_paused = true)]
async fn commit_is_repeated_at_a_distance_and_an_abort_a_few_times() {
    for (wanted, allowed) in [("commitTransaction", 70..=210), ("abortTransaction", 3..=3)] {
        let (server, arrived) = start(primary(), refusing(wanted, 6)).await;
        let client = client(&server, "directConnection=true");
        let mut session = client.start_session().default_timeout(1_000 * MS).await.unwrap();
        session.start_transaction(TransactionOptions::default()).unwrap();
        let insert = rawdoc! { "insert": "c", "documents": [{}] };
        client.run(Operation::write("t", &insert).session(&mut session)).await.unwrap();
        match wanted {
            "commitTransaction" => assert!(session.commit_transaction().await.unwrap_err().is_timeout()),
            _ => session.abort_transaction().await.unwrap(),
        }
        let attempts = count(&arrived, wanted);
        assert!(allowed.contains(&attempts), "{attempts} attempts of {wanted}");
    }
}

/// CSOT, "Error Transformations".
#[tokio::test(start_paused = true)]
async fn write_whose_concern_was_not_met_in_time_keeps_its_result() {
    let (server, _) = start(standalone(), |_, _| {
        Answer::Reply(doc! { "ok": 1, "n": 3, "writeConcernError": { "code": 50, "errmsg": "too slow" } })
    })
    .await;
    for (parameters, is_timeout) in [("", false), ("timeoutMS=5000", true)] {
        let (client, told, _) = cluster::client(&format!("mongodb://{}/?{parameters}", server.address()));
        let of_series = client.insert("test", "c", [doc! {}, doc! {}, doc! {}]).await.unwrap_err();
        let ClientError::Write(failure) = &of_series else { panic!("{of_series}") };
        assert_eq!(failure.written.inserted, 3);
        let insert = rawdoc! { "insert": "c", "documents": [{}, {}, {}] };
        let of_command = client.run(Operation::write("test", &insert)).await.unwrap_err();
        for error in [of_series, of_command] {
            assert_eq!(error.write_concern_error().unwrap().code, 50);
            assert_eq!(error.write_concern_error().unwrap().reply.get_i32("n").unwrap(), 3);
            assert_eq!(error.is_timeout(), is_timeout, "{error}");
        }
        assert_eq!((told.succeeded().len(), told.failed().len()), (2, 0));
    }
}

/// Retryable Writes, "RetryableWriteError Labels": servers before 4.4 do not attach any labels.
#[tokio::test(start_paused = true)]
async fn unmet_concern_of_a_command_has_the_label_that_the_client_gives() {
    for (version, is_labelled) in [(8, true), (9, false)] {
        let mut hello = primary();
        hello.insert("maxWireVersion", version);
        let (server, _) = start(hello, |_, _| {
            Answer::Reply(doc! { "ok": 1, "n": 1, "writeConcernError": { "code": 91, "errmsg": "it ends" } })
        })
        .await;
        let client = client(&server, "directConnection=true");
        let insert = rawdoc! { "insert": "c", "documents": [{}] };
        let error = client.run(Operation::write("test", &insert)).await.unwrap_err();
        assert_eq!(error.write_concern_error().unwrap().code, 91);
        assert_eq!(error.has_label("RetryableWriteError"), is_labelled, "wire version {version}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn let_of_a_mixed_bulk_does_not_go_to_inserts() {
    let (server, arrived) = start(standalone(), |_, _| ok()).await;
    let client = client(&server, "");
    let options = doc! { "let": { "v": 1 }, "comment": "c" };
    let bulk = client.write("test", "c").insert(rawdoc! {}).update(rawdoc! { "q": {}, "u": {} });
    bulk.delete(rawdoc! { "q": {}, "limit": 1 }).options(&options).await.unwrap();
    // A plain insert keeps the option, so that the server reports the error.
    client.insert("test", "c", [doc! {}]).options(&options).await.unwrap();
    let arrived = arrived.lock().unwrap();
    let have_let: Vec<_> = arrived.iter().map(|command| (name(command), command.contains_key("let"))).collect();
    let expected = [("insert", false), ("update", true), ("delete", true), ("insert", true)];
    assert_eq!(have_let, expected.map(|(name, has_let)| (name.to_owned(), has_let)));
    assert!(arrived.iter().all(|command| command.get_str("comment").unwrap() == "c"));
}

#[tokio::test(start_paused = true)]
async fn write_without_acknowledgement_says_so_and_its_concern_is_consistent() {
    let (server, arrived) = start(standalone(), |command, _| match name(command).as_str() {
        "findAndModify" => Answer::Reply(doc! { "ok": 1, "value": { "_id": 1 } }),
        "count" => ok(),
        _ => Answer::Hang,
    })
    .await;
    let client = client(&server, "w=0");
    let modify = rawdoc! { "findAndModify": "c", "remove": true };
    let reply = client.run(Operation::write("test", &modify)).await.unwrap();
    assert!(reply.get_document("value").is_ok(), "{reply:?}");
    let strict = doc! { "writeConcern": { "w": 0, "j": true } };
    let error = client.insert("test", "c", [doc! {}]).options(strict).await.unwrap_err();
    assert!(matches!(error, ClientError::InvalidOption(_)), "{error}");
    assert_eq!(count(&arrived, "insert"), 0);
    let written = client.insert("test", "c", [doc! {}]).await.unwrap();
    assert!(!written.acknowledged && written.inserted == 0);
}

/// CSOT, "Validation and Overrides".
#[tokio::test(start_paused = true)]
async fn max_time_of_a_command_is_left_out_with_a_time_limit() {
    let (server, arrived) = start(standalone(), |_, _| batch("firstBatch", 0, 0)).await;
    let client = client(&server, "");
    for (limit, expected) in [(None, Some(7)), (Some(1_000 * MS), None)] {
        let query = client.find("test", "c", doc! {}).options(doc! { "maxTimeMS": 7 });
        drop(match limit {
            None => query.await.unwrap(),
            // The client does not send `maxTimeMS` either, because it would limit the whole cursor.
            Some(limit) => query.timeout(limit).timeout_mode(TimeoutMode::Iteration).await.unwrap(),
        });
        let sent = arrived.lock().unwrap().pop().unwrap();
        assert_eq!(sent.get_i32("maxTimeMS").ok(), expected, "{sent}");
    }
}

#[tokio::test(start_paused = true)]
async fn writes_keep_to_the_limits_of_the_server_that_they_go_to() {
    let set = Cluster::replica_set(2, |_, _, _| ok()).await;
    let (client, told) = set.client("").await;
    client.insert("test", "c", [doc! {}, doc! {}, doc! {}]).await.unwrap();
    assert_eq!(told.started("insert").len(), 1, "the secondary's limit does not count");
}

#[tokio::test(start_paused = true)]
async fn error_of_the_server_is_found_wherever_it_was_reported() {
    let (server, _) = start(standalone(), |command, _| match name(command).as_str() {
        "saslStart" => failure(18, &[]),
        "insert" => Answer::Reply(
            doc! { "ok": 1, "n": 1, "writeErrors": [{ "index": 1, "code": 11_000, "errmsg": "there already" }] },
        ),
        _ => failure(13, &[]),
    })
    .await;
    let refused = format!("mongodb://user:pencil@{}/?authMechanism=PLAIN", server.address());
    let refused = Client::from_uri(&refused).unwrap().run_command("t", &rawdoc! { "ping": 1 }).await.unwrap_err();
    let client = client(&server, "");
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 1 }] };
    let of_series = client.insert("t", "c", [doc! {}, doc! {}]).await.unwrap_err();
    let of_command = client.run(Operation::write("t", &insert)).await.unwrap_err();
    let of_ping = client.run_command("t", &rawdoc! { "ping": 1 }).await.unwrap_err();
    for error in [&of_series, &of_command] {
        let ClientError::Write(failure) = error else { panic!("{error}") };
        assert_eq!((failure.written.inserted, failure.errors[0].index), (1, 1));
        assert!(error.to_string().starts_with("there already"), "{error}");
    }
    for (error, code) in [(refused, 18), (of_series, 11_000), (of_command, 11_000), (of_ping, 13)] {
        assert_eq!(error.server_error().map(|error| error.code), Some(code), "{error}");
    }
    // The client does not inspect the reply to a generic command.
    client.run(Operation::new("t", &insert)).await.unwrap();
}

/// Server Selection, "Filtering suitable servers based on the latency window".
#[tokio::test(start_paused = true)]
async fn servers_outside_of_the_latency_window_get_no_operations() {
    let mut mongos = standalone();
    mongos.insert("msg", "isdbgrid");
    let (near, far) = (distant(mongos.clone(), 1, ok).await, distant(mongos, 60, ok).await);
    let hosts = format!("{},{}", near.address(), far.address());
    for (parameters, is_used) in [("", false), ("localThresholdMS=200", true)] {
        let before = far.command_names().iter().filter(|name| *name == "count").count();
        let (client, _, events) =
            cluster::client(&format!("mongodb://{hosts}/?serverMonitoringMode=poll&{parameters}"));
        client.connect().await.unwrap();
        let all_known = |event: &wharf::client::TopologyEvent| match event {
            wharf::client::TopologyEvent::TopologyDescriptionChanged { new, .. } => {
                new.servers().all(|server| server.server_type().is_data_bearing())
            }
            _ => false,
        };
        events.after(0, all_known).await;
        for _ in 0..30 {
            client.run(Operation::read("t", &rawdoc! { "count": "c" })).await.unwrap();
        }
        let used = far.command_names().iter().filter(|name| *name == "count").count() - before;
        assert_eq!(used > 0, is_used, "{parameters}: {used} of 30");
    }
}

/// Command Logging and Monitoring, "Security".
#[tokio::test(start_paused = true)]
async fn replies_and_errors_of_sensitive_commands_are_not_shown() {
    let (server, _) = start(standalone(), |_, number| match number {
        0 => Answer::Reply(doc! { "ok": 1, "token": "secret" }),
        _ => Answer::Reply(doc! { "ok": 0, "code": 51_003, "codeName": "Location51003", "errmsg": "secret" }),
    })
    .await;
    let (client, told, _) = cluster::client(&format!("mongodb://{}", server.address()));
    let create = rawdoc! { "createUser": "ada", "pwd": "secret" };
    client.run_command("admin", &create).await.unwrap();
    client.run_command("admin", &create).await.unwrap_err();
    let told = told.0.lock().unwrap();
    assert_eq!(told.len(), 4);
    for event in told.iter() {
        match event {
            CommandEvent::Started(started) => assert_eq!(started.command, rawdoc! {}),
            CommandEvent::Succeeded(succeeded) => assert_eq!(succeeded.reply, rawdoc! {}),
            CommandEvent::Failed(failed) => {
                let CommandFailure::Redacted { code, code_name, .. } = &failed.failure else { panic!("{failed:?}") };
                assert_eq!((*code, &**code_name), (51_003, "Location51003"));
                assert!(!failed.failure.to_string().contains("secret"));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// CSOT, "Validation and Overrides".
#[tokio::test(start_paused = true)]
async fn time_of_the_write_concern_is_left_out_with_a_time_limit() {
    let (server, arrived) = start(standalone(), |_, _| ok()).await;
    let insert = rawdoc! { "insert": "c", "documents": [{}] };
    for (parameters, expected) in
        [("", doc! { "w": "majority", "wtimeout": 500_i64 }), ("&timeoutMS=9000", doc! { "w": "majority" })]
    {
        let uri = format!("mongodb://{}/?w=majority&wTimeoutMS=500{parameters}", server.address());
        let client = Client::new(Options::parse(&uri).unwrap()).unwrap();
        client.run(Operation::write("t", &insert)).await.unwrap();
        let sent = arrived.lock().unwrap().pop().unwrap();
        assert_eq!(sent.get_document("writeConcern").unwrap(), &expected);
    }
}

#[tokio::test(start_paused = true)]
async fn value_that_is_no_statement_is_refused_with_what_one_is() {
    let (server, arrived) = start(standalone(), |_, _| ok()).await;
    let client = client(&server, "");
    let of_insert = client.insert("t", "c", doc! { "a": 1 }).await.unwrap_err().to_string();
    assert!(of_insert.contains("it must be a document, got Array") && of_insert.contains("[doc! {"), "{of_insert}");
    let of_update = client.update("t", "c", [doc! { "q": {}, "$set": {} }]).await.unwrap_err().to_string();
    assert!(of_update.contains("statement number 0 has no u: a statement is { q:"), "{of_update}");
    let of_delete = client.delete("t", "c", [doc! { "_id": 1 }]).await.unwrap_err().to_string();
    assert!(of_delete.contains("statement number 0 has no q"), "{of_delete}");
    assert_eq!(arrived.lock().unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn value_that_serde_cannot_read_is_named_by_its_path_and_document() {
    #[derive(Debug, serde::Deserialize)]
    struct Order {
        #[allow(dead_code)]
        items: Vec<Item>,
    }
    #[derive(Debug, serde::Deserialize)]
    struct Item {
        #[allow(dead_code)]
        price: f64,
    }
    let (server, _) = start(standalone(), |_, _| {
        let order = doc! { "_id": 7, "items": [{ "price": 1.5 }, { "price": "high" }] };
        Answer::Reply(doc! { "ok": 1, "cursor": { "id": 0_i64, "ns": "t.c", "firstBatch": [order] } })
    })
    .await;
    let mut orders = client(&server, "").find("t", "c", doc! {}).await.unwrap().typed::<Order>();
    let error = orders.next().await.unwrap_err().to_string();
    assert!(error.contains("field items[1].price of the document with _id 7: "), "{error}");
}

#[tokio::test(start_paused = true)]
async fn server_that_accepts_and_never_answers_is_told_from_one_that_fails() {
    let silent = ScriptedServer::start(|| Box::new(|_: &Document| Answer::Hang)).await.unwrap();
    let client = Client::from_uri(&format!("mongodb://{}/?serverSelectionTimeoutMS=500", silent.address())).unwrap();
    let error = client.run_command("t", &rawdoc! { "ping": 1 }).await.unwrap_err().to_string();
    // The time limit is 500 ms, but the clock ticks in milliseconds, so the last digit may differ.
    assert!(error.contains("(Unknown, connecting, no answer for 50"), "{error}");
    assert!(error.starts_with("no server for readPreference primary was found"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn refused_authentication_tells_that_the_database_came_from_the_path() {
    let (server, _) = start(standalone(), |_, _| failure(18, &[])).await;
    for (path, is_told) in [("shop", true), ("", false), ("admin", false), ("shop?authSource=other", false)] {
        let separator = if path.contains('?') { '&' } else { '?' };
        let uri = format!("mongodb://user:pencil@{}/{path}{separator}authMechanism=PLAIN", server.address());
        let error = Client::from_uri(&uri).unwrap().run_command("t", &rawdoc! { "ping": 1 }).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(text.contains("add authSource=admin"), is_told && !text.contains("$external"), "{path}: {text}");
    }
}

#[test]
fn misspelt_option_is_refused_with_the_nearest_name() {
    let error = Client::from_uri_strict("mongodb://a/?maxPolSize=3").unwrap_err().to_string();
    assert_eq!(error, r#"option "maxPolSize" is not supported; the nearest name is maxPoolSize"#);
    let error = Client::from_uri_strict("mongodb://a/?unheardOf=3").unwrap_err().to_string();
    assert_eq!(error, r#"option "unheardOf" is not supported"#);
}
