//! The `timeoutMS` of a call includes the wait for calls on other threads, and the cleanup at the end of the call.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use tokio::time::Instant;
use wharf_testbed::scripted::{Answer, name};

use super::tests::{Server, World, answer, close, ping};
use super::{Client, Cursor};
use crate::client::{ClientError, Operation, TransactionOptions, WatchTarget};

/// The target of the change streams.
const THINGS: WatchTarget<'static> = WatchTarget::Collection("test", "things");

/// Starts a server that does not answer anything while it is dark. Its cursors are never exhausted.
fn server_that_may_be_dark(world: &World) -> (Server, Arc<AtomicBool>) {
    let is_dark = Arc::new(AtomicBool::new(false));
    let dark = is_dark.clone();
    let server = world.server(move |command, _| {
        let batch = match name(command).as_str() {
            _ if dark.load(Ordering::SeqCst) => return Answer::Hang,
            "find" | "aggregate" => "firstBatch",
            "getMore" => "nextBatch",
            _ => return answer(command),
        };
        let cursor = doc! { "id": 7_i64, "ns": "test.things", batch: [{ "_id": { "token": 1 } }] };
        Answer::Reply(doc! { "ok": 1, "cursor": cursor })
    });
    (server, is_dark)
}

/// Runs a call. Returns how many milliseconds it took, and its output.
fn time<T>(client: &Client, call: impl FnOnce() -> T) -> (u128, T) {
    let now = || client.run_on_driver(async { Instant::now() }).unwrap();
    let begun = now();
    let output = call();
    ((now() - begun).as_millis(), output)
}

fn is_kill(command: &Document) -> bool {
    name(command) == "killCursors"
}

fn open(client: &Client, is_tailable: bool) -> Cursor {
    let find = rawdoc! { "find": "things", "tailable": is_tailable };
    client.cursor(Operation::read("test", &find)).run().unwrap()
}

#[test]
fn call_to_a_dark_server_leaves_the_close_of_its_cursor_to_the_next_call_or_the_drop() {
    for (is_tailable, drops) in [(false, false), (false, true), (true, false), (true, true)] {
        let world = World::new();
        let (server, is_dark) = server_that_may_be_dark(&world);
        let client = world.client(&format!("mongodb://{}/?timeoutMS=500", server.server.address()));
        let mut cursor = open(&client, is_tailable);
        cursor.next().unwrap().unwrap();
        is_dark.store(true, Ordering::SeqCst);
        let (took, outcome) = time(&client, || cursor.next_document().map(drop));
        let error = outcome.unwrap_err();
        assert!(error.is_timeout(), "{error}");
        assert!(close(&[took], &[500]), "{took} ms");
        is_dark.store(false, Ordering::SeqCst);
        assert_eq!(server.times(is_kill).len(), 0);
        match drops {
            true => drop(cursor),
            false => ping(&client).unwrap(),
        }
        assert_eq!(server.times(is_kill).len(), 1);
    }
}

#[test]
fn change_stream_of_a_dark_server_resumes_in_a_later_call() {
    let world = World::new();
    let (server, is_dark) = server_that_may_be_dark(&world);
    let client = world.client(&format!("mongodb://{}/?timeoutMS=500", server.server.address()));
    let mut stream = client.watch(THINGS, ()).run().unwrap();
    stream.next_event().unwrap().unwrap();
    is_dark.store(true, Ordering::SeqCst);
    for call in 0..4 {
        let (took, outcome) = time(&client, || match call % 2 {
            0 => stream.next_event().map(drop),
            _ => stream.next().unwrap().map(drop),
        });
        let error = outcome.unwrap_err();
        assert!(error.is_timeout() && !stream.is_over(), "call {call}: {error}");
        assert!(close(&[took], &[500]), "call {call}: {took} ms");
    }
    is_dark.store(false, Ordering::SeqCst);
    stream.next_event().unwrap().unwrap();
    assert_eq!(server.times(is_kill).len(), 1);
}

#[test]
fn work_that_a_call_leaves_gets_what_is_left_of_the_next_ones_time() {
    let world = World::new();
    let (server, is_dark) = server_that_may_be_dark(&world);
    let client = world.client(&format!("mongodb://{}", server.server.address()));
    let cursor = open(&client, false);
    is_dark.store(true, Ordering::SeqCst);
    // Inside a runtime, no cleanup is possible.
    client.run_on_driver(async { drop(cursor) }).unwrap();
    let limit = Duration::from_millis(300);
    let (took, outcome) = time(&client, || client.drive_within(super::Limit::For(limit), |_| async {}));
    outcome.unwrap();
    assert!(close(&[took], &[300]), "{took} ms");
    // The call has abandoned the work. Otherwise, the work would still hold the server's only connection.
    is_dark.store(false, Ordering::SeqCst);
    ping(&client).unwrap();
    assert_eq!(server.times(is_kill).len(), 1, "{:?}", server.times(|_| true));
}

/// Runs `call` on a separate thread while another thread uses the client. Returns the outcome if the call completes
/// before the other thread is done.
fn beside_a_call<T: Send>(client: &Client, call: impl FnOnce() -> T + Send) -> Option<T> {
    let (begun, has_begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let (ended, has_ended) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let blocking = async {
                begun.send(()).unwrap();
                ends.recv().unwrap();
            };
            client.run_on_driver(blocking).unwrap();
        });
        has_begun.recv().unwrap();
        // There is no receiver if the call finished too late.
        scope.spawn(move || drop(ended.send(call())));
        let outcome = has_ended.recv_timeout(Duration::from_secs(20)).ok();
        end.send(()).unwrap();
        outcome
    })
}

#[test]
fn call_waits_for_those_of_other_threads_only_until_its_time_is_up() {
    let world = World::new();
    let (server, _) = server_that_may_be_dark(&world);
    let client = world.client(&format!("mongodb://{}/?timeoutMS=50", server.server.address()));
    type Outcome = Result<(), ClientError>;
    let refused = |kind: &str, call: &mut (dyn FnMut() -> Outcome + Send)| {
        let outcome = beside_a_call(&client, &mut *call);
        let outcome = outcome.unwrap_or_else(|| panic!("{kind} goes on waiting"));
        assert!(
            matches!(&outcome, Err(error @ ClientError::InUse { .. }) if error.is_timeout()),
            "{kind}: {outcome:?}"
        );
        // The refused call had no effect, so it succeeds once the client is free.
        call().unwrap_or_else(|error| panic!("{kind}, once the client is free: {error}"));
    };
    let (find, filter) = (rawdoc! { "find": "things" }, doc! {});
    refused("a command", &mut || ping(&client));
    refused("any query", &mut || client.cursor(Operation::read("test", &find)).run().map(drop));
    refused("find", &mut || client.find("test", "things", &filter).run().map(drop));
    refused("a typed command", &mut || client.run_typed::<Document>("admin", doc! { "ping": 1 }).run().map(drop));
    refused("a write", &mut || client.insert("test", "things", [doc! {}]).run().map(drop));
    refused("a change stream", &mut || client.watch(THINGS, ()).run().map(drop));
    for is_tailable in [false, true] {
        let find = || client.find("test", "things", &filter).with(|find| find.timeout(Duration::from_millis(500)));
        let mut cursor = if is_tailable { open(&client, true) } else { find().run().unwrap() };
        cursor.next_document().unwrap();
        refused("the next document", &mut || cursor.next_document().map(drop));
        refused("the next document of an iterator", &mut || cursor.next().unwrap().map(drop));
    }
    let mut stream = client.watch(THINGS, ()).run().unwrap();
    stream.next_event().unwrap();
    refused("the next event", &mut || stream.next_event().map(drop));
    refused("the next event of an iterator", &mut || stream.next().unwrap().map(drop));
    let mut session = client.start_session().run().unwrap();
    refused("with_transaction", &mut || session.with_transaction(|_| Ok(())));
    session.start_transaction(TransactionOptions::default()).unwrap();
    refused("a commit", &mut || session.commit_transaction());
    session.start_transaction(TransactionOptions::default()).unwrap();
    refused("an abort", &mut || session.abort_transaction());
    refused("a shutdown", &mut || client.shutdown(Duration::from_millis(50)).map(drop));
}

#[test]
fn error_of_a_transactions_body_is_returned_although_other_calls_keep_the_abort_from_beginning() {
    let world = World::new();
    let (server, _) = server_that_may_be_dark(&world);
    let client = world.client(&format!("mongodb://{}/?timeoutMS=50", server.server.address()));
    let mut session = client.start_session().run().unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let mut blocking = Some(async move {
        begun.send(()).unwrap();
        ends.recv().unwrap();
    });
    let outcome = thread::scope(|scope| {
        let outcome = session.with_transaction_as(TransactionOptions::default(), |_| {
            let blocking = blocking.take().expect("the body runs once");
            scope.spawn(|| client.run_on_driver(blocking).unwrap());
            has_begun.recv().unwrap();
            Err::<(), Box<dyn Error + Send + Sync>>("nothing is left of it".into())
        });
        end.send(()).unwrap();
        outcome
    });
    assert_eq!(outcome.unwrap_err().to_string(), "nothing is left of it");
}
