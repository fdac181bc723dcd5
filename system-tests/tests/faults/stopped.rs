//! A client whose process is stopped for longer than all its time limits: no operation fails.
#![cfg(unix)]

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use wharf::Options;
use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};

use super::load::Load;
use super::replica_set::{check, client};
use super::{blocking, within};

/// Tells the child which replica set to use.
const SET: &str = "WHARF_TEST_STOPPED_CLIENT_SET";
/// How long the client process is stopped. With [`LIMITS`], a server check takes at most 2.5 s, and a server selection
/// at most 5 s.
const STOPPED: Duration = Duration::from_secs(8);
const LIMITS: &str = "heartbeatFrequencyMS=500&connectTimeoutMS=2000&serverSelectionTimeoutMS=5000";
/// The child's message that its load is running.
const RUNS: &str = "the load runs";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_was_stopped_fails_no_operation() {
    within(STOPPED + Duration::from_secs(60), async {
        let set = blocking(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()).await;
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["stopped::in_a_process_of_its_own", "--exact", "--ignored", "--nocapture"]);
        child.env(SET, set.uri()).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = child.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut said = String::new();
        while !said.contains(RUNS) {
            assert_ne!(output.read_line(&mut said).await.unwrap(), 0, "the child has ended: {said}");
        }
        signal(&child, "STOP").await;
        // The process stays stopped for this long, which is the fault under test.
        tokio::time::sleep(STOPPED).await;
        signal(&child, "CONT").await;
        child.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
        output.read_to_string(&mut said).await.unwrap();
        let status = child.wait().await.unwrap();
        assert!(status.success(), "{said}");
        let line = said.lines().find(|line| line.starts_with("SIGSTOP")).unwrap();
        println!("{line}");
    })
    .await;
}

async fn signal(child: &Child, name: &str) {
    let pid = child.id().expect("the child is not waited for").to_string();
    let sent = Command::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", name, &pid]).status().await.unwrap();
    assert!(sent.success(), "SIG{name} is not sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs in a process that the test above starts and stops"]
async fn in_a_process_of_its_own() {
    let Ok(uri) = std::env::var(SET) else { return };
    let (client, events) = client(Options::parse(&format!("{uri}&maxPoolSize=32&{LIMITS}")).unwrap());
    let load = Load::start(&client).await;
    load.progress(1000).await;
    println!("{RUNS}");
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await.unwrap();
    within(Duration::from_secs(30), async {
        load.progress(1000).await;
        let outcome = load.stop().await;
        outcome.print("SIGSTOP and SIGCONT of the client", "");
        check(&outcome).await;
        // A reply that arrived in time counts, even though it is read after the time limit.
        assert_eq!(events.count("ServerHeartbeatFailed"), 0, "the servers have answered");
        let stall = outcome.longest_stall();
        assert!(stall > STOPPED - Duration::from_secs(1), "the client was not stopped: {outcome}");
        assert!(stall < STOPPED + Duration::from_secs(5), "{outcome}");
        assert!(client.shutdown(Duration::from_secs(5)).await);
    })
    .await;
}
