//! The example monitor: what becomes of the pool when its server goes and comes back.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use super::*;

#[tokio::test]
async fn without_a_server_it_shows_a_failure_and_the_recovery_by_itself() {
    let output = run(example("monitor")).await;
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    let events: Vec<_> = stdout.lines().filter(|line| line.starts_with("Pool")).collect();
    assert_eq!(events, ["PoolReady", "PoolCleared", "PoolReady"], "{stdout}");
    assert!(stdout.ends_with("The pool is closed.\n"), "{stdout}");
}

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(uri: &str) -> Self {
        let mut command = tokio::process::Command::from(example("monitor"));
        command.env("MONGODB_URI", uri).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The lines up to the one that begins so.
    async fn until(&mut self, start: &str) -> Vec<String> {
        let mut seen = Vec::new();
        tokio::time::timeout(AGES, async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                seen.push(line);
                if seen.last().unwrap().starts_with(start) {
                    return;
                }
            }
            panic!("no {start:?} in {seen:?}");
        })
        .await
        .unwrap_or_else(|_| panic!("no {start:?} in time"));
        seen
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_pool_is_cleared_when_its_server_fails_and_ready_when_it_is_back() {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let uri = format!("mongodb://{}/?heartbeatFrequencyMS=500&connectTimeoutMS=1000", server.address());
    let mut running = Running::start(&uri);
    assert_eq!(running.until("PoolReady").await, ["PoolReady"]);

    server.faults().cut_replies_after(Some(0));
    running.until("PoolCleared").await;
    // It goes on asking, and a pool that is paused is not announced as cleared once more.
    let refused = server.counters().connections_opened + 2;
    let opens = async {
        while server.counters().connections_opened < refused {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(AGES, opens).await.expect("the monitor has given up");
    server.faults().clear();
    let since = running.until("PoolReady").await;
    assert!(!since.iter().any(|line| line == "PoolCleared"), "{since:?}");

    let id = running.child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    assert_eq!(running.until("The pool is closed.").await.last().unwrap(), "The pool is closed.");
    let mut stderr = String::new();
    running.child.stderr.take().unwrap().read_to_string(&mut stderr).await.unwrap();
    assert!(running.child.wait().await.unwrap().success(), "{stderr}");
}

#[tokio::test]
async fn a_monitor_does_not_authenticate() {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    // Nobody is let in here, so that a monitor that tried would never see the server answer.
    let mut running = Running::start(&format!("mongodb://app:hidden@{}/", server.address()));
    assert_eq!(running.until("PoolReady").await, ["PoolReady"]);
    let refused = running.until("PoolCleared").await;
    assert!(!refused.iter().any(|line| line.contains("hidden")), "{refused:?}");
}
