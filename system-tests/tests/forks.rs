//! A client in a forked child of a process that used it.
//!
//! A child inherits every open socket of its process, so no other test may close a port and bind it again at the same
//! time.
#![cfg(unix)]
#![allow(unsafe_code, reason = "only the operating system's interface forks")]

#[path = "client/events.rs"]
#[allow(dead_code, reason = "the tests of monitoring use the rest")]
mod events;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::rawdoc;
use wharf::client::{CommandEvent, TransactionOptions};
use wharf::{Client, Operation, Options};
use wharf_testbed::{mongod, replica_set};

use self::events::Events;

/// The operating system kills a child after this many seconds.
const DEADLINE: libc::c_uint = 30;

/// Runs a function in a forked child, and returns its exit code: 0 if `run` returns true, 99 if it panics.
fn in_child(run: impl FnOnce() -> bool) -> libc::c_int {
    // SAFETY: only this thread continues in the child. It calls nothing but `run` and `_exit` and never returns. The C
    // library keeps its own locks (`malloc`) usable in the child.
    let pid = unsafe { libc::fork() };
    assert_ne!(pid, -1, "fork failed");
    if pid == 0 {
        // SAFETY: the signal has no handler, so it terminates the process.
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
        // The monitor's threads are running during the fork.
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

#[test]
fn child_that_drops_its_parents_session_leaves_the_transaction_alone() {
    let set = replica_set::shared().unwrap();
    // The count is an atomic, because a lock could be held by a thread that does not exist in the child.
    let aborts = Arc::new(AtomicU32::new(0));
    let seen = aborts.clone();
    let client = Client::builder(Options::parse(&set.uri()).unwrap())
        .command_subscriber(move |event: &CommandEvent| {
            if matches!(event, CommandEvent::Started(_)) && event.source().command_name == "abortTransaction" {
                seen.fetch_add(1, Ordering::SeqCst);
            }
        })
        .build()
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (ping, insert) = (rawdoc! { "ping": 1 }, rawdoc! { "insert": "inherited", "documents": [{ "n": 1 }] });
    runtime.block_on(async {
        let _ = client.run(Operation::write("sessions", &rawdoc! { "drop": "inherited" })).await;
        client.run(Operation::write("sessions", &rawdoc! { "create": "inherited" })).await.unwrap();
    });
    let mut session = client.start_session().into_future().into_inner().unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    runtime.block_on(client.run(Operation::write("sessions", &insert).session(&mut session))).unwrap();
    let mut session = Some(session);
    let code = in_child(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            client.run_command("admin", &ping).await.unwrap();
            drop(session.take());
            // If the child aborted the transaction in the background, it would send the abort during this time.
            for _ in 0..20 {
                client.run_command("admin", &ping).await.unwrap();
            }
            client.shutdown(Duration::from_secs(5)).await && aborts.load(Ordering::SeqCst) == 0
        })
    });
    assert_eq!(code, 0, "the child aborts a transaction");
    runtime.block_on(async {
        session.unwrap().commit_transaction().await.unwrap();
        let count = rawdoc! { "count": "inherited", "query": { "n": 1 } };
        assert_eq!(client.run(Operation::read("sessions", &count)).await.unwrap().get_i32("n").unwrap(), 1);
    });
}

#[test]
fn child_that_drops_its_parents_cursor_leaves_it_open() {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (ping, find) = (rawdoc! { "ping": 1 }, rawdoc! { "find": "cursors", "batchSize": 2 });
    let documents: Vec<_> = (0..6).map(|number| rawdoc! { "_id": number }).collect();
    let cursor = runtime.block_on(async {
        let _ = client.run(Operation::write("forks", &rawdoc! { "drop": "cursors" })).await;
        client.insert("forks", "cursors", &documents).await.unwrap();
        client.cursor(Operation::read("forks", &find)).await.unwrap()
    });
    let mut cursor = Some(cursor);
    let code = in_child(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            client.run_command("admin", &ping).await.unwrap();
            drop(cursor.take());
            // If the child closed the cursor in the background, it would send the command during this time.
            for _ in 0..20 {
                client.run_command("admin", &ping).await.unwrap();
            }
            client.shutdown(Duration::from_secs(5)).await
        })
    });
    assert_eq!(code, 0);
    let mut cursor = cursor.unwrap();
    let read = runtime.block_on(async {
        let mut read = 0;
        while cursor.next().await.unwrap().is_some() {
            read += 1;
        }
        read
    });
    assert_eq!(read, 6, "the child closes the cursor");
}

#[test]
fn siblings_and_their_parent_give_documents_different_ids() {
    let server = mongod::shared().unwrap();
    let client = Client::new(Options::parse(&format!("mongodb://{}", server.address())).unwrap()).unwrap();
    let documents = [rawdoc! { "n": 1 }, rawdoc! { "n": 2 }];
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // The children inherit identifier generators that have already been used.
    runtime.block_on(async {
        let _ = client.run(Operation::write("forks", &rawdoc! { "drop": "ids" })).await;
        client.insert("forks", "ids", &documents).await.unwrap();
    });
    for _ in 0..2 {
        let code = in_child(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { client.insert("forks", "ids", &documents).await.is_ok() })
        });
        assert_eq!(code, 0, "the child's identifiers were there before");
    }
    let all = rawdoc! { "find": "ids" };
    let ids = runtime.block_on(async {
        let mut cursor = client.cursor(Operation::read("forks", &all)).await.unwrap();
        let mut ids = Vec::new();
        while let Some(document) = cursor.next_document().await.unwrap() {
            ids.push(document.get_object_id("_id").unwrap().bytes());
        }
        ids
    });
    assert_eq!(ids.len(), 6);
    // The ids are compared without their seconds, because the processes may have inserted in different seconds.
    let processes: HashSet<_> = ids.iter().map(|id| &id[4..9]).collect();
    let within: HashSet<_> = ids.iter().map(|id| &id[4..]).collect();
    assert_eq!((processes.len(), within.len()), (3, 6), "the random value of each process, and the identifiers");
}
