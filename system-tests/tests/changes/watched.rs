//! A collection that a test watches, and a record of the watching client's commands.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocument, RawDocumentBuf, doc};
use tokio::sync::MutexGuard;
use wharf::client::{CommandEvent, WatchTarget};
use wharf::{Client, Options};
use wharf_testbed::replica_set::{self, ReplicaSet};

const DATABASE: &str = "changes";

/// The name by which fail points recognise the watching client.
const APP_NAME: &str = "watcher";

/// The fail point at which a server waits between executing a command and answering it.
const KEEPS_ANSWERS: &str = "waitAfterCommandFinishesExecution";

/// Tests on the shared set take turns, because a server has only one fail point for commands.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

pub struct Watched {
    /// Watches the collection.
    pub client: Client,
    pub set: Arc<ReplicaSet>,
    /// Changes the collection.
    other: Client,
    name: &'static str,
    events: Arc<Mutex<Vec<CommandEvent>>>,
    _turn: Option<MutexGuard<'static, ()>>,
}

/// Returns the `_id` of the document in an event.
pub fn id(event: &RawDocument) -> i32 {
    event.get_document("documentKey").unwrap().get_i32("_id").unwrap()
}

/// Waits until the condition holds, and fails after ten seconds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::task::yield_now().await;
    }
}

fn raw(command: Document) -> RawDocumentBuf {
    command.try_into().unwrap()
}

impl Watched {
    pub async fn new(name: &'static str) -> Self {
        Self::with(name, |options| options).await
    }

    /// Watches a collection on the shared set. `change` modifies the watching client's options.
    pub async fn with(name: &'static str, change: impl FnOnce(Options) -> Options) -> Self {
        let set = tokio::task::spawn_blocking(|| replica_set::shared().unwrap()).await.unwrap();
        let turn = TURN.lock().await;
        Self { _turn: Some(turn), ..Self::on(set, name, change).await }
    }

    /// Watches a collection on a set that no other test uses.
    pub async fn on(set: Arc<ReplicaSet>, name: &'static str, change: impl FnOnce(Options) -> Options) -> Self {
        let events = Arc::<Mutex<Vec<CommandEvent>>>::default();
        let record = events.clone();
        let options = change(Options::parse(&set.uri()).unwrap().app_name(APP_NAME));
        let client = Client::builder(options)
            .command_subscriber(move |event: &CommandEvent| record.lock().unwrap().push(event.clone()))
            .build()
            .unwrap();
        let other = Client::from_uri(&set.uri()).unwrap();
        let watched = Self { client, set, other, name, events, _turn: None };
        // An earlier test may have left its fail point active on a member that it did not use.
        watched.configure(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await;
        watched.answer().await;
        watched.run(doc! { "drop": name, "writeConcern": { "w": "majority" } }).await;
        watched.run(doc! { "create": name, "writeConcern": { "w": "majority" } }).await;
        watched
    }

    pub fn target(&self) -> WatchTarget<'static> {
        WatchTarget::Collection(DATABASE, self.name)
    }

    /// Runs a command that changes the database.
    pub async fn run(&self, command: Document) {
        match self.other.run(wharf::Operation::write(DATABASE, &raw(command))).await {
            Err(error) if error.server_error().is_some_and(|error| error.code == 26) => {}
            outcome => drop(outcome.unwrap()),
        }
    }

    pub async fn insert(&self, ids: Range<i32>) {
        let documents: Vec<_> = ids.map(|id| doc! { "_id": id }).collect();
        self.other
            .insert(DATABASE, self.name, documents)
            .options(doc! { "writeConcern": { "w": "majority" } })
            .await
            .unwrap();
    }

    pub async fn drop_collection(&self) {
        self.run(doc! { "drop": self.name }).await;
    }

    /// Makes the watching client's commands fail, on all members.
    pub async fn fail<const N: usize>(&self, commands: [&str; N], times: i32, how: Document) {
        let mut data = doc! { "failCommands": commands.to_vec(), "appName": APP_NAME };
        data.extend(how);
        self.configure(doc! { "configureFailPoint": "failCommand", "mode": { "times": times }, "data": data }).await;
    }

    /// Makes the servers withhold their answers to this command on the collection until [`answer`](Self::answer).
    pub async fn keep_answers(&self, command: &str) {
        let data = doc! { "ns": format!("{DATABASE}.{}", self.name), "commands": [command] };
        self.configure(doc! { "configureFailPoint": KEEPS_ANSWERS, "mode": "alwaysOn", "data": data }).await;
    }

    pub async fn answer(&self) {
        self.configure(doc! { "configureFailPoint": KEEPS_ANSWERS, "mode": "off" }).await;
    }

    async fn configure(&self, fail_point: Document) {
        let (set, command) = (self.set.clone(), raw(fail_point));
        let configuring = tokio::task::spawn_blocking(move || {
            for member in 0..set.addresses().len() {
                set.command(member, "admin", &command).unwrap();
            }
        });
        configuring.await.unwrap();
    }

    /// Returns the commands with this name that the client sent, each with the server's address.
    pub fn started(&self, name: &str) -> Vec<(Arc<str>, Document)> {
        let events = self.events.lock().unwrap();
        let of_name = |event: &CommandEvent| match event {
            CommandEvent::Started(started) if started.source.command_name == name => {
                Some((started.source.address.clone(), Document::try_from(&*started.command).unwrap()))
            }
            _ => None,
        };
        events.iter().filter_map(of_name).collect()
    }

    /// Returns the `$changeStream` stages that the client sent.
    pub fn stages(&self) -> Vec<Document> {
        let stage = |command: &Document| {
            let first = command.get_array("pipeline").unwrap().first().and_then(Bson::as_document);
            first.unwrap().get_document("$changeStream").unwrap().clone()
        };
        self.started("aggregate").iter().map(|(_, command)| stage(command)).collect()
    }

    fn replies(&self, names: &[&str]) -> Vec<RawDocumentBuf> {
        let events = self.events.lock().unwrap();
        let of_names = |event: &CommandEvent| match event {
            CommandEvent::Succeeded(done) if names.contains(&&*done.source.command_name) => Some(done.reply.clone()),
            _ => None,
        };
        events.iter().filter_map(of_names).collect()
    }

    /// Returns how many commands with this name succeeded.
    pub fn answered(&self, name: &str) -> usize {
        self.replies(&[name]).len()
    }

    /// Returns the `postBatchResumeToken` of the last batch.
    pub fn last_batch_token(&self) -> Option<RawDocumentBuf> {
        let replies = self.replies(&["aggregate", "getMore"]);
        let cursor = replies.last()?.get_document("cursor").ok()?;
        Some(cursor.get_document("postBatchResumeToken").ok()?.to_owned())
    }

    /// Returns the number of cursors that are open on the collection.
    pub async fn open_cursors(&self) -> usize {
        let current = doc! {
            "aggregate": 1,
            "pipeline": [
                { "$currentOp": { "idleCursors": true } },
                { "$match": { "cursor.cursorId": { "$exists": true }, "ns": format!("{DATABASE}.{}", self.name) } },
            ],
            "cursor": {},
        };
        let reply = self.other.run_command("admin", &raw(current)).await.unwrap();
        let reply = Document::try_from(reply).unwrap();
        reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap().len()
    }
}
