//! Tests the examples as a user runs them: `top`, and the service on a replica set, with its metrics, its dashboard, a
//! failover and its shutdown.
#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{RawDocument, rawdoc};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::{Barrier, watch};
use tokio::task::JoinSet;
use wharf_servers::mongod::free_port;
use wharf_servers::replica_set::{ReplicaSet, ReplicaSetOptions, shared};
use wharf_service::http::request;
use wharf_service::pools::PoolRow;

/// The time after which a hung test fails.
const AGES: Duration = Duration::from_secs(60);
const AGES_MS: i32 = 60_000;

/// Returns the command that runs an example. `cargo test` builds the examples before it runs any test.
fn example(name: &str) -> Command {
    let test = env::current_exe().unwrap();
    let example: PathBuf = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(example.is_file(), "{} does not exist: build it with `cargo build --examples`", example.display());
    let mut command = Command::new(example);
    command.kill_on_drop(true).env_remove("MONGODB_URI");
    command
}

async fn send(signal: &str, child: &Child) {
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().await.unwrap().success());
}

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Running {
    /// Starts the service on a port that nothing else is using.
    async fn start(uri: &str) -> Self {
        let mut command = example("service");
        command.args(["--listen", "127.0.0.1:0"]).env("MONGODB_URI", uri);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = tokio::time::timeout(AGES, lines.next_line()).await.expect("the service does not start");
        let first = first.unwrap().unwrap();
        let address = first.strip_prefix("Listening on ").unwrap_or_else(|| panic!("{first}")).to_owned();
        Self { child, lines, address }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        request(&self.address, "GET", path, "").await.unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> (u16, String) {
        request(&self.address, "POST", path, &body.to_string()).await.unwrap()
    }

    /// Returns the balances of an owner's accounts, by identifier.
    async fn accounts(&self, owner: &str) -> BTreeMap<String, i64> {
        let (status, accounts) = self.get(&format!("/accounts/{owner}")).await;
        assert_eq!(status, 200, "{accounts}");
        let accounts: Vec<Value> = serde_json::from_str(&accounts).unwrap();
        let pair =
            |account: &Value| (account["_id"].as_str().unwrap().to_owned(), account["balance"].as_i64().unwrap());
        let balances: BTreeMap<_, _> = accounts.iter().map(pair).collect();
        assert_eq!(balances.len(), accounts.len(), "an account comes twice");
        balances
    }

    async fn signal(&self, signal: &str) {
        send(signal, &self.child).await;
    }

    /// Sends a signal, and asserts that the service exits on its own and leaves no connections.
    async fn end(self, signal: &str) {
        self.signal(signal).await;
        self.ended().await;
    }

    /// Waits until the service exits, and asserts that it exits on its own and leaves no connections.
    async fn ended(mut self) {
        let status = tokio::time::timeout(AGES, self.child.wait()).await.expect("the service does not end").unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(self.lines.next_line().await.unwrap().unwrap(), "Stopped");
    }
}

/// Returns the values of all samples in a scrape, by name and labels.
fn samples(scraped: &str) -> BTreeMap<String, f64> {
    let lines = scraped.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line:?}")))
        })
        .collect()
}

/// Returns the names of wharf's metrics in a query.
fn queried(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("wharf_"))
}

/// Returns all of the dashboard's queries.
fn queries(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(fields) => {
            let own = fields.iter().filter(|(key, _)| matches!(key.as_str(), "expr" | "query"));
            let own = own.filter_map(|(_, value)| value.as_str());
            own.chain(fields.values().flat_map(queries)).collect()
        }
        Value::Array(values) => values.iter().flat_map(queries).collect(),
        _ => Vec::new(),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_keeps_accounts_and_shows_its_pools() {
    let set = blocking(|| shared().unwrap()).await;
    let service = Running::start(&set.uri()).await;
    // The service reads 100 accounts per batch, so these need two batches after the first.
    for number in 0..250 {
        let account = json!({ "_id": format!("a{number}"), "owner": "Ann \"A\"", "balance": number });
        let (status, opened) = service.post("/accounts", account.clone()).await;
        assert_eq!((status, serde_json::from_str(&opened).ok()), (201, Some(account)), "{opened}");
    }
    // With these owners, the totals need two batches.
    for number in 0..110 {
        let account = json!({ "_id": format!("c{number}"), "owner": format!("Carol {number:03}"), "balance": number });
        assert_eq!(service.post("/accounts", account).await.0, 201);
    }
    let bobs = json!({ "_id": "b0", "owner": "Bob", "balance": 10 });
    assert_eq!(service.post("/accounts", bobs.clone()).await.0, 201);
    assert_eq!(service.post("/accounts", bobs).await, (409, "the account already exists".to_owned()));
    let anns = "Ann%20%22A%22";
    let accounts = service.accounts(anns).await;
    assert!(accounts.len() == 250 && (0..250).all(|number| accounts[&format!("a{number}")] == number), "{accounts:?}");
    assert_eq!(service.accounts("Eve").await.len(), 0);

    let transfer = |from: &str, to: &str, amount: i64| json!({ "from": from, "to": to, "amount": amount });
    assert_eq!(service.post("/transfers", transfer("a249", "b0", 5)).await, (204, String::new()));
    for (refused, reason) in [
        (transfer("a1", "b0", 2), "there is no such account, or not enough money in it"),
        (transfer("a249", "nobody", 1), "there is no such account, or not enough money in it"),
        (transfer("a249", "b0", 0), "the amount must be positive"),
    ] {
        assert_eq!(service.post("/transfers", refused.clone()).await, (422, reason.to_owned()), "{refused}");
    }
    let accounts = service.accounts(anns).await;
    assert_eq!((accounts["a1"], accounts["a249"], service.accounts("Bob").await["b0"]), (1, 244, 15));
    let totals: Value = serde_json::from_str(&service.get("/totals").await.1).unwrap();
    let mut expected = vec![
        json!({ "_id": "Ann \"A\"", "accounts": 250, "balance": 250 * 249 / 2 - 5 }),
        json!({ "_id": "Bob", "accounts": 1, "balance": 15 }),
    ];
    let carols =
        (0..110).map(|number| json!({ "_id": format!("Carol {number:03}"), "accounts": 1, "balance": number }));
    expected.extend(carols);
    assert_eq!(totals, Value::from(expected));

    let (status, scraped) = service.get("/metrics").await;
    assert_eq!(status, 200);
    let samples = samples(&scraped);
    let primary = blocking(move || set.addresses()[set.primary().unwrap().unwrap()]).await;
    let value = |name: &str, label: &str| {
        let key = format!("{name}{{pool=\"{primary}\"{label}}}");
        *samples.get(&key).unwrap_or_else(|| panic!("no {key} in\n{scraped}"))
    };
    assert_eq!(value("wharf_pool_ready", ""), 1.0);
    assert_eq!(value("wharf_pool_connections", ",state=\"idle\""), 1.0);
    assert_eq!(value("wharf_pool_connections", ",state=\"in_use\""), 0.0);
    assert_eq!(value("wharf_pool_connections_max", ""), 100.0);
    assert_eq!(value("wharf_pool_connections_created_total", ""), 1.0);
    assert_eq!(value("wharf_pool_check_outs_total", ",outcome=\"opened\""), 1.0);
    assert!(value("wharf_pool_check_outs_total", ",outcome=\"hit\"") > 260.0);
    assert_eq!(value("wharf_pool_check_outs_failed_total", ",reason=\"timeout\""), 0.0);
    // The buckets are cumulative, so the last one counts everything.
    assert_eq!(value("wharf_pool_wait_seconds_count", ",outcome=\"opened\""), 1.0);
    assert_eq!(value("wharf_pool_create_seconds_count", ""), 1.0);
    assert_eq!(value("wharf_pool_create_seconds_bucket", ",le=\"+Inf\""), 1.0);
    let bounds = ["5e-5", "0.0001", "0.00025", "0.0005", "0.001", "0.005", "0.01", "0.05", "0.1", "0.5", "1.0", "+Inf"];
    let counts = bounds.map(|bound| value("wharf_pool_create_seconds_bucket", &format!(",le=\"{bound}\"")));
    assert!(counts.is_sorted(), "{counts:?}");
    let created = value("wharf_pool_create_seconds_sum", "");
    assert!(created > 0.0 && created < AGES.as_secs_f64(), "{created}");
    assert!(scraped.contains("# TYPE wharf_pool_create_seconds histogram"), "{scraped}");
    // A plain TCP connection goes through three stages and no others.
    let mut stages = 0.0;
    for (stage, times) in
        [("resolve", 1.0), ("connect", 1.0), ("hello", 1.0), ("proxy", 0.0), ("tls", 0.0), ("authenticate", 0.0)]
    {
        let label = format!(",stage=\"{stage}\"");
        assert_eq!(value("wharf_pool_create_stage_seconds_count", &label), times, "{stage}");
        let took = value("wharf_pool_create_stage_seconds_sum", &label);
        assert_eq!(took > 0.0, times > 0.0, "{stage}: {took}");
        stages += took;
    }
    assert!(stages <= created, "{stages} {created}");

    let names: BTreeSet<&str> = samples.keys().map(|key| key.split('{').next().unwrap()).collect();
    let dashboard: Value = serde_json::from_str(include_str!("../grafana.json")).unwrap();
    let mut checked = 0;
    for query in queries(&dashboard) {
        for name in queried(query) {
            assert!(names.contains(name), "the dashboard queries {name}, which /metrics does not have: {query}");
            checked += 1;
        }
    }
    assert!(checked > 15, "only {checked} metrics found in the dashboard");

    let rows: Vec<PoolRow> = serde_json::from_str(&service.get("/pools").await.1).unwrap();
    assert!(rows.len() == 3 && rows.iter().any(|row| row.address == primary.to_string() && row.hits > 260), "{rows:?}");

    let top = example("top").args(["--service", &service.address, "--interval", "10", "--width", "100"]).output().await;
    let top = String::from_utf8(top.unwrap().stdout).unwrap();
    assert!(top.starts_with("POOL ") && top.contains(&primary.to_string()), "{top}");
    service.end("-TERM").await;
}

/// The number of accounts of one owner, and the number of owners with one account each. Both are enough for several
/// batches.
const RICH: usize = 260;
const OTHERS: usize = 110;
/// The number of tasks that write.
const WRITERS: usize = 16;
/// How many times each of these tasks writes before the kill, and again after the election.
const TURNS: i64 = 20;

/// When each request of a task began and ended.
type Times = Vec<(Instant, Instant)>;

/// Money moves from one account to another while the primary is killed. No request fails, and each acknowledged
/// transfer and new account exists exactly once. Meanwhile, other requests read several batches without missing a
/// document.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_survives_the_loss_of_its_primary() {
    let set = blocking(|| Arc::new(ReplicaSet::start(ReplicaSetOptions::default()).unwrap())).await;
    let service = Arc::new(Running::start(&format!("{}&appName=bank", set.uri())).await);
    let busy = Arc::new(Barrier::new(WRITERS + 1));
    let (elected, is_elected) = watch::channel(false);
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(writer, service.clone(), busy.clone(), is_elected.clone()));
    }
    let all = async {
        busy.wait().await;
        let accounts = read("/accounts/Rich", service.clone(), is_elected.clone(), all_accounts_of_the_rich);
        let totals = read("/totals", service.clone(), is_elected, all_totals);
        let readers = [tokio::spawn(accounts), tokio::spawn(totals)];
        let cluster = set.clone();
        let kill_and_elect = move || {
            let killed = kill_while_cursors_are_open(&cluster);
            cluster.wait_for_primary(Instant::now() + AGES).unwrap();
            killed
        };
        let (begun, lost) = blocking(kill_and_elect).await;
        elected.send(true).unwrap();

        for reader in readers {
            let mut times = reader.await.unwrap().into_iter();
            assert!(
                times.any(|(from, to)| from < begun && to > lost),
                "no read was in progress when the primary was killed"
            );
        }
        let (mut turns_of, mut met) = ([0; WRITERS], 0);
        while let Some(done) = writers.join_next().await {
            let (writer, turns, times) = done.unwrap();
            turns_of[writer] = turns;
            // The primary still answers for a moment after `begun`, so the request that was in progress at the kill may
            // have started after `begun`.
            met += usize::from(times.into_iter().any(|(from, to)| from < lost && to > lost));
        }
        assert!(met > 0, "no write was in progress when the primary was killed");
        turns_of
    };
    let turns_of = tokio::time::timeout(3 * AGES, all).await.expect("requests hang");
    for (writer, turns) in turns_of.into_iter().enumerate() {
        let accounts = service.accounts(&format!("owner{writer}")).await;
        let balance = |name: &str| accounts[&format!("{name}{writer}")];
        assert_eq!((balance("from"), balance("to")), (1_000 - turns, 1_000 + turns));
        assert_eq!(accounts.len() as i64, 2 + turns);
    }
    Arc::into_inner(service).unwrap().end("-INT").await;
}

/// Opens accounts and moves money, before the kill, during it, and after the election. Returns the writer, the number of its
/// turns, and the times of its requests.
async fn write(
    writer: usize,
    service: Arc<Running>,
    busy: Arc<Barrier>,
    is_elected: watch::Receiver<bool>,
) -> (usize, i64, Times) {
    let open = async |id: String, owner: String| {
        let begun = Instant::now();
        let account = json!({ "_id": id, "owner": owner, "balance": 1_000 });
        let (status, body) = service.post("/accounts", account).await;
        assert_eq!(status, 201, "{body}");
        (begun, Instant::now())
    };
    for number in (writer..RICH).step_by(WRITERS) {
        open(format!("rich{number:03}"), "Rich".to_owned()).await;
    }
    for number in (writer..OTHERS).step_by(WRITERS) {
        open(format!("other{number:03}"), format!("Other {number:03}")).await;
    }
    let (owner, from, to) = (format!("owner{writer}"), format!("from{writer}"), format!("to{writer}"));
    open(from.clone(), owner.clone()).await;
    open(to.clone(), owner.clone()).await;
    let (mut turns, mut after, mut times) = (0, 0, Times::new());
    while after < TURNS {
        if turns == TURNS {
            // From this point on, the primary may be killed.
            busy.wait().await;
        }
        after += i64::from(*is_elected.borrow());
        let begun = Instant::now();
        let (status, body) = service.post("/transfers", json!({ "from": from, "to": to, "amount": 1 })).await;
        assert_eq!(status, 204, "{body}");
        times.push((begun, Instant::now()));
        times.push(open(format!("{writer}:{turns}"), owner.clone()).await);
        turns += 1;
        // Writers do nothing but write while the primary may be killed.
        if turns < TURNS || after > 0 {
            assert_eq!(service.accounts(&owner).await.len() as i64, 2 + turns);
        }
    }
    (writer, turns, times)
}

/// Sends the same request repeatedly until after the election, and checks each response. Returns the times of the
/// requests.
async fn read(
    path: &str,
    service: Arc<Running>,
    is_elected: watch::Receiver<bool>,
    check: impl Fn(Vec<Value>),
) -> Times {
    let mut times = Times::new();
    loop {
        let is_last = *is_elected.borrow();
        let begun = Instant::now();
        let (status, body) = service.get(path).await;
        times.push((begun, Instant::now()));
        assert_eq!(status, 200, "{path}: {body}");
        check(serde_json::from_str(&body).unwrap());
        if is_last {
            return times;
        }
    }
}

fn all_accounts_of_the_rich(accounts: Vec<Value>) {
    let account = |number| json!({ "_id": format!("rich{number:03}"), "owner": "Rich", "balance": 1_000 });
    assert_eq!(accounts, (0..RICH).map(account).collect::<Vec<_>>());
}

fn all_totals(totals: Vec<Value>) {
    assert_eq!(totals.len(), 1 + OTHERS + WRITERS);
    assert!(totals.is_sorted_by_key(|total| total["_id"].as_str()), "{totals:?}");
    for total in &totals {
        let (owner, accounts) = (total["_id"].as_str().unwrap(), total["accounts"].as_i64().unwrap());
        // Each transfer is between two accounts of one owner, and is seen either in full or not at all.
        assert_eq!(total["balance"], accounts * 1_000, "{owner}");
        match owner {
            "Rich" => assert_eq!(accounts, RICH as i64),
            owner if owner.starts_with("Other ") => assert_eq!(accounts, 1, "{owner}"),
            owner => assert!(accounts >= 2 + TURNS, "{owner}: {accounts}"),
        }
    }
}

/// Kills the primary while two requests are waiting for another batch from a cursor. Returns the times right before and
/// right after the kill.
fn kill_while_cursors_are_open(set: &ReplicaSet) -> (Instant, Instant) {
    let primary = set.primary().unwrap().unwrap();
    let run = |command: &RawDocument| set.command(primary, "admin", command).unwrap();
    let hold =
        rawdoc! { "failCommands": ["getMore"], "appName": "bank", "blockConnection": true, "blockTimeMS": AGES_MS };
    let held = run(&rawdoc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": hold }).get_i32("count");
    run(&rawdoc! { "waitForFailPoint": "failCommand", "timesEntered": held.unwrap() + 2, "maxTimeMS": AGES_MS });
    let begun = Instant::now();
    set.kill(primary).unwrap();
    (begun, Instant::now())
}

/// Starts a replica set with one member, which the test may pause.
async fn alone() -> ReplicaSet {
    let options = ReplicaSetOptions { members: 1, ..ReplicaSetOptions::default() };
    blocking(|| ReplicaSet::start(options).unwrap()).await
}

#[tokio::test]
async fn service_completes_its_requests_before_it_ends() {
    let set = alone().await;
    for signal in ["-TERM", "-INT"] {
        let service = Running::start(&set.uri()).await;
        let (from, to) = (format!("from{signal}"), format!("to{signal}"));
        for id in [&from, &to] {
            let account = json!({ "_id": id, "owner": signal, "balance": 10 });
            assert_eq!(service.post("/accounts", account).await.0, 201);
        }
        set.stop_process(0).unwrap();
        let address = service.address.clone();
        let body = json!({ "from": from, "to": to, "amount": 1 }).to_string();
        let transfer = tokio::spawn(async move { request(&address, "POST", "/transfers", &body).await.unwrap() });
        let is_in_progress = async || {
            let rows: Vec<PoolRow> = serde_json::from_str(&service.get("/pools").await.1).unwrap();
            rows.iter().any(|row| row.in_use > 0)
        };
        let noticed = async {
            while !is_in_progress().await {}
            service.signal(signal).await;
            // After a signal, the service accepts no more connections.
            while TcpStream::connect(&service.address).await.is_ok() {}
        };
        tokio::time::timeout(AGES, noticed).await.expect("the service does not notice the signal");
        assert!(!transfer.is_finished());
        set.continue_process(0).unwrap();
        assert_eq!(transfer.await.unwrap(), (204, String::new()), "{signal}");
        service.ended().await;

        let service = Running::start(&set.uri()).await;
        assert_eq!(service.accounts(signal).await, BTreeMap::from([(from, 9), (to, 11)]));
        service.end(signal).await;
    }
}

/// The service blocks while it prints its address, because its output is full. It prints the address before it accepts
/// a connection.
#[tokio::test]
async fn signal_before_the_first_connection_ends_the_service() {
    let (mut lines, mut full) = UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    let filled = loop {
        if let Err(error) = full.write_all(b"\n") {
            break error.kind();
        }
    };
    assert_eq!(filled, ErrorKind::WouldBlock);
    full.set_nonblocking(false).unwrap();
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let mut service = example("service");
    service.args(["--listen", &address, "--uri", "mongodb://127.0.0.1:1"]).stdout(OwnedFd::from(full));
    let mut child = service.spawn().unwrap();
    // The command holds a copy of the socket.
    drop(service);
    let listens = async { while TcpStream::connect(&address).await.is_err() {} };
    tokio::time::timeout(AGES, listens).await.expect("the service does not listen");
    send("-TERM", &child).await;
    let told = blocking(move || {
        let mut told = String::new();
        lines.read_to_string(&mut told).map(|_| told).unwrap()
    });
    let told = tokio::time::timeout(AGES, told).await.expect("the service does not end");
    assert_eq!(told.trim_start(), format!("Listening on {address}\nStopped\n"));
    assert!(child.wait().await.unwrap().success());
}

#[tokio::test]
async fn service_ends_although_a_request_does_not() {
    // No request reaches the database.
    let service = Running::start("mongodb://127.0.0.1:1").await;
    let mut stuck = TcpStream::connect(&service.address).await.unwrap();
    let head = "POST /accounts HTTP/1.1\r\nHost: bank\r\nContent-Type: application/json\r\nContent-Length: 100\r\n";
    stuck.write_all(format!("{head}Expect: 100-continue\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = [0; 25];
    // The service begins to read the body, which never arrives.
    tokio::time::timeout(AGES, stuck.read_exact(&mut answer)).await.expect("the request is not served").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    let begun = Instant::now();
    service.signal("-TERM").await;
    service.ended().await;
    let took = begun.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(20)).contains(&took), "{took:?}");
}

#[tokio::test]
async fn requests_fail_when_their_time_is_up() {
    let port = free_port().unwrap();
    let uri = format!("mongodb://127.0.0.1:{port}/?replicaSet=rs&serverSelectionTimeoutMS=500&timeoutMS=1000");
    let service = Running::start(&uri).await;
    assert_all_unavailable(&service).await;
    service.end("-TERM").await;

    let set = alone().await;
    let service = Running::start(&format!("{}&timeoutMS=1000", set.uri())).await;
    let answers = async { while service.get("/totals").await.0 != 200 {} };
    tokio::time::timeout(AGES, answers).await.expect("the service does not answer");
    set.stop_process(0).unwrap();
    assert_all_unavailable(&service).await;
    set.continue_process(0).unwrap();
    let answers = async { while service.get("/totals").await.0 != 200 {} };
    tokio::time::timeout(AGES, answers).await.expect("the service does not answer again");
    service.end("-TERM").await;
}

/// Asserts that all requests that need the database fail in time.
async fn assert_all_unavailable(service: &Running) {
    let unavailable = (503, "the database cannot serve the request".to_owned());
    let begun = Instant::now();
    assert_eq!(service.get("/accounts/Ann").await, unavailable);
    assert_eq!(service.get("/totals").await, unavailable);
    assert_eq!(service.post("/accounts", json!({ "_id": "b", "owner": "Bob", "balance": 1 })).await, unavailable);
    assert_eq!(service.post("/transfers", json!({ "from": "a", "to": "b", "amount": 1 })).await, unavailable);
    // Without `timeoutMS`, each request may take 30 seconds.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn service_is_as_long_as_its_documentation_says() {
    let lines = include_str!("../../service.rs").lines().count();
    assert!(lines <= 170, "{lines}");
    let stated = format!("a whole service in {lines} lines");
    assert!(include_str!("../../../README.md").contains(&stated), "README.md does not say: {stated}");
}

#[tokio::test]
async fn top_shows_its_demo_in_any_width() {
    for width in ["20", "80", "200"] {
        let output = example("top").args(["--interval", "50", "--width", width]).output().await.unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        assert!(text.lines().all(|line| line.len() <= width.parse().unwrap()), "{text}");
        assert!(text.contains("127.0.0"), "{text}");
    }
}

#[tokio::test]
async fn top_says_which_service_does_not_answer() {
    let port = free_port().unwrap();
    let address = format!("127.0.0.1:{port}");
    let output = example("top").args(["--service", &address]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(&format!("the service at {address}")), "{told}");
}

#[tokio::test]
async fn top_ends_although_its_service_hangs() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut top = example("top").args(["--json", "--interval", "10", "--service", &address]).spawn().unwrap();
    let (mut first, _) = listener.accept().await.unwrap();
    assert!(first.read(&mut [0; 1_024]).await.unwrap() > 0, "no request");
    first.write_all(b"HTTP/1.0 200 OK\r\n\r\n[]").await.unwrap();
    drop(first);
    let _hanging = listener.accept().await.unwrap();
    send("-TERM", &top).await;
    let ended = tokio::time::timeout(AGES, top.wait()).await.expect("top ignores the signal").unwrap();
    assert!(ended.success(), "{ended}");
}
