//! The client and its process: sockets, threads and forks.
//!
//! A forked child starts with one thread, whatever the other tests are doing, so the tests count threads and sockets in
//! a child.
#![allow(unsafe_code, reason = "only the operating system's interface forks")]

use std::fs;
use std::time::Duration;

use bson::rawdoc;
use wharf::client::TransactionOptions;
use wharf::single::Client;
use wharf::{Operation, ReadPreference, ReadPreferenceMode};
use wharf_testbed::mongod::{self, Mongod, MongodOptions};
use wharf_testbed::replica_set;

/// The operating system kills a child after this many seconds.
const DEADLINE: libc::c_uint = 30;

/// Runs a function in a forked child, and fails if it panics there.
fn in_child(run: impl FnOnce()) {
    // SAFETY: only this thread continues in the child. It calls nothing but `run` and `_exit` and never returns. The C
    // library keeps its own locks (`malloc`) usable in the child.
    let pid = unsafe { libc::fork() };
    assert_ne!(pid, -1, "fork failed");
    if pid == 0 {
        // SAFETY: the signal has no handler, so it terminates the process.
        unsafe { libc::alarm(DEADLINE) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        // SAFETY: `_exit` may be called at any time.
        unsafe { libc::_exit(if outcome.is_ok() { 0 } else { 99 }) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call. `pid` is this process's child.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "waitpid failed");
    assert!(libc::WIFEXITED(status), "the child hung until signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child has failed: see its output");
}

fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns the number of TCP sockets. tokio's own socket is a Unix domain socket, so it is not counted.
fn sockets() -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let inodes: Vec<_> = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(9)).collect();
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = open.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()));
    let is_tcp = |target: &String| {
        let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(&inode))
    };
    targets.filter(is_tcp).count()
}

fn ping(client: &Client) {
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
}

#[test]
fn client_has_one_socket_for_each_server_and_no_thread() {
    let set = replica_set::shared().unwrap();
    let uri = format!("{}&compressors=zstd", set.uri());
    in_child(|| {
        let before = sockets();
        let client = Client::from_uri(&uri).unwrap();
        assert_eq!((threads(), sockets()), (1, before), "nothing happens before the first use");
        ping(&client);
        assert_eq!((threads(), sockets() - before), (1, set.addresses().len()));
        let preference = ReadPreference::new(ReadPreferenceMode::Nearest);
        for _ in 0..20 {
            let list = rawdoc! { "listCollections": 1 };
            client.run(Operation::read("admin", &list).read_preference(&preference)).unwrap();
        }
        let mut session = client.start_session().run().unwrap();
        let touch = rawdoc! { "find": "nothing" };
        session.with_transaction(|session| session.run(Operation::read("single", &touch)).map(drop)).unwrap();
        drop(session);
        // The reply is large enough to be decompressed on a separate thread.
        let text = "many words ".repeat(200_000);
        let echo =
            rawdoc! { "aggregate": 1, "pipeline": [{ "$documents": [{ "text": text.as_str() }] }], "cursor": {} };
        let found = client.cursor(Operation::read("admin", &echo)).run().unwrap().next().unwrap().unwrap();
        assert_eq!(found.get_str("text").unwrap().len(), text.len());
        assert_eq!((threads(), sockets() - before), (1, set.addresses().len()));
        assert!(client.shutdown(Duration::from_secs(5)).unwrap());
        assert_eq!((threads(), sockets()), (1, before), "all are closed");
    });
}

#[test]
fn password_and_name_of_a_host_need_no_thread() {
    let server = Mongod::start(MongodOptions { auth: true, ..MongodOptions::default() }).unwrap();
    let first = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    let create = rawdoc! { "createUser": "app", "pwd": "pencil", "roles": ["root"] };
    first.run_command("admin", &create).unwrap();
    in_child(|| {
        let client = Client::from_uri(&format!("mongodb://app:pencil@localhost:{}", server.port())).unwrap();
        let list = rawdoc! { "listDatabases": 1 };
        client.run(Operation::read("admin", &list)).unwrap();
        assert_eq!(threads(), 1);
        let wrong = Client::from_uri(&format!("mongodb://app:pen@localhost:{}", server.port())).unwrap();
        let refused = wrong.run(Operation::read("admin", &list)).unwrap_err();
        assert!(refused.to_string().contains("Authentication failed"), "{refused}");
        assert_eq!(threads(), 1);
    });
}

#[test]
fn forked_child_starts_anew_and_the_parent_continues() {
    let server = mongod::shared().unwrap();
    let opened = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = opened.clone();
    let subscriber = move |event: &wharf::PoolEvent| {
        let is_created = matches!(event, wharf::PoolEvent::ConnectionCreated { .. });
        counted.fetch_add(usize::from(is_created), std::sync::atomic::Ordering::Relaxed);
    };
    let client = super::builder(&format!("mongodb://{}", server.address())).subscriber(subscriber).build().unwrap();
    let documents: Vec<_> = (0..10).map(|number| rawdoc! { "_id": number }).collect();
    let _ = client.run(Operation::write("single", &rawdoc! { "drop": "forks" }));
    client.insert("single", "forks", &documents).run().unwrap();
    let find = rawdoc! { "find": "forks", "batchSize": 4 };
    let mut cursor = client.cursor(Operation::read("single", &find)).run().unwrap();
    for _ in 0..3 {
        in_child(|| {
            assert_eq!(client.status().topology_type, "Unknown");
            ping(&client);
            let own = client.cursor(Operation::read("single", &find)).run().unwrap();
            assert_eq!(own.count(), 10);
            // The child cannot use the parent's cursor, and the child's copy of it does not affect the parent.
            cursor.next_document().unwrap();
            while matches!(cursor.next(), Some(Ok(_))) {}
            assert!(client.shutdown(Duration::from_secs(5)).unwrap());
        });
    }
    ping(&client);
    let rest = cursor.by_ref().map(Result::unwrap).count();
    assert_eq!(rest, 10, "the parent's cursor is where it was");
    assert_eq!(opened.load(std::sync::atomic::Ordering::Relaxed), 1, "the parent's connection is as it was");
}

#[test]
fn client_that_was_never_used_can_be_used_by_parent_and_child() {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    in_child(|| ping(&client));
    ping(&client);
    in_child(|| ping(&client));
    ping(&client);
}

#[test]
fn child_that_drops_its_parents_session_leaves_the_transaction_alone() {
    let set = replica_set::shared().unwrap();
    let client = Client::from_uri(&set.uri()).unwrap();
    let _ = client.run(Operation::write("single", &rawdoc! { "drop": "inherited" }));
    client.run(Operation::write("single", &rawdoc! { "create": "inherited" })).unwrap();
    let mut session = client.start_session().run().unwrap();
    session.start_transaction(TransactionOptions::default()).unwrap();
    let insert = rawdoc! { "insert": "inherited", "documents": [{ "n": 1 }] };
    session.run(Operation::write("single", &insert)).unwrap();
    let mut session = Some(session);
    in_child(|| {
        ping(&client);
        drop(session.take());
        ping(&client);
        assert!(client.shutdown(Duration::from_secs(5)).unwrap());
    });
    session.unwrap().commit_transaction().unwrap();
    let count = rawdoc! { "count": "inherited", "query": { "n": 1 } };
    assert_eq!(client.run(Operation::read("single", &count)).unwrap().get_i32("n").unwrap(), 1);
}
