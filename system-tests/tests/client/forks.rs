//! A client in a forked child of the process that has used it.
#![cfg(unix)]
#![allow(unsafe_code, reason = "only the operating system's interface forks")]

use std::time::Duration;

use bson::rawdoc;
use wharf::{Client, Options};
use wharf_testbed::mongod;

use super::events::Events;

/// After this many seconds a child is ended.
const DEADLINE: libc::c_uint = 30;

/// Runs this in a forked child, and returns its exit code: 0 if `run` returns true, 99 if it panics.
fn in_child(run: impl FnOnce() -> bool) -> libc::c_int {
    // SAFETY: only this thread continues in the child. It calls nothing but `run` and `_exit` and never returns. The C
    // library keeps its own locks (`malloc`) usable in the child.
    let pid = unsafe { libc::fork() };
    assert_ne!(pid, -1, "fork failed");
    if pid == 0 {
        // SAFETY: the signal has no handler, so it ends the process.
        unsafe { libc::alarm(DEADLINE) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        // SAFETY: `_exit` may be called at any time.
        unsafe { libc::_exit(outcome.map_or(99, |passed| libc::c_int::from(!passed))) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call. `pid` is this process's child.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "waitpid failed");
    assert!(libc::WIFEXITED(status), "the child hung until signal {}", libc::WTERMSIG(status));
    libc::WEXITSTATUS(status)
}

#[test]
fn forked_child_monitors_anew_and_the_parent_continues() {
    let server = mongod::shared().unwrap();
    let events = Events::default();
    let options = Options::parse(&format!("mongodb://{}/?heartbeatFrequencyMS=500", server.address())).unwrap();
    let client = Client::builder(options).topology_subscriber(events.clone()).build().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let ping = rawdoc! { "ping": 1 };
    runtime.block_on(client.run_command("admin", &ping)).unwrap();
    for _ in 0..10 {
        // The monitor's threads are at work meanwhile.
        let code = in_child(|| {
            if client.status().topology_type != "Unknown" {
                return false;
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                client.run_command("admin", &ping).await.unwrap();
                let is_known = client.status().topology_type == "Single";
                is_known && client.shutdown(Duration::from_secs(5)).await
            })
        });
        assert_eq!(code, 0);
    }
    runtime.block_on(client.run_command("admin", &ping)).unwrap();
    assert_eq!(events.count("TopologyOpening"), 1);
    assert_eq!(events.count("ServerHeartbeatFailed"), 0, "the children have disturbed the monitor");

    runtime.block_on(client.shutdown(Duration::from_secs(5)));
    let code = in_child(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(client.run_command("admin", &ping)).is_err_and(|error| error.to_string().contains("shut down"))
    });
    assert_eq!(code, 0, "a client that is shut down stays so");
}
