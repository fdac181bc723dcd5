//! The examples as a user runs them: the service against a mongod, its metrics, its dashboard and its end, and `top`.
#![cfg(unix)]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use wharf_servers::mongod::{Mongod, MongodOptions};
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
    async fn start(mongod: &Mongod) -> Self {
        let mut command = example("service");
        command.args(["--listen", "127.0.0.1:0"]).env("MONGODB_URI", format!("mongodb://{}", mongod.address()));
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

    /// Sends a signal, and asserts that the service ends by itself and leaves no connection.
    async fn end(mut self, signal: &str) {
        let id = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().await.unwrap().success());
        let status = tokio::time::timeout(AGES, self.child.wait()).await.expect("the service does not end").unwrap();
        assert!(status.success(), "{status}");
        assert_eq!(self.lines.next_line().await.unwrap().unwrap(), "Ended, with 0 connections left");
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

#[tokio::test]
async fn service_keeps_orders_and_shows_its_pool() {
    let mongod = Mongod::start(MongodOptions::default()).unwrap();
    let service = Running::start(&mongod).await;
    let (status, created) =
        request(&service.address, "POST", "/orders", &json!({ "item": "a \"crate\"" }).to_string()).await.unwrap();
    assert_eq!(status, 201, "{created}");
    let created: Value = serde_json::from_str(&created).unwrap();
    let (status, found) = service.get(&format!("/orders/{}", created["id"].as_str().unwrap())).await;
    assert_eq!((status, serde_json::from_str::<Value>(&found).unwrap()), (200, created));
    for missing in ["/orders/0123456789abcdef01234567", "/orders/x"] {
        assert_eq!(service.get(missing).await.0, 404, "{missing}");
    }

    let (status, scraped) = service.get("/metrics").await;
    assert_eq!(status, 200);
    let samples = samples(&scraped);
    let pool = format!("pool=\"{}\"", mongod.address());
    let value = |name: &str, label: &str| {
        let key = format!("{name}{{{pool}{label}}}");
        *samples.get(&key).unwrap_or_else(|| panic!("no {key} in\n{scraped}"))
    };
    assert_eq!(value("wharf_pool_ready", ""), 1.0);
    assert_eq!(value("wharf_pool_connections", ",state=\"idle\""), 1.0);
    assert_eq!(value("wharf_pool_connections", ",state=\"in_use\""), 0.0);
    assert_eq!(value("wharf_pool_connections_max", ""), 100.0);
    assert_eq!(value("wharf_pool_connections_created_total", ""), 1.0);
    assert_eq!(value("wharf_pool_check_outs_total", ",outcome=\"opened\""), 1.0);
    assert_eq!(value("wharf_pool_check_outs_total", ",outcome=\"hit\""), 2.0);
    assert_eq!(value("wharf_pool_check_outs_failed_total", ",reason=\"timeout\""), 0.0);
    // The buckets are cumulative, and the last one has all.
    assert_eq!(value("wharf_pool_wait_seconds_count", ",outcome=\"opened\""), 1.0);
    assert_eq!(value("wharf_pool_create_seconds_count", ""), 1.0);
    let infinite = |key: &str| key.starts_with("wharf_pool_create_seconds_bucket{") && key.contains("le=\"+Inf\"");
    assert_eq!(samples.iter().find(|(key, _)| infinite(key)).map(|(_, count)| *count), Some(1.0), "{scraped}");
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
    assert_eq!((rows[0].address.clone(), rows[0].hits, rows[0].others), (mongod.address().to_string(), 2, 1));

    let top = example("top").args(["--service", &service.address, "--interval", "10", "--width", "100"]).output().await;
    let top = String::from_utf8(top.unwrap().stdout).unwrap();
    assert!(top.starts_with("POOL ") && top.contains(&mongod.address().to_string()), "{top}");
    service.end("-TERM").await;
}

#[tokio::test]
async fn ctrl_c_ends_the_service_too_and_its_pool_fails_without_a_server() {
    let mongod = Mongod::start(MongodOptions::default()).unwrap();
    let service = Running::start(&mongod).await;
    mongod.stop().unwrap();
    assert_eq!(service.get("/orders/0123456789abcdef01234567").await.0, 503);
    let scraped = samples(&service.get("/metrics").await.1);
    let failed: Vec<_> = scraped
        .iter()
        .filter(|(name, _)| name.starts_with("wharf_pool_check_outs_failed") && name.contains("establish"))
        .collect();
    assert_eq!(failed.len(), 1, "{scraped:?}");
    assert_eq!(*failed[0].1, 1.0);
    service.end("-INT").await;
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
