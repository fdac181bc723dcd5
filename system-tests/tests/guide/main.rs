//! The guide's examples, run against a real mongod. Their source is in `guide/`, the chapters contain copies, and a test
//! compares them.
#![cfg(not(loom))]

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use wharf::{Client, Command, DirectConnection, Endpoint, Options, ReadPreference};
use wharf_testbed::folder::Folder;
use wharf_testbed::mongod::{self, Mongod, MongodOptions};

mod blocking;
mod budget;
mod changes;
mod commands;
mod credential;
mod cursor;
mod duplicate;
mod files;
mod first_steps;
mod logs;
mod metrics;
mod own;
mod pool;
mod preferences;
mod renewal;
mod settings;
mod testing;

mod traces;
mod transaction;
mod typed;

use transaction::transfer;

const READ_PREFERENCES: &str = include_str!("../../../src/guide/read_preferences.md");

#[test]
fn guide_contains_the_code_that_is_tested_here() {
    /// Lists each chapter with its text and its examples, in the order of the chapter.
    macro_rules! chapters {
        ($($chapter:ident: $($file:ident)*;)*) => {[$((
            stringify!($chapter),
            include_str!(concat!("../../../src/guide/", stringify!($chapter), ".md")),
            &[$((stringify!($file), include_str!(concat!(stringify!($file), ".rs")))),*][..],
        )),*]};
    }
    let chapters = chapters! {
        first_steps: first_steps;
        documents: typed cursor;
        transactions: transaction;
        read_preferences: preferences settings;
        change_streams: changes;
        files: files;
        failures: duplicate;
        pools: own pool;
        operating_pools: budget;
        metrics_and_traces: metrics commands traces logs;
        tls_and_credentials: credential renewal;
        blocking: blocking;
        testing: testing;
    };
    for (chapter, text, files) in chapters {
        let blocks: Vec<_> = text
            .split("```")
            .skip(1)
            .step_by(2)
            .filter(|block| !["toml", "text"].iter().any(|language| block.starts_with(language)))
            .collect();
        assert_eq!(blocks.len(), files.len(), "number of code blocks in {chapter}.md (left) and of files (right)");
        for (block, (name, text)) in blocks.iter().zip(files) {
            let block = block.strip_prefix("rust,no_run\n").expect("a code block is not a doctest that is compiled");
            assert_eq!(block, *text, "src/guide/{chapter}.md and system-tests/tests/guide/{name}.rs differ");
        }
    }
    let folder = wharf_system_tests::root().join("src/guide");
    let with_code = std::fs::read_dir(folder)
        .unwrap()
        .filter(|chapter| std::fs::read_to_string(chapter.as_ref().unwrap().path()).unwrap().contains("```rust"));
    assert_eq!(with_code.count(), chapters.len(), "number of chapters with code (left) and of chapters here (right)");
}

#[test]
fn credential_in_code_is_the_same_as_in_a_connection_string() {
    let in_code = credential::options().unwrap();
    let in_a_string = Options::parse("mongodb://app:secret@db.example.com/?authSource=admin&tls=true").unwrap();
    assert_eq!(in_code.credential.unwrap().username, in_a_string.credential.unwrap().username);
    assert_eq!(in_code.tls, in_a_string.tls);
}

#[test]
fn preferences_in_code_are_the_same_as_in_a_connection_string() {
    let (_, text) = READ_PREFERENCES.split_once("```text\n").unwrap();
    let in_a_string = text.split_once("```").unwrap().0.replace('\n', "");
    let in_a_string = Options::parse(&format!("mongodb://localhost/?{in_a_string}")).unwrap();
    assert_eq!(preferences::options("mongodb://localhost/").unwrap(), in_a_string);
}

#[tokio::test]
async fn read_that_no_server_matches_fails_as_the_guide_says() {
    let bank = Bank::open().await;
    let limited = format!("{}&serverSelectionTimeoutMS=2000", uri(&bank.mongod, ""));
    let client = Client::new(preferences::options(&limited).unwrap()).unwrap();
    assert_eq!(settings::order(&client, 1).await.unwrap(), None);
    let orders = client.database("archive").collection::<Document>("orders");
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 0, "there is no secondary, so the primary answers");

    let error = settings::archive(&client).collection::<Document>("orders").find_one(doc! {}).await.unwrap_err();
    let error = error.to_string().replace(&bank.mongod.address().to_string(), "db1.example.com:27017");
    let error = error.replace("2000 ms", "30000 ms");
    let shown = READ_PREFERENCES.replace('\n', " ");
    assert!(shown.contains(&error), "{error}");
}

#[tokio::test]
async fn pool_of_own_connections_asks_a_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pool = own::open(&listener.local_addr().unwrap().to_string()).unwrap();
    let echo = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut questions, mut answers) = stream.split();
        tokio::io::copy(&mut questions, &mut answers).await.unwrap();
    };
    let asked = async {
        for question in [7, 8] {
            assert_eq!(own::ask(&pool, question).await.unwrap(), question);
        }
        assert_eq!(pool.metrics().connections.created, 1);
        pool.close();
    };
    tokio::join!(echo, asked);
}

#[tokio::test]
async fn pool_without_a_client_runs_commands() {
    let server = mongod::shared().unwrap();
    let pool = pool::open(&format!("mongodb://{}", server.address())).await.unwrap();
    let reply = pool::orders(&pool).await.unwrap();
    assert_eq!(reply.get_document("cursor").unwrap().get_i64("id").unwrap(), 0);
    assert_eq!(pool.status().in_use, 0);
}

/// Tells the child which server to use.
const SERVER: &str = "WHARF_TEST_LOGGED_SERVER";

#[test]
fn variables_say_what_is_logged_where_and_how_long_documents_are() {
    let server = mongod::shared().unwrap();
    let folder = Folder::create("logs").unwrap();
    let logged = |variables: &[(&str, &str)]| {
        let path = folder.path().join(variables.len().to_string());
        let mut child = process::Command::new(std::env::current_exe().unwrap());
        child.args(["logs_in_a_process_of_its_own", "--exact", "--ignored", "--nocapture"]);
        child.env(SERVER, server.address().to_string());
        child.env("MONGODB_LOG_PATH", &path).envs(variables.iter().copied());
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        std::fs::read_to_string(path).unwrap()
    };
    assert_eq!(logged(&[]), "");
    let log = logged(&[("MONGODB_LOG_COMMAND", "debug")]);
    assert!(log.lines().all(|line| line.contains("DEBUG wharf::command: ")), "{log}");
    assert!(log.contains("\\\"a value that is long\\\""), "{log}");
    let log = logged(&[("MONGODB_LOG_COMMAND", "debug"), ("MONGODB_LOG_MAX_DOCUMENT_LENGTH", "8")]);
    assert!(log.contains(r#"command="{\"ping\":...""#) && !log.contains("a value that is long"), "{log}");
}

#[tokio::test]
#[ignore = "runs in a process with the variables of logs, started by the test above"]
async fn logs_in_a_process_of_its_own() {
    let Ok(address) = std::env::var(SERVER) else { return };
    logs::begin();
    let client = Client::from_uri(&format!("mongodb://{address}/")).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1, "comment": "a value that is long" }).await.unwrap();
    client.shutdown(Duration::from_secs(60)).await;
}

#[test]
fn each_operation_is_written_with_its_commands() {
    let server = mongod::shared().unwrap();
    let mut child = process::Command::new(std::env::current_exe().unwrap());
    child.args(["traces_in_a_process_of_its_own", "--exact", "--ignored", "--nocapture"]);
    let output = child.env(SERVER, server.address().to_string()).output().unwrap();
    let written = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{written}");
    let lines: Vec<_> = written.lines().filter(|line| line.contains("wharf::operation: close")).collect();
    assert_eq!(lines.len(), 2, "{written}");
    assert!(lines[0].contains(r#"db.query.text="{\"find\":\"orders\""#), "{written}");
    assert!(lines[1].contains(r#"operation{otel.name="find shop.orders" otel.kind="client" db.system.name="mongodb""#));
}

#[tokio::test]
#[ignore = "runs in a process with its own subscriber, started by the test above"]
async fn traces_in_a_process_of_its_own() {
    let Ok(address) = std::env::var(SERVER) else { return };
    traces::begin();
    let client = traces::client(&format!("mongodb://{address}/")).unwrap();
    let orders = client.database("shop").collection::<Document>("orders");
    orders.find_one(doc! { "_id": 1 }).await.unwrap();
}

#[tokio::test]
async fn order_is_placed_once() {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let orders = client.database("placed").collection::<Document>("orders");
    let order = doc! { "_id": bson::oid::ObjectId::new(), "customer": "Ada" };
    assert!(duplicate::place(&orders, &order).await.unwrap());
    assert!(!duplicate::place(&orders, &order).await.unwrap());
    assert_eq!(orders.count_documents(doc! { "_id": &order["_id"] }).await.unwrap(), 1);
}

#[test]
fn each_test_has_its_own_database() {
    let [one, another] = ["one", "another"].map(testing::database);
    assert_eq!(one.name(), format!("one_{}", process::id()));
    assert_ne!(one.name(), another.name());
}

#[tokio::test(start_paused = true)]
async fn report_of_metrics_goes_on() {
    let pool = Endpoint::new("localhost").unwrap().pool().build().unwrap();
    let reporting = tokio::time::timeout(Duration::from_secs(25), metrics::report(pool.clone()));
    assert!(reporting.await.is_err(), "the report ended");
    assert_eq!(pool.metrics().check_outs.succeeded(), 0);
}

#[tokio::test]
async fn scrape_has_pools_and_commands() {
    let server = mongod::shared().unwrap();
    let (client, commands) = commands::client(&format!("mongodb://{}", server.address())).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1, "unknown": 1 }).await.unwrap_err();
    let scraped = commands::scrape(&client, &commands);
    for sample in ["pool_ready{", r#"command_seconds_count{command="ping",outcome="failed"} 1"#] {
        assert!(scraped.contains(&format!("\nwharf_{sample}")), "no {sample} in\n{scraped}");
    }
}

/// A replica set of one server, which holds six accounts of 100 each, and a client for it.
struct Bank {
    client: Client,
    admin: DirectConnection,
    /// How many times the fail point had been triggered before it was last set.
    failed_before: i32,
    mongod: Mongod,
}

/// Returns the connection string of the replica set, for a user if one is given.
fn uri(mongod: &Mongod, user: &str) -> String {
    format!("mongodb://{user}{}/?replicaSet=rs", mongod.address())
}

impl Bank {
    async fn open() -> Self {
        let options = MongodOptions { repl_set: Some("rs".to_owned()), ..MongodOptions::default() };
        let mongod = tokio::task::spawn_blocking(|| Mongod::start(options)).await.unwrap().unwrap();
        let address = mongod.address().to_string();
        let endpoint = Endpoint::new(&address).unwrap();
        let mut admin = endpoint.connect().await.unwrap();
        let members = rawdoc! { "_id": "rs", "members": [{ "_id": 0, "host": &*address }] };
        admin.run_command("admin", &rawdoc! { "replSetInitiate": members }).await.unwrap();
        let mut hello = rawdoc! { "hello": 1 };
        loop {
            let reply = admin.run(Command::new("admin", &hello).without_max_time()).await.unwrap();
            if reply.get_bool("isWritablePrimary").unwrap() {
                break;
            }
            // The server answers as soon as its state changes.
            let version = reply.get_document("topologyVersion").unwrap().to_owned();
            hello = rawdoc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 10_000 };
        }
        let accounts: Vec<_> = ["a", "b", "c", "d", "e", "f"].map(|id| doc! { "_id": id, "balance": 100_i64 }).into();
        let accounts = doc! { "insert": "accounts", "documents": accounts, "writeConcern": { "w": "majority" } };
        let accounts = RawDocumentBuf::try_from(accounts).unwrap();
        admin.run_command("bank", &accounts).await.unwrap();
        let client = Client::from_uri(&uri(&mongod, "")).unwrap();
        Self { client, admin, failed_before: 0, mongod }
    }

    /// Returns the balances of the first two accounts.
    async fn balances(&mut self) -> [i64; 2] {
        let find = rawdoc! { "find": "accounts", "sort": { "_id": 1 } };
        let reply = Document::try_from(self.admin.run_command("bank", &find).await.unwrap()).unwrap();
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        [0, 1].map(|index| batch[index].as_document().unwrap().get_i64("balance").unwrap())
    }

    /// Makes commands with this name fail.
    async fn fail(&mut self, command: &str, mode: impl Into<bson::Bson>, how: Document) {
        let mut data = doc! { "failCommands": [command] };
        data.extend(how);
        let fail_point = doc! { "configureFailPoint": "failCommand", "mode": mode.into(), "data": data };
        self.admin.run_command("admin", &RawDocumentBuf::try_from(fail_point).unwrap()).await.unwrap();
    }

    /// Turns the fail point off. Returns how many times it has been triggered since it was set.
    async fn failed(&mut self) -> i32 {
        let off = rawdoc! { "configureFailPoint": "failCommand", "mode": "off" };
        let count = self.admin.run_command("admin", &off).await.unwrap().get_i32("count").unwrap();
        count - std::mem::replace(&mut self.failed_before, count)
    }

    /// Waits until no cursor is open. A cursor that is dropped is closed in the background.
    async fn no_cursor_is_open(&mut self) {
        let closed = async {
            while self.status(&["metrics", "cursor", "open", "total"]).await > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), closed).await.expect("a cursor stays open");
    }

    /// Returns a number from `serverStatus`.
    async fn status(&mut self, path: &[&str]) -> i64 {
        let reply = self.admin.run_command("admin", &rawdoc! { "serverStatus": 1 }).await.unwrap();
        let mut status = Document::try_from(reply).unwrap();
        for name in &path[..path.len() - 1] {
            status = status.get_document(name).unwrap().clone();
        }
        status.get_i64(path[path.len() - 1]).unwrap()
    }
}

#[tokio::test]
async fn transfer_moves_money_once_or_not_at_all() {
    let mut bank = Bank::open().await;
    transfer(&bank.client, "a", "b", 10).await.unwrap();
    assert_eq!(bank.balances().await, [90, 110]);

    for (from, to, amount, expected) in [
        ("a", "b", 91, "account a does not exist or has too little"),
        ("a", "nobody", 10, "account nobody does not exist"),
        ("nobody", "b", 10, "account nobody does not exist"),
        ("a", "b", -10, "must be positive"),
    ] {
        let error = transfer(&bank.client, from, to, amount).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(bank.balances().await, [90, 110], "{from} to {to}");
        assert_eq!(bank.status(&["transactions", "currentOpen"]).await, 0, "the transaction was not ended");
    }
    transfer(&bank.client, "b", "a", 10).await.unwrap();
    assert_eq!(bank.balances().await, [100, 100]);
}

#[tokio::test]
async fn commit_waits_for_a_majority_at_every_attempt() {
    let mut bank = Bank::open().await;
    // The server logs each command before it answers.
    bank.admin.run_command("admin", &rawdoc! { "profile": 0, "slowms": -1 }).await.unwrap();
    bank.fail("commitTransaction", doc! { "times": 1 }, doc! { "writeConcernError": { "code": 64, "errmsg": "" } })
        .await;
    transfer(&bank.client, "a", "b", 1).await.unwrap();
    let log = std::fs::read_to_string(bank.mongod.log_path()).unwrap();
    let commits: Vec<_> = log.lines().filter(|line| line.contains(r#""command":{"commitTransaction":1"#)).collect();
    assert_eq!(commits.len(), 2, "{commits:?}");
    for commit in commits {
        assert!(commit.contains(r#""writeConcern":{"w":"majority""#), "{commit}");
    }
}

#[tokio::test]
async fn disturbed_transfer_is_retried_and_moves_money_once() {
    let mut bank = Bank::open().await;
    let transient = doc! { "errorCode": 251, "errorLabels": ["TransientTransactionError"] };
    let unwritable = doc! { "errorCode": 11_602, "errorLabels": ["RetryableWriteError"] };
    // The server commits, and then reports this error.
    let timed_out = doc! { "writeConcernError": { "code": 64, "errmsg": "waiting for replication timed out" } };
    let mut moved = 0;
    for (command, how) in [
        ("update", doc! { "closeConnection": true }),
        ("update", transient.clone()),
        ("commitTransaction", doc! { "closeConnection": true }),
        ("commitTransaction", transient),
        ("commitTransaction", unwritable),
        ("commitTransaction", timed_out),
    ] {
        for times in [1, 3] {
            bank.fail(command, doc! { "times": times }, how.clone()).await;
            transfer(&bank.client, "a", "b", 1).await.unwrap();
            moved += 1;
            assert_eq!(bank.balances().await, [100 - moved, 100 + moved], "{command} {how}");
            assert_eq!(bank.failed().await, times, "{command} {how}");
        }
    }
}

#[tokio::test]
async fn transfer_with_an_unknown_outcome_says_so() {
    let mut bank = Bank::open().await;
    // Each case has its own accounts: after refusing a commit, the server keeps the accounts locked for a minute.
    for (from, to, how, is_known) in [
        ("a", "b", doc! { "errorCode": 50 }, false),
        // The server has committed, and says so.
        ("c", "d", doc! { "writeConcernError": { "code": 100, "errmsg": "not enough servers" } }, true),
        ("e", "f", doc! { "errorCode": 13 }, true),
    ] {
        bank.fail("commitTransaction", "alwaysOn", how.clone()).await;
        let error = transfer(&bank.client, from, to, 1).await.unwrap_err();
        assert_eq!(!error.has_label("UnknownTransactionCommitResult"), is_known, "{how}: {error}");
        assert_eq!(bank.failed().await, 1, "{how} was tried again");
    }
}

#[tokio::test]
async fn cursor_that_is_not_read_to_its_end_is_closed() {
    let mut bank = Bank::open().await;
    let orders: Vec<_> = (0..250).map(|number| doc! { "_id": number }).collect();
    let insert = RawDocumentBuf::try_from(doc! { "insert": "orders", "documents": orders }).unwrap();
    bank.admin.run_command("shop", &insert).await.unwrap();
    let mut seen = 0;
    let count = |_: &bson::RawDocument| {
        seen += 1;
        Ok(())
    };
    cursor::orders(&bank.client, count).await.unwrap();
    assert_eq!(seen, 250);
    bank.no_cursor_is_open().await;

    for fails_at in [1, 150] {
        let seen = AtomicU32::new(0);
        let each = |_: &bson::RawDocument| match seen.fetch_add(1, Ordering::Relaxed) + 1 {
            number if number == fails_at => Err("an order that cannot be read".into()),
            _ => Ok(()),
        };
        let error = cursor::orders(&bank.client, each).await.unwrap_err();
        assert_eq!(error.to_string(), "an order that cannot be read");
        bank.no_cursor_is_open().await;
    }
    for how in [doc! { "errorCode": 13 }, doc! { "closeConnection": true }] {
        bank.fail("getMore", doc! { "times": 1 }, how.clone()).await;
        cursor::orders(&bank.client, |_| Ok(())).await.unwrap_err();
        bank.no_cursor_is_open().await;
    }
}

#[tokio::test]
async fn first_order_is_inserted_and_found() {
    let bank = Bank::open().await;
    let client = first_steps::start(&format!("mongodb://{}/", bank.mongod.address())).await.unwrap();
    let new = first_steps::Order { customer: "first steps".to_owned(), price: 20 };
    let found = first_steps::order(&client, &new).await.unwrap();
    assert!(found.iter().any(|order| order.customer == new.customer && order.price == new.price), "{found:?}");
    first_steps::stop(client).await;

    let misspelt = first_steps::start(&format!("mongodb://{}/?maxPolSize=3", bank.mongod.address())).await.unwrap_err();
    assert!(misspelt.to_string().contains("maxPolSize"), "{misspelt}");
}

#[tokio::test]
async fn structs_are_written_and_read() {
    let server = wharf_testbed::mongod::shared().unwrap();
    let client = wharf::Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let order = |id, customer: &str, price| typed::Order { id, customer: customer.to_owned(), price };
    let orders = [order(1, "a", 100), order(2, "b", 71), order(3, "b", 80), order(4, "c", 10)];
    let total = |customer: &str, total| typed::Total { customer: customer.to_owned(), total };
    assert_eq!(typed::highest(&client, &orders, 2).await.unwrap(), [total("b", 150), total("a", 100)]);
    client.run_command("shop", &rawdoc! { "dropDatabase": 1 }).await.unwrap();
}

#[tokio::test]
async fn photo_is_stored_and_read() {
    let server = wharf_testbed::mongod::shared().unwrap();
    let client = wharf::Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let photo = vec![7; 300_000];
    let id = files::store(&client, "cat.jpg", &*photo).await.unwrap();
    assert_eq!(files::latest(&client, "cat.jpg").await.unwrap(), photo);
    client.database("album").gridfs_bucket(None).delete(id).await.unwrap();
}

#[tokio::test]
async fn new_orders_are_passed_on_once_over_two_runs() {
    let bank = Bank::open().await;
    let client = &bank.client;
    client.run_command("shop", &rawdoc! { "create": "orders" }).await.unwrap();
    // The token is from before the inserts, so it precedes all their events.
    let mut changes = client.watch(wharf::client::WatchTarget::Collection("shop", "orders"), ()).await.unwrap();
    changes.next_if_any().await.unwrap();
    let mut token = changes.resume_token().map(ToOwned::to_owned);
    client.insert("shop", "orders", (0..4).map(|id| doc! { "_id": id })).await.unwrap();
    let mut seen = Vec::new();
    for last in [1, 3] {
        let each = |order: changes::Order| {
            seen.push(order.id);
            order.id < last
        };
        changes::new_orders(client, &mut token, each).await.unwrap();
    }
    assert_eq!(seen, [0, 1, 2, 3]);
}

#[tokio::test]
async fn order_is_paid_on_a_plain_thread() {
    let bank = Bank::open().await;
    bank.client.insert("shop", "orders", (0..150).map(|id| doc! { "_id": id, "paid": false })).await.unwrap();
    let uri = uri(&bank.mongod, "");
    let paying = std::thread::spawn(move || blocking::pay(&wharf::blocking::Client::from_uri(&uri).unwrap(), 7));
    tokio::task::spawn_blocking(|| paying.join().unwrap()).await.unwrap().unwrap();
    let mut paid = bank.client.find("shop", "orders", doc! { "paid": true }).await.unwrap();
    assert_eq!(paid.next().await.unwrap().unwrap().get_i32("_id").unwrap(), 7);
    assert!(paid.next().await.unwrap().is_none());
}

#[tokio::test]
async fn client_is_renewed_only_if_its_servers_accept_the_new_options() {
    let bank = Bank::open().await;
    let (of_nobody, own) = (uri(&bank.mongod, "no:body@"), uri(&bank.mongod, ""));
    let connection = async || bank.client.check_out(&ReadPreference::default()).await.unwrap().id();
    let before = connection().await;
    renewal::renew(&bank.client, &of_nobody).await.unwrap_err();
    assert_eq!(connection().await, before);

    renewal::renew(&bank.client, &own).await.unwrap();
    assert!(connection().await > before);
}

#[tokio::test]
async fn pools_share_a_budget() {
    let options = Options::from_uri("mongodb://localhost").await.unwrap();
    let (_client, pool) = budget::open(options).unwrap();
    assert_eq!(pool.budget().expect("the pool has the budget").status().size, 100);
}
