//! The examples as a user runs them: the service on a replica set, its metrics, its dashboard, a failover and its end, and
//! `top`.
#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use wharf_servers::replica_set::{ReplicaSet, ReplicaSetOptions, shared};
use wharf_service::http::request;
use wharf_service::pools::PoolRow;

/// Ends a test that hangs.
const AGES: Duration = Duration::from_secs(60);

/// Returns the command of an example, which `cargo test` builds before it runs any test.
fn example(name: &str) -> Command {
    let test = env::current_exe().unwrap();
    let example: PathBuf = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(example.is_file(), "{} does not exist: build it with `cargo build --examples`", example.display());
    let mut command = Command::new(example);
    command.kill_on_drop(true).env_remove("MONGODB_URI");
    command
}

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: String,
}

impl Running {
    /// Starts the service on a port of its own.
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

    /// Returns the accounts of an owner: their balances by their identifiers.
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

    /// Sends a signal, and asserts that the service ends by itself and leaves no connection.
    async fn end(mut self, signal: &str) {
        let id = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().await.unwrap().success());
        let status = tokio::time::timeout(AGES, self.child.wait()).await.expect("the service does not end").unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(self.lines.next_line().await.unwrap().unwrap(), "Ended");
    }
}

/// Returns the samples of a scrape: each line's value by its name and labels.
fn samples(scraped: &str) -> BTreeMap<String, f64> {
    let lines = scraped.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line:?}")))
        })
        .collect()
}

/// Returns the names of metrics in a query.
fn queried(query: &str) -> impl Iterator<Item = &str> {
    let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("wharf_"))
}

/// Returns all queries of the dashboard.
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

/// Runs what blocks the thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_keeps_accounts_and_shows_its_pools() {
    let set = blocking(|| shared().unwrap()).await;
    let service = Running::start(&set.uri()).await;
    // Two further batches of 100, besides the first.
    for number in 0..250 {
        let account = json!({ "_id": format!("a{number}"), "owner": "Ann \"A\"", "balance": number });
        let (status, opened) = service.post("/accounts", account.clone()).await;
        assert_eq!((status, serde_json::from_str(&opened).ok()), (201, Some(account)), "{opened}");
    }
    let bobs = json!({ "_id": "b0", "owner": "Bob", "balance": 10 });
    assert_eq!(service.post("/accounts", bobs.clone()).await.0, 201);
    assert_eq!(service.post("/accounts", bobs).await, (409, "the account exists already".to_owned()));
    let anns = "Ann%20%22A%22";
    let accounts = service.accounts(anns).await;
    assert!(accounts.len() == 250 && (0..250).all(|number| accounts[&format!("a{number}")] == number), "{accounts:?}");
    assert_eq!(service.accounts("Eve").await.len(), 0);

    let transfer = |from: &str, to: &str, amount: i64| json!({ "from": from, "to": to, "amount": amount });
    assert_eq!(service.post("/transfers", transfer("a249", "b0", 5)).await, (204, String::new()));
    for (refused, reason) in [
        (transfer("a1", "b0", 2), "there is no such account, or too little on it"),
        (transfer("a249", "nobody", 1), "there is no such account, or too little on it"),
        (transfer("a249", "b0", 0), "the amount must be positive"),
    ] {
        assert_eq!(service.post("/transfers", refused.clone()).await, (422, reason.to_owned()), "{refused}");
    }
    let accounts = service.accounts(anns).await;
    assert_eq!((accounts["a1"], accounts["a249"], service.accounts("Bob").await["b0"]), (1, 244, 15));
    let totals: Value = serde_json::from_str(&service.get("/totals").await.1).unwrap();
    let expected = json!([
        { "_id": "Ann \"A\"", "accounts": 250, "balance": 250 * 249 / 2 - 5 },
        { "_id": "Bob", "accounts": 1, "balance": 15 },
    ]);
    assert_eq!(totals, expected);

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
    // The buckets are cumulative, and the last one has all.
    assert_eq!(value("wharf_pool_wait_seconds_count", ",outcome=\"opened\""), 1.0);
    assert_eq!(value("wharf_pool_create_seconds_count", ""), 1.0);
    assert_eq!(value("wharf_pool_create_seconds_bucket", ",le=\"+Inf\""), 1.0);
    let bounds = ["5e-5", "0.0001", "0.00025", "0.0005", "0.001", "0.005", "0.01", "0.05", "0.1", "0.5", "1.0", "+Inf"];
    let counts = bounds.map(|bound| value("wharf_pool_create_seconds_bucket", &format!(",le=\"{bound}\"")));
    assert!(counts.is_sorted(), "{counts:?}");
    let created = value("wharf_pool_create_seconds_sum", "");
    assert!(created > 0.0 && created < AGES.as_secs_f64(), "{created}");
    assert!(scraped.contains("# TYPE wharf_pool_create_seconds histogram"), "{scraped}");
    // The stages of a plain TCP connection, and no others.
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

/// Money moves from one account to another while the primary is killed: no request fails, and each transfer and each new
/// account that was acknowledged is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_survives_the_loss_of_its_primary() {
    const TASKS: usize = 16;
    const BEFORE: i64 = 20;
    const AFTER: i64 = 20;
    let set = blocking(|| Arc::new(ReplicaSet::start(ReplicaSetOptions::default()).unwrap())).await;
    let service = Arc::new(Running::start(&set.uri()).await);
    let killed = Arc::new(Barrier::new(TASKS + 1));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (service, killed) = (service.clone(), killed.clone());
        tasks.spawn(async move {
            let open = async |id: String| {
                let account = json!({ "_id": id, "owner": format!("owner{task}"), "balance": 1_000 });
                let (status, body) = service.post("/accounts", account).await;
                assert_eq!(status, 201, "{body}");
            };
            let (from, to) = (format!("from{task}"), format!("to{task}"));
            open(from.clone()).await;
            open(to.clone()).await;
            for number in 0..BEFORE + AFTER {
                if number == BEFORE {
                    // From here on, requests run while the primary is killed.
                    killed.wait().await;
                }
                let (status, body) = service.post("/transfers", json!({ "from": from, "to": to, "amount": 1 })).await;
                assert_eq!(status, 204, "{body}");
                open(format!("{task}:{number}")).await;
                assert_eq!(service.accounts(&format!("owner{task}")).await.len() as i64, 3 + number);
            }
        });
    }
    killed.wait().await;
    let cluster = set.clone();
    blocking(move || cluster.kill(cluster.primary().unwrap().unwrap()).unwrap()).await;
    let all = async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    };
    tokio::time::timeout(2 * AGES, all).await.expect("requests hang");
    for task in 0..TASKS {
        let accounts = service.accounts(&format!("owner{task}")).await;
        let balance = |name: &str| accounts[&format!("{name}{task}")];
        assert_eq!((balance("from"), balance("to")), (1_000 - BEFORE - AFTER, 1_000 + BEFORE + AFTER));
        assert_eq!(accounts.len() as i64, 2 + BEFORE + AFTER);
    }
    Arc::into_inner(service).unwrap().end("-INT").await;
}

#[test]
fn service_is_as_long_as_its_documentation_says() {
    let lines = include_str!("../../service.rs").lines().count();
    assert!(lines <= 206, "{lines}");
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
    // The port was bound and is closed again, so that nothing listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let output = example("top").args(["--service", &address]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(&format!("the service at {address}")), "{told}");
}
