//! The quickstart example as a user runs it: from the command line, against its embedded server.
#![cfg(not(loom))]

use std::collections::BTreeMap;
use std::env::{self, consts::EXE_SUFFIX};
use std::fs;
use std::path::PathBuf;
use std::process::{self, Command, Output, Stdio};
use std::str;

use serde_json::Value;

/// The example, which `cargo test` builds before it runs any test.
fn quickstart() -> Command {
    let test = env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).unwrap();
    let example = profile.join("examples").join(format!("quickstart{EXE_SUFFIX}"));
    assert!(
        example.is_file(),
        "{} is not there: build it with `cargo build --example quickstart` (`cargo test` without --test does it)",
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

/// The number in the row of this name.
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
    assert!(stdout.contains("The pool is closed, with 0 connections left."), "{stdout}");
    assert!(stdout.contains("The embedded server is stopped. Nothing is left."), "{stdout}");
    assert_eq!(number(stdout, "errors"), 0, "{stdout}");
    assert!(number(stdout, "operations") > 0, "{stdout}");
}

#[test]
fn a_run_ends_with_a_table_and_its_events_tell_the_same_story() {
    let file = Scratch::new("events.jsonl");
    let arguments = ["--seconds", "1", "--tasks", "50", "--max-pool-size", "20", "--events"];
    let output = quickstart().args(arguments).arg(&file.0).output().unwrap();
    assert_orderly(&output);
    let stdout = text(&output.stdout);
    for column in ["p50", "p90", "p99", "p99.9", "max", "check-out", "command"] {
        assert!(stdout.contains(column), "no {column} in\n{stdout}");
    }

    let events = fs::read_to_string(&file.0).unwrap();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
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
                // The pool may be closed while a connection is being opened that nobody waits for any more.
                "ConnectionClosed" => {
                    matches!(state.as_deref(), Some("ConnectionCreated" | "ConnectionReady" | "ConnectionCheckedIn"))
                }
                _ => panic!("an event of another kind has a connectionId: {event}"),
            };
            assert!(is_next, "{event} after {state:?}");
        }
        *counts.entry(kind).or_default() += 1;
    }
    assert!(states.values().all(|last| last == "ConnectionClosed"), "{states:?}");
    assert_eq!(states.keys().copied().collect::<Vec<_>>(), (1..=states.len() as u64).collect::<Vec<_>>());
    assert_eq!(counts["PoolClosed"], 1);
    assert_eq!(counts["ConnectionCreated"], counts["ConnectionClosed"]);
    assert_eq!(counts["ConnectionCheckedOut"], number(stdout, "operations"));
    assert_eq!(counts["ConnectionCheckedOut"], counts["ConnectionCheckedIn"]);
    assert_eq!(counts["ConnectionCreated"], number(stdout, "connections created"));
    for (kind, count) in counts {
        assert_eq!(number(stdout, &format!("{kind} ")), count, "{kind}");
    }
}

/// Refused with exit code 2 and a message that contains all of these.
fn assert_refused(command: &mut Command, parts: &[&str]) {
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "no {part:?} in {stderr:?}");
    }
}

#[test]
fn a_value_that_cannot_work_is_refused_with_what_is_allowed() {
    let refusals: [(&[&str], &[&str]); 5] = [
        (&["--max-connecting", "0"], &["--max-connecting", "is 0", "1 to 1048575"]),
        (&["--max-pool-size", "1048576"], &["--max-pool-size", "1048576", "0 (no limit) to 1048575"]),
        (&["--min-pool-size", "5", "--max-pool-size", "4"], &["--min-pool-size", "is 5", "0 to maxPoolSize (4)"]),
        (&["--seconds", "0"], &["--seconds", "'0'", "1..=86400"]),
        (&["--tasks", "many"], &["--tasks", "'many'"]),
    ];
    for (arguments, parts) in refusals {
        assert_refused(quickstart().args(arguments), parts);
    }
}

#[test]
fn a_connection_string_beyond_host_and_port_is_refused_without_repeating_it() {
    let supported = "supports mongodb://host:port";
    for (uri, part) in [
        ("mongodb+srv://secret.example.com", "does not begin with mongodb://"),
        ("mongodb://user:secret@localhost", "has a user name"),
        ("mongodb://localhost/?secret=true", "has options"),
        ("mongodb://localhost/secret", "has a database name"),
        ("mongodb://secret,localhost", "has several hosts"),
        ("mongodb://localhost:0", "host or host:port, where port is 1 to 65535"),
    ] {
        assert_refused(quickstart().env("MONGODB_URI", uri), &["MONGODB_URI", part, supported]);
        let output = quickstart().env("MONGODB_URI", uri).output().unwrap();
        assert!(!text(&output.stderr).contains("secret"));
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    // Bound and closed again, so that nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let output = quickstart().env("MONGODB_URI", format!("mongodb://127.0.0.1:{port}")).output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("cannot reach the server at 127.0.0.1:{port}: ")), "{stderr}");
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
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains(" in use, "), "{line}");
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    // The rest is a few lines at most, which fit the pipe.
    stderr.read_to_string(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_orderly(&output);
    assert!(text(&output.stdout).contains("Ended early by Ctrl-C."), "{}", text(&output.stdout));
}
