//! Change streams as iterators, on a replica set.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use serde::Deserialize;
use wharf::client::{CommandEvent, WatchTarget};
use wharf::single::{ChangeStream, Client};
use wharf::{ClientError, Operation};
use wharf_testbed::replica_set::{self, ReplicaSet, ReplicaSetOptions};

use super::builder;

/// The name by which fail points recognise the watching client.
const APP_NAME: &str = "single watcher";

/// The tests on the shared set take turns, because a server has only one fail point for commands.
static TURN: Mutex<()> = Mutex::new(());

/// A collection, the client that watches it, and the client's commands.
struct Watched {
    set: Arc<ReplicaSet>,
    client: Client,
    name: &'static str,
    commands: Arc<Mutex<Vec<(String, Document)>>>,
    _turn: Option<MutexGuard<'static, ()>>,
}

impl Watched {
    fn new(name: &'static str) -> Self {
        let set = replica_set::shared().unwrap();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self { _turn: Some(turn), ..Self::on(set, name) }
    }

    /// Watches a collection on a set that no other test uses.
    fn on(set: Arc<ReplicaSet>, name: &'static str) -> Self {
        let commands = Arc::<Mutex<Vec<(String, Document)>>>::default();
        let noted = commands.clone();
        let subscriber = move |event: &CommandEvent| {
            if let CommandEvent::Started(started) = event {
                let command = Document::try_from(&*started.command).unwrap();
                noted.lock().unwrap().push((started.source.command_name.clone(), command));
            }
        };
        let uri = format!("{}&appName={APP_NAME}&serverSelectionTryOnce=false", set.uri());
        let client = builder(&uri).command_subscriber(subscriber).build().unwrap();
        let this = Self { set, client, name, commands, _turn: None };
        this.configure(rawdoc! { "configureFailPoint": "failCommand", "mode": "off" });
        let _ = this.client.run(Operation::write("single", &rawdoc! { "drop": name }));
        this.client.run(Operation::write("single", &rawdoc! { "create": name })).unwrap();
        this
    }

    fn target(&self) -> WatchTarget<'static> {
        WatchTarget::Collection("single", self.name)
    }

    fn watch(&self) -> ChangeStream {
        self.client.watch(self.target(), ()).run().unwrap()
    }

    fn insert(&self, id: i32) {
        insert(&self.client, self.name, id);
    }

    fn configure(&self, fail_point: RawDocumentBuf) {
        for member in 0..self.set.addresses().len() {
            self.set.command(member, "admin", &fail_point).unwrap();
        }
    }

    /// Makes the client's next `getMore` fail.
    fn lose_connection(&self) {
        let data = rawdoc! { "failCommands": ["getMore"], "appName": APP_NAME, "closeConnection": true };
        self.configure(rawdoc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": data });
    }

    /// Returns the commands with this name so far.
    fn sent(&self, name: &str) -> Vec<Document> {
        let commands = self.commands.lock().unwrap();
        commands.iter().filter(|(other, _)| other == name).map(|(_, command)| command.clone()).collect()
    }
}

fn insert(client: &Client, name: &str, id: i32) {
    let inserted = client.insert("single", name, [doc! { "_id": id }]);
    inserted.with(|write| write.options(doc! { "writeConcern": { "w": "majority" } })).run().unwrap();
}

/// Returns the `_id` of the document in an event.
fn id(event: &RawDocument) -> i32 {
    event.get_document("documentKey").unwrap().get_i32("_id").unwrap()
}

fn next_id(changes: &mut ChangeStream) -> i32 {
    id(&changes.next().unwrap().unwrap())
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    operation_type: String,
}

#[test]
fn iterator_waits_for_changes_and_ends_when_the_collection_is_dropped() {
    let watched = Watched::new("iterated");
    let changes = watched.watch().typed::<Change>();
    let kinds = thread::scope(|scope| {
        let reading = scope.spawn(|| changes.map(|change| change.unwrap().operation_type).collect::<Vec<_>>());
        // The iterator lets other threads use the same client while it is waiting.
        (0..3).for_each(|id| watched.insert(id));
        watched.client.run(Operation::write("single", &rawdoc! { "drop": "iterated" })).unwrap();
        reading.join().unwrap()
    });
    assert_eq!(kinds, ["insert", "insert", "insert", "drop", "invalidate"]);
    assert!(watched.sent("killCursors").is_empty(), "the server has closed the cursor");
}

#[test]
fn raw_events_are_lent_out_and_their_token_continues_after_them() {
    let watched = Watched::new("lent");
    let short = |watch: wharf::client::Watch<'static>| watch.max_await_time(Duration::from_millis(10));
    let mut changes = watched.client.watch(watched.target(), ()).with(short).run().unwrap();
    assert!(changes.next_if_any().unwrap().is_none() && !changes.is_over());
    (0..3).for_each(|id| watched.insert(id));
    assert_eq!(id(changes.next_event().unwrap().unwrap()), 0);
    let token = changes.resume_token().unwrap().to_owned();
    let resumed =
        watched.client.watch(watched.target(), ()).with(|watch| watch.stage(rawdoc! { "resumeAfter": token }));
    assert_eq!(resumed.run().unwrap().take(2).map(|event| id(&event.unwrap())).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn stream_resumes_after_the_last_event_that_it_has_returned() {
    let watched = Watched::new("resumed");
    let mut changes = watched.watch();
    watched.insert(0);
    assert_eq!(next_id(&mut changes), 0);
    let token = Bson::from(Document::try_from(changes.resume_token().unwrap()).unwrap());
    watched.lose_connection();
    watched.insert(1);
    assert_eq!(next_id(&mut changes), 1);
    let stages: Vec<_> = watched
        .sent("aggregate")
        .iter()
        .map(|command| command.get_array("pipeline").unwrap()[0].as_document().unwrap().clone())
        .map(|stage| stage.get_document("$changeStream").unwrap().get("resumeAfter").cloned())
        .collect();
    assert_eq!(stages, [None, Some(token)]);
}

#[test]
fn stream_goes_on_with_the_next_primary() {
    let watched = Watched::on(Arc::new(ReplicaSet::start(ReplicaSetOptions::default()).unwrap()), "failover");
    let other = Client::from_uri(&format!("{}&serverSelectionTryOnce=false", watched.set.uri())).unwrap();
    let mut changes = watched.watch();
    watched.insert(0);
    assert_eq!(next_id(&mut changes), 0);
    let primary = watched.set.primary().unwrap().unwrap();
    thread::scope(|scope| {
        let reading = scope.spawn(|| [next_id(&mut changes), next_id(&mut changes)]);
        watched.set.kill(primary).unwrap();
        (1..3).for_each(|id| insert(&other, "failover", id));
        assert_eq!(reading.join().unwrap(), [1, 2]);
    });
}

#[test]
fn stream_that_is_dropped_is_closed_before_the_drop_returns() {
    let watched = Watched::new("closed");
    let mut changes = watched.watch();
    watched.insert(0);
    next_id(&mut changes);
    drop(changes);
    assert_eq!(watched.sent("killCursors").len(), 1);
    // `typed` consumes the original stream, so only one cursor is closed.
    drop(watched.watch().typed::<Change>());
    assert_eq!(watched.sent("killCursors").len(), 2);
}

#[test]
fn stream_of_a_session_has_its_identifier() {
    let watched = Watched::new("session");
    let mut session = watched.client.start_session().run().unwrap();
    let lsid = Document::try_from(session.id()).unwrap();
    let mut changes = session.watch(watched.target(), ()).run().unwrap();
    watched.lose_connection();
    watched.insert(0);
    assert_eq!(next_id(&mut changes), 0);
    let commands = [watched.sent("aggregate"), watched.sent("getMore")].concat();
    assert!(commands.len() >= 3, "{commands:?}");
    assert!(commands.iter().all(|command| command.get_document("lsid").unwrap() == &lsid), "{commands:?}");
}

#[test]
fn stream_goes_on_after_a_call_inside_of_a_runtime() {
    let watched = Watched::new("misused");
    let mut changes = watched.watch();
    watched.insert(0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused = runtime.block_on(async { changes.next_event().map(|_| ()) });
    assert!(matches!(refused, Err(ClientError::OnRuntime)), "{refused:?}");
    assert_eq!(next_id(&mut changes), 0);
}

#[test]
fn time_limit_holds_for_each_event_and_the_stream_goes_on_afterwards() {
    let watched = Watched::new("limited");
    let (limit, wait) = (Duration::from_millis(300), Duration::from_millis(20));
    let limited = watched.client.watch(watched.target(), ()).with(|watch| watch.timeout(limit).max_await_time(wait));
    let mut changes = limited.run().unwrap();
    let error = changes.next().unwrap().unwrap_err();
    assert!(error.is_timeout() && !changes.is_over(), "{error}");
    assert!(watched.sent("getMore").len() > 2, "the limit is that of the event, not that of a batch");
    watched.insert(0);
    assert_eq!(next_id(&mut changes), 0);
}
