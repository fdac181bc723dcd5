//! Cursors of the client on a single thread: sharing the client, and cleaning up after dropped cursors.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use tokio::time::Instant;
use wharf_testbed::scripted::{Answer, name};

use super::tests::{
    PRIMARY_AND_SECONDARY, World, answer, answer_of_query, balanced, close, is_hello, ping, replica_set,
};
use super::{Client, Cursor};
use crate::client::{ClientError, Operation};
use crate::endpoint::options::{ReadPreference, ReadPreferenceMode};

/// Drops the value inside a runtime, where no cleanup is possible. Returns how long the cleanup at the end of the call
/// takes.
fn time_to_drop<T>(client: &Client, value: T) -> Duration {
    let begun = client.run_on_driver(async { Instant::now() }).unwrap();
    client.drive(async { drop(value) }).unwrap();
    client.run_on_driver(async { begun.elapsed() }).unwrap()
}

#[test]
fn dropped_cursors_of_a_dark_server_share_one_time_limit() {
    for (connect_timeout, expected) in [(1_000, 1_000), (60_000, 10_000), (0, 10_000)] {
        let world = World::new();
        let kinds = PRIMARY_AND_SECONDARY;
        let ([primary, _secondary], addresses) = replica_set(&world, kinds, |place, command, _, hello| {
            hello.unwrap_or_else(|| match name(command).as_str() {
                "killCursors" if place == 1 => Answer::Hang,
                _ => answer_of_query(command),
            })
        });
        let client = world.client(&format!("mongodb://{addresses}/?replicaSet=rs&connectTimeoutMS={connect_timeout}"));
        let open = |mode| {
            let preference = ReadPreference::new(mode);
            let find = rawdoc! { "find": "things" };
            client.cursor(Operation::read("test", &find).read_preference(&preference)).run().unwrap()
        };
        let mut cursors: Vec<_> = (0..5).map(|_| open(ReadPreferenceMode::Secondary)).collect();
        cursors.push(open(ReadPreferenceMode::Primary));
        let took = time_to_drop(&client, cursors);
        assert!(close(&[took.as_millis()], &[expected]), "{took:?}");
        let closed = primary.times(|command| name(command) == "killCursors");
        assert!(close(&closed, &[0]), "the other server does not wait: {closed:?}");
        ping(&client).unwrap();
    }
}

/// The query of a tailable cursor.
fn tail(awaits: bool) -> RawDocumentBuf {
    rawdoc! { "find": "things", "tailable": true, "awaitData": awaits }
}

/// A reply to a query, or to a `getMore`.
fn batch(command: &Document, id: i64, documents: &[Document]) -> Answer {
    let field = if name(command) == "find" { "firstBatch" } else { "nextBatch" };
    Answer::Reply(doc! { "ok": 1, "cursor": { "id": id, "ns": "test.things", field: documents } })
}

#[test]
fn other_threads_use_the_client_while_an_iterator_waits_for_a_document() {
    for awaits in [false, true] {
        let world = World::new();
        let has_pinged = Arc::new(AtomicBool::new(false));
        let (asked, has_asked) = mpsc::channel();
        let server = world.server(move |command, number| match name(command).as_str() {
            "find" => batch(command, 7, &[]),
            // If no other thread gets a turn, the cursor ends without a document.
            "getMore" if number >= 5_000 => batch(command, 0, &[]),
            "getMore" if has_pinged.load(Ordering::SeqCst) => batch(command, 0, &[doc! { "_id": 1 }]),
            "getMore" => {
                let _ = asked.send(());
                batch(command, 7, &[])
            }
            "ping" => {
                has_pinged.store(true, Ordering::SeqCst);
                answer(command)
            }
            _ => answer(command),
        });
        let client = world.client(&format!("mongodb://{}", server.server.address()));
        let mut cursor = client.cursor(Operation::read("test", &tail(awaits))).run().unwrap();
        let waiting = thread::spawn(move || cursor.next());
        has_asked.recv().unwrap();
        ping(&client).unwrap();
        let document = waiting.join().unwrap().expect("another thread has used the client").unwrap();
        assert_eq!(document.get_i32("_id").unwrap(), 1);
    }
}

#[test]
fn time_limit_of_an_iteration_spans_its_batches() {
    let world = World::new();
    let server = world.server(|command, number| match name(command).as_str() {
        "find" => batch(command, 7, &[]),
        "getMore" if number >= 50 => batch(command, 0, &[]),
        "getMore" => Answer::After(Duration::from_millis(300), Box::new(batch(command, 7, &[]))),
        _ => answer(command),
    });
    let client = world.client(&format!("mongodb://{}/?timeoutMS=1000", server.server.address()));
    let mut cursor = client.cursor(Operation::read("test", &tail(false))).run().unwrap();
    let error = cursor.next_document().unwrap_err();
    assert!(error.is_timeout(), "{error}");
    let fetched = server.times(|command| name(command) == "getMore");
    assert!(close(&fetched, &[0, 300, 600, 900]), "{fetched:?}");
}

#[test]
fn options_of_any_query_apply_to_its_further_batches() {
    let world = World::new();
    let asked: Arc<Mutex<Vec<Document>>> = Arc::default();
    let seen = asked.clone();
    let server = world.server(move |command, _| match name(command).as_str() {
        "find" => batch(command, 7, &[]),
        "getMore" => {
            seen.lock().unwrap().push(command.clone());
            batch(command, 0, &[doc! { "_id": 1 }])
        }
        _ => answer(command),
    });
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    let query = tail(true);
    let query = client.cursor(Operation::read("test", &query));
    let cursor = query.with(|opening| opening.batch_size(3).max_await_time(Duration::from_millis(200))).run().unwrap();
    assert_eq!(cursor.count(), 1);
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].get_i32("batchSize").unwrap(), asked[0].get_i64("maxTimeMS").unwrap()), (3, 200));
}

#[test]
fn cursor_is_closed_once_and_within_the_given_limit() {
    for (hangs, expected) in [(true, 300), (false, 0)] {
        let world = World::new();
        let server = world.server(move |command, _| match name(command).as_str() {
            "killCursors" if hangs => Answer::Hang,
            _ => answer_of_query(command),
        });
        let client = world.client(&format!("mongodb://{}/?timeoutMS=5000", server.server.address()));
        let cursor = client.cursor(Operation::read("test", &rawdoc! { "find": "things" })).run().unwrap();
        let now = || client.run_on_driver(async { Instant::now() }).unwrap();
        let begun = now();
        cursor.close_within(Duration::from_millis(300));
        let took = now() - begun;
        assert!(close(&[took.as_millis()], &[expected]), "{took:?}");
        assert_eq!(server.times(|command| name(command) == "killCursors").len(), 1);
    }
}

/// Load Balancers, "Behaviour With Cursors".
#[test]
fn balanced_cursor_whose_fetch_failed_keeps_its_connection_until_it_is_dropped() {
    for (is_lost, closes) in [(true, false), (true, true), (false, false), (false, true)] {
        let world = World::new();
        let server = world.server(move |command, _| match name(command).as_str() {
            "getMore" if is_lost => Answer::Close,
            "getMore" => Answer::Reply(doc! { "ok": 0, "code": 100, "errmsg": "refused" }),
            _ if is_hello(command) => balanced(),
            _ => answer_of_query(command),
        });
        let client = world.client(&format!("mongodb://{}/?loadBalanced=true", server.server.address()));
        let in_use = || client.status().servers[0].pool.as_ref().unwrap().in_use;
        let closed = || server.times(|command| name(command) == "killCursors").len();
        let mut cursor = client.cursor(Operation::read("test", &rawdoc! { "find": "things" })).run().unwrap();
        cursor.next().unwrap().unwrap();
        cursor.next().unwrap().unwrap_err();
        assert!(cursor.next().is_none() && cursor.is_over());
        // If closing the cursor had been left to the next call, this call would close it before returning.
        ping(&client).unwrap();
        assert_eq!((in_use(), closed()), (1, 0));
        if closes {
            cursor.close_within(Duration::from_millis(300));
        } else {
            drop(cursor);
        }
        assert_eq!((in_use(), closed()), (0, usize::from(!is_lost)));
    }
}

/// A value whose destructor drops a cursor, and then uses the client.
struct Last {
    client: Client,
    cursor: Option<Cursor>,
    outcome: mpsc::Sender<Result<(), ClientError>>,
}

impl Drop for Last {
    fn drop(&mut self) {
        drop(self.cursor.take());
        self.outcome.send(ping(&self.client)).unwrap();
    }
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

// On other platforms the order of these destructors may differ.
#[cfg(target_os = "linux")]
#[test]
fn call_by_a_destructor_at_the_end_of_a_thread_fails_and_what_it_leaves_is_done_later() {
    let (outcome, outcomes) = mpsc::channel();
    let ending = thread::spawn(move || {
        // The thread-local value that is registered first is destroyed last, after tokio's values.
        LAST.with_borrow_mut(|last| *last = None);
        let world = World::new();
        let server = world.server(|command, _| answer_of_query(command));
        let client = world.client(&format!("mongodb://{}", server.server.address()));
        let cursor = client.cursor(Operation::read("test", &rawdoc! { "find": "things" })).run().unwrap();
        LAST.set(Some(Last { client: client.clone(), cursor: Some(cursor), outcome }));
        (client, server)
    });
    let (client, server) = ending.join().unwrap();
    let error = outcomes.recv().unwrap().unwrap_err();
    assert!(matches!(error, ClientError::EventLoop { .. }), "{error}");
    assert_eq!(server.times(|command| name(command) == "killCursors").len(), 0);
    ping(&client).unwrap();
    assert_eq!(server.times(|command| name(command) == "killCursors").len(), 1);
}
