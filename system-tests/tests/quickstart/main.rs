//! The examples as a user runs them: from the command line, against their embedded server, and against the servers that
//! a connection string names.
#![cfg(not(loom))]

mod monitor;
mod small;
#[cfg(unix)]
mod terminal;

use std::collections::BTreeMap;
use std::env::{self, consts::EXE_SUFFIX};
use std::fs;
use std::path::PathBuf;
use std::process::{self, Command, Output, Stdio};
use std::str;
use std::time::Duration;

use bson::oid::ObjectId;
use bson::{RawDocumentBuf, doc};
use serde_json::Value;
use wharf::Options;
use wharf_testbed::certificates::{Certificates, Pem};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};
use wharf_testbed::mongod::{Mongod, MongodOptions};

/// The time after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

fn quickstart() -> Command {
    example("quickstart")
}

/// Returns the command that runs an example, which `cargo test` builds before it runs any test.
fn example(name: &str) -> Command {
    let test = env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let example = profile.join("examples").join(format!("{name}{EXE_SUFFIX}"));
    assert!(
        example.is_file(),
        "{} does not exist: build it with `cargo build --examples`, not with `-p wharf-quickstart`, which leaves TLS out (`cargo test` without --test does it)",
        example.display()
    );
    let mut command = Command::new(example);
    command.env_remove("MONGODB_URI");
    command
}

/// A file that is removed after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("wharf-quickstart-{}-{name}", process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).unwrap()
}

/// Formats a number as the quickstart does.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

/// Returns the number in the row with this name.
fn number(output: &str, row: &str) -> u64 {
    let line = output.lines().find(|line| line.trim_start().starts_with(row));
    let line = line.unwrap_or_else(|| panic!("no row {row:?} in\n{output}"));
    let number = line.trim_start()[row.len()..].split_whitespace().next().unwrap();
    number.replace(',', "").parse().unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

fn assert_orderly(output: &Output) {
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("embedded in this process"), "{stdout}");
    assert!(stdout.contains("The client is closed, with 0 connections left."), "{stdout}");
    assert!(stdout.contains("The embedded server is stopped. Nothing is left."), "{stdout}");
    assert_eq!(number(stdout, "errors"), 0, "{stdout}");
    assert!(number(stdout, "operations") > 0, "{stdout}");
    assert_fits(stdout);
}

/// Asserts that each line fits an 80-column terminal, except lines that name a file.
fn assert_fits(stdout: &str) {
    for line in stdout.lines().filter(|line| !line.starts_with("Wrote ")) {
        assert!(line.chars().count() <= 80, "{} columns: {line:?}", line.chars().count());
    }
}

#[test]
fn run_ends_with_a_table_that_matches_its_events() {
    let file = Scratch::new("events.jsonl");
    let arguments = ["--seconds", "1", "--tasks", "50", "--max-pool-size", "20", "--events"];
    let output = quickstart().args(arguments).arg(&file.0).output().unwrap();
    assert_orderly(&output);
    let stdout = text(&output.stdout);
    for column in ["p50", "p90", "p99", "p99.9", "max", "operation", "its check-out", "at once"] {
        assert!(stdout.contains(column), "no {column} in\n{stdout}");
    }

    let text = fs::read_to_string(&file.0).unwrap();
    let (lines, bytes) = (grouped(text.lines().count()), grouped(text.len()));
    let told = format!("Wrote {lines} events ({bytes} bytes) to {}.\n", file.0.display());
    assert!(stdout.contains(&told), "no {told:?} in\n{stdout}");
    assert!(stdout.contains("50 tasks share 20 connections"), "{stdout}");
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kind = |event: &Value| event["type"].as_str().unwrap().to_owned();
    assert_eq!(kind(&events[0]), "PoolCreated");
    assert_eq!(events[0]["options"], serde_json::json!({ "maxPoolSize": 20 }));
    let mut counts = BTreeMap::<_, u64>::new();
    let mut states = BTreeMap::<u64, String>::new();
    for event in &events {
        let kind = kind(event);
        if let Some(connection_id) = event["connectionId"].as_u64() {
            let state = states.insert(connection_id, kind.clone());
            let is_next = match kind.as_str() {
                "ConnectionCreated" => state.is_none(),
                "ConnectionReady" => state.as_deref() == Some("ConnectionCreated"),
                "ConnectionCheckedOut" => {
                    matches!(state.as_deref(), Some("ConnectionReady" | "ConnectionCheckedIn"))
                }
                "ConnectionCheckedIn" => state.as_deref() == Some("ConnectionCheckedOut"),
                // The pool may be closed while it is opening a connection that callers are no longer waiting for.
                "ConnectionClosed" => {
                    matches!(state.as_deref(), Some("ConnectionCreated" | "ConnectionReady" | "ConnectionCheckedIn"))
                }
                _ => panic!("unexpected kind of event with a connectionId: {event}"),
            };
            assert!(is_next, "{event} after {state:?}");
        }
        *counts.entry(kind).or_default() += 1;
    }
    assert!(states.values().all(|last| last == "ConnectionClosed"), "{states:?}");
    assert_eq!(states.keys().copied().collect::<Vec<_>>(), (1..=states.len() as u64).collect::<Vec<_>>());
    assert_eq!(counts["PoolClosed"], 1);
    assert_eq!(counts["ConnectionCreated"], counts["ConnectionClosed"]);
    // The client checks out connections a few more times to end its sessions.
    let more = counts["ConnectionCheckedOut"] - number(stdout, "operations");
    assert!(more <= 10, "{more}\n{stdout}");
    assert_eq!(counts["ConnectionCheckedOut"], counts["ConnectionCheckedIn"]);
    assert_eq!(counts["ConnectionCreated"], number(stdout, "connections created"));
    for (kind, count) in counts {
        assert_eq!(number(stdout, &format!("{kind} ")), count, "{kind}");
    }
}

#[test]
fn json_is_all_of_standard_output() {
    let output = quickstart().args(["--seconds", "2", "--tasks", "50", "--json"]).output().unwrap();
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", text(&output.stderr));
    let lines: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [moments @ .., results] = &*lines else { panic!("{stdout}") };
    assert!(!moments.is_empty(), "{stdout}");
    for moment in moments {
        assert!(moment["operations_per_second"].as_u64().unwrap() > 0, "{moment}");
        let server = &moment["servers"][0];
        assert_eq!((&server["type"], &moment["errors"]), (&"Standalone".into(), &0.into()), "{moment}");
        assert!(server["in_use"].as_u64().unwrap() + server["idle"].as_u64().unwrap() > 0, "{moment}");
    }
    let events: Vec<_> = moments.iter().flat_map(|moment| moment["events"].as_array().unwrap()).collect();
    assert_eq!(events, results["events"].as_array().unwrap().iter().collect::<Vec<_>>());
    assert!(events[0].as_str().unwrap().ends_with("is Standalone, was Unknown"), "{stdout}");
    assert!(results["operations"].as_u64().unwrap() > 0 && results["errors"].as_object().unwrap().is_empty());
    assert!(results["p50"].as_f64().unwrap() <= results["longest"].as_f64().unwrap(), "{results}");
}

/// Returns a duration as the quickstart prints it.
fn duration(number: &str, unit: &str) -> Duration {
    let nanos = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => panic!("{number} {unit}"),
    };
    Duration::from_nanos((number.parse::<f64>().unwrap() * nanos) as u64)
}

/// Returns the longest time without a success.
fn gap(output: &str) -> Duration {
    let line = output.lines().find_map(|line| line.strip_prefix("longest time without a success"));
    let (number, unit) = line.unwrap_or_else(|| panic!("{output}")).trim().rsplit_once(' ').unwrap();
    duration(number.trim_start_matches("below "), unit)
}

/// Returns the times in the row with this name.
fn times(output: &str, row: &str) -> Vec<Duration> {
    let line = output.lines().find_map(|line| line.trim_start().strip_prefix(row));
    let words: Vec<_> = line.unwrap_or_else(|| panic!("no row {row:?} in\n{output}")).split_whitespace().collect();
    // "at once" is not a time.
    words
        .chunks(2)
        .map(|time| if time == ["at", "once"] { Duration::ZERO } else { duration(time[0], time[1]) })
        .collect()
}

#[test]
fn check_outs_take_no_longer_than_the_operations_that_they_are_a_part_of() {
    // Each operation is queued behind 63 others, so its check-out takes nearly all of its time.
    let output = quickstart().args(["--seconds", "1", "--tasks", "64", "--max-pool-size", "1"]).output().unwrap();
    assert_orderly(&output);
    let stdout = text(&output.stdout);
    let (operations, check_outs) = (times(stdout, "operation "), times(stdout, "its check-out"));
    assert_eq!((operations.len(), check_outs.len()), (5, 5), "{stdout}");
    assert!(operations.iter().zip(&check_outs).all(|(whole, part)| part <= whole), "{stdout}");
    assert_eq!(number(stdout, "repeated"), 0, "{stdout}");
    assert!(gap(stdout) < Duration::from_secs(1), "{stdout}");
}

#[test]
fn time_limit_of_the_connection_string_holds_for_the_first_command() {
    // The server accepts connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("mongodb://{}/?timeoutMS=200", silent.local_addr().unwrap());
    let output = quickstart().env("MONGODB_URI", uri).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the deployment cannot be used: ") && stderr.contains("timeoutMS (200 ms)"), "{stderr}");
}

/// Asserts that the command is refused with exit code 2 and a message that contains all of these parts.
fn assert_refused(command: &mut Command, parts: &[&str]) {
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "no {part:?} in {stderr:?}");
    }
}

#[test]
fn invalid_value_is_refused_with_the_allowed_range() {
    let refusals: [(&[&str], &[&str]); 5] = [
        (&["--max-connecting", "0"], &["--max-connecting", "must be at least 1, got 0"]),
        (&["--max-pool-size", "1048576"], &["--max-pool-size", "must be at most 1048575, got 1048576"]),
        (
            &["--min-pool-size", "5", "--max-pool-size", "4"],
            &["--min-pool-size", "must be at most maxPoolSize (4), got 5"],
        ),
        (&["--seconds", "0"], &["--seconds must be 1 to 86400, got \"0\""]),
        (&["--tasks", "many"], &["--tasks must be 1 to 1000000, got \"many\""]),
    ];
    for (arguments, parts) in refusals {
        assert_refused(quickstart().args(arguments), parts);
    }
}

#[test]
fn invalid_connection_string_is_refused_without_its_password() {
    let refusals: [(&str, &[&str]); 9] = [
        ("localhost:27017", &["scheme must be mongodb:// or mongodb+srv://"]),
        ("mongodb://user:secret@local@host", &["username or password"]),
        ("mongodb://user@localhost", &["password is required", "SCRAM"]),
        ("mongodb://user:secret@localhost/?authMechanism=GSSAPI", &["authMechanism GSSAPI is not supported"]),
        ("mongodb://user:secret@localhost/?authMechanism=SECRET", &["authMechanism"]),
        ("mongodb://user:secret@localhost:0", &["hosts must be host or host:port"]),
        ("mongodb://user:secret@localhost/?tlsCAFile=%2Fnone.pem", &["tlsCAFile", "/none.pem", "No such file"]),
        ("mongodb://user:secret@a,b/?loadBalanced=true", &["loadBalanced cannot be true with 2 hosts"]),
        (
            "mongodb://user:secret@localhost/?minPoolSize=5&maxPoolSize=4",
            &["minPoolSize must be at most maxPoolSize (4), got 5"],
        ),
    ];
    for (uri, parts) in refusals {
        assert_refused(quickstart().env("MONGODB_URI", uri), &[&["MONGODB_URI: "], parts].concat());
        let output = quickstart().env("MONGODB_URI", uri).output().unwrap();
        assert!(!text(&output.stderr).contains("secret"), "{}", text(&output.stderr));
    }
    let of_two = ["--mongod", "--replica-set"];
    assert_refused(quickstart().args(of_two), &["--mongod", "--replica-set", "cannot be used with"]);
    let smaller = ["--max-pool-size", "4"];
    let uri = "mongodb://localhost/?minPoolSize=5";
    let parts =
        ["--max-pool-size: ", "minPoolSize of MONGODB_URI", "minPoolSize must be at most maxPoolSize (4), got 5"];
    assert_refused(quickstart().args(smaller).env("MONGODB_URI", uri), &parts);
    let larger = ["--min-pool-size", "6"];
    let uri = "mongodb://localhost/?maxPoolSize=5";
    let parts = ["--min-pool-size: ", "minPoolSize must be at most maxPoolSize (5), got 6"];
    assert_refused(quickstart().args(larger).env("MONGODB_URI", uri), &parts);
}

/// Runs a command until it exits on its own.
async fn run(command: Command) -> Output {
    let mut command = tokio::process::Command::from(command);
    tokio::time::timeout(AGES, command.kill_on_drop(true).output()).await.expect("the example does not end").unwrap()
}

#[tokio::test]
async fn command_line_overrides_options_of_the_connection_string() {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let file = Scratch::new("uri-events.jsonl");
    let pool = "minPoolSize=3&maxPoolSize=7&maxConnecting=5&maxIdleTimeMS=60000";
    let uri =
        format!("mongodb://{}/?{pool}&appName=load&compressors=zlib&nonsense=1&ssl=true&ssl=false", server.address());
    let mut command = quickstart();
    let arguments = ["--seconds", "1", "--tasks", "20", "--max-pool-size", "9", "--events"];
    command.args(arguments).arg(&file.0).env("MONGODB_URI", uri);
    let output = run(command).await;
    // Two conflicting values are an error: the last value does not win.
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));

    let uri = format!("mongodb://{}/?{pool}&appName=load&compressors=zlib&nonsense=1", server.address());
    let mut command = quickstart();
    command.args(arguments).arg(&file.0).env("MONGODB_URI", uri);
    let output = run(command).await;
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert_eq!(number(stdout, "errors"), 0, "{stdout}");
    assert!(number(stdout, "operations") > 0, "{stdout}");
    assert!(stdout.contains(&format!("Server: {}, without TLS, from MONGODB_URI", server.address())), "{stdout}");
    assert!(stderr.contains("warning: MONGODB_URI: option \"nonsense\" is not supported; it is ignored"), "{stderr}");
    let events = fs::read_to_string(&file.0).unwrap();
    let created: Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    let expected = serde_json::json!({
        "maxPoolSize": 9, "minPoolSize": 3, "maxConnecting": 5, "maxIdleTimeMS": 60_000,
    });
    assert_eq!(created["options"], expected);
    let hello = server.counters().last_handshake.unwrap();
    let application = hello.get_document("client").unwrap().get_document("application").unwrap();
    assert_eq!(application.get_str("name").unwrap(), "load");
    assert_eq!(hello.get_array("compression").unwrap(), &["zlib".into()]);
}

/// The load continues while the primary of a replica set with three members is killed, and the table names the new
/// primary.
#[cfg(unix)]
#[test]
fn replica_set_is_started_and_its_loss_survived() {
    use std::io::{BufRead, BufReader, Read};

    let mut command = quickstart();
    command.args(["--replica-set", "--seconds", "86400", "--tasks", "8"]).env("MONGODB_URI", "mongodb://not.used");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    assert!(stdout.next().unwrap().starts_with("Server: replica set of three members"));
    let processes: BTreeMap<String, String> = stdout
        .by_ref()
        .take(3)
        .map(|line| {
            let (address, process) = line.trim().split_once(" (process ").unwrap_or_else(|| panic!("{line:?}"));
            (address.to_owned(), process.trim_end_matches(')').to_owned())
        })
        .collect();
    let signal = |signal: &str, process: &str| {
        assert!(Command::new("kill").args([signal, process]).status().unwrap().success(), "{signal} {process}");
    };
    // Each second there is a line for the load, and a line for each server. An operation may wait for the new primary.
    let mut primaries: Vec<String> = Vec::new();
    let mut shown = String::new();
    while primaries.len() < 2 {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "{shown}");
        shown.push_str(&line);
        let mut words = line.split_whitespace();
        if let (Some(address), Some("RSPrimary")) = (words.next(), words.next())
            && !primaries.iter().any(|known| known == address)
        {
            assert!(line.contains(" in use, "), "{line}");
            if primaries.is_empty() {
                signal("-KILL", &processes[address]);
            }
            primaries.push(address.to_owned());
        }
    }
    signal("-INT", &child.id().to_string());
    stderr.read_to_string(&mut shown).unwrap();
    let stdout: Vec<String> = stdout.collect();
    let stdout = stdout.join("\n");
    assert!(child.wait().unwrap().success(), "{stdout}\n{shown}");
    assert_eq!(number(&stdout, "errors"), 0, "{stdout}");
    assert!(number(&stdout, "operations") > 0, "{stdout}");
    assert_fits(&stdout);
    let in_table = |address: &str| {
        stdout.lines().find(|line| line.trim_start().starts_with(address)).unwrap_or_else(|| panic!("{stdout}"))
    };
    // Operations were in progress on the primary, and no operation succeeded before there was a new primary.
    assert!(number(&stdout, "repeated") > 0, "{stdout}");
    assert!(gap(&stdout) > Duration::from_secs(1), "{stdout}");
    assert!(in_table(&primaries[0]).contains("Unknown") && in_table(&primaries[1]).contains("RSPrimary"), "{stdout}");
    assert!(stdout.contains("All members are stopped and their folders removed."), "{stdout}");
}

#[tokio::test]
async fn load_balancer_is_used_as_one() {
    let service_ids = vec![ObjectId::new(), ObjectId::new()];
    let server = EmbeddedServer::start(EmbeddedOptions { service_ids, ..EmbeddedOptions::default() }).await.unwrap();
    let mut command = quickstart();
    let uri = format!("mongodb://{}/?loadBalanced=true", server.address());
    command.args(["--seconds", "1", "--tasks", "20"]).env("MONGODB_URI", uri);
    let output = run(command).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(number(text(&output.stdout), "errors"), 0);
    let counters = server.counters();
    assert_eq!((counters.commands("isMaster"), counters.commands("hello")), (0, counters.connections_opened));
}

#[tokio::test]
async fn mongod_with_users_and_tls_is_used_by_a_connection_string() {
    let certificates = Certificates::create().unwrap();
    let tls = certificates.of_mongod(false);
    let mongod = Mongod::start(MongodOptions { auth: true, tls: Some(tls), ..MongodOptions::default() }).unwrap();
    let authority = certificates.file(Pem::Authority).display().to_string().replace('/', "%2F");
    let uri = |user: &str| format!("mongodb://{user}localhost:{}/?tls=true&tlsCAFile={authority}", mongod.port());
    // The localhost exception allows creating the first user. The second user may only read.
    for (as_user, user, roles) in [
        ("", doc! { "createUser": "root", "pwd": "root" }, doc! { "role": "root", "db": "admin" }),
        ("root:root@", doc! { "createUser": "app", "pwd": "p@ss/word" }, doc! { "role": "read", "db": "test" }),
    ] {
        let mut create = user;
        create.insert("roles", vec![roles]);
        let pool = Options::parse(&uri(as_user)).unwrap().endpoint().unwrap().pool().build().unwrap();
        pool.ready();
        pool.run_command("admin", &RawDocumentBuf::try_from(create).unwrap()).await.unwrap();
    }

    let mut command = quickstart();
    command
        .args(["--seconds", "1", "--tasks", "20", "--max-pool-size", "4"])
        .env("MONGODB_URI", uri("app:p%40ss%2Fword@"));
    let output = run(command).await;
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert_eq!(number(stdout, "errors"), 0, "{stdout}");
    assert!(number(stdout, "operations") > 0, "{stdout}");
    assert!(stdout.contains("with TLS, from MONGODB_URI"), "{stdout}");
    assert!(stdout.contains("The client is closed, with 0 connections left.\nThe servers keep running."), "{stdout}");
    assert!(!format!("{stdout}{stderr}").contains("ss/word"), "{stdout}\n{stderr}");

    // The run fails at the start, before its duration matters.
    let mut command = quickstart();
    command.args(["--seconds", "86400"]).env("MONGODB_URI", uri("app:p%40ss%2Fwrong@"));
    let output = run(command).await;
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in ["the deployment cannot be used: ", "user \"app\" of database \"admin\"", "error 18"] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    assert!(!format!("{stdout}{stderr}").contains("ss/wrong"), "{stdout}\n{stderr}");
}

#[test]
fn unreachable_server_is_named() {
    let refusing = wharf_testbed::refusing::Refusing::new().unwrap();
    let port = refusing.address().port();
    let output = quickstart().env("MONGODB_URI", format!("mongodb://127.0.0.1:{port}")).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("the deployment cannot be used: ") && stderr.contains(&format!("127.0.0.1:{port}")),
        "{stderr}"
    );
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_run_early_in_the_same_order() {
    use std::io::{BufRead, BufReader, Read};

    let mut command = quickstart();
    command.args(["--seconds", "86400", "--tasks", "50"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    for part in ["/s", " in use, "] {
        line.clear();
        stderr.read_line(&mut line).unwrap();
        assert!(line.contains(part), "{line}");
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    // The remaining output is at most a few lines and fits into the pipe.
    stderr.read_to_string(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_orderly(&output);
    assert!(text(&output.stdout).contains("Ended early by Ctrl-C."), "{}", text(&output.stdout));
}
