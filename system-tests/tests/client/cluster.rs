//! Deployments of several servers that follow one script, and what a client reports about its commands.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use wharf::client::{CommandEvent, TopologyEvent};
use wharf::{Client, Options};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::events::Events;
use super::repetitions::standalone;

/// The servers of a deployment. In a replica set, the first server is the primary.
pub(super) struct Cluster {
    pub(super) servers: Vec<ScriptedServer>,
    /// The commands that the servers received, except hello, each with the number of its server.
    arrived: Arc<Mutex<Vec<(usize, Document)>>>,
    is_replica_set: bool,
}

impl Cluster {
    /// Starts this many mongos. `answer` receives the number of the server, the command, and the command's number among
    /// the commands with the same name on this server, counted from 0.
    pub(super) async fn of_mongos(
        servers: usize,
        answer: impl Fn(usize, &Document, usize) -> Answer + Clone + Send + 'static,
    ) -> Self {
        Self::start(servers, false, answer).await
    }

    /// Starts a replica set of this many members.
    pub(super) async fn replica_set(
        servers: usize,
        answer: impl Fn(usize, &Document, usize) -> Answer + Clone + Send + 'static,
    ) -> Self {
        Self::start(servers, true, answer).await
    }

    async fn start(
        count: usize,
        is_replica_set: bool,
        answer: impl Fn(usize, &Document, usize) -> Answer + Clone + Send + 'static,
    ) -> Self {
        let arrived = Arc::<Mutex<Vec<(usize, Document)>>>::default();
        let hosts = Arc::new(OnceLock::<Vec<String>>::new());
        let mut servers = Vec::new();
        for server in 0..count {
            let (noted, hosts, answer) = (arrived.clone(), hosts.clone(), answer.clone());
            let script = move || {
                let (noted, hosts, answer) = (noted.clone(), hosts.clone(), answer.clone());
                let script = move |command: &Document| {
                    if matches!(name(command).as_str(), "hello" | "isMaster" | "ismaster") {
                        let hosts = hosts.get().expect("no client knows an address before");
                        return Answer::Reply(hello(server, is_replica_set.then_some(hosts)));
                    }
                    let mut noted = noted.lock().unwrap();
                    let is_same = |(of, other): &&(usize, Document)| *of == server && name(other) == name(command);
                    let number = noted.iter().filter(is_same).count();
                    noted.push((server, command.clone()));
                    drop(noted);
                    answer(server, command, number)
                };
                Box::new(script) as wharf_testbed::scripted::Script
            };
            servers.push(ScriptedServer::start(script).await.unwrap());
        }
        hosts.set(servers.iter().map(ScriptedServer::address).collect()).unwrap();
        Self { servers, arrived, is_replica_set }
    }

    /// Returns a client that knows all servers, and its command events.
    pub(super) async fn client(&self, parameters: &str) -> (Client, Told) {
        let hosts: Vec<_> = self.servers.iter().map(ScriptedServer::address).collect();
        let set = if self.is_replica_set { "replicaSet=rs&" } else { "" };
        let (client, told, events) = client(&format!("mongodb://{}/?{set}{parameters}", hosts.join(",")));
        client.connect().await.unwrap();
        let all_known = |event: &TopologyEvent| match event {
            TopologyEvent::TopologyDescriptionChanged { new, .. } => {
                new.servers().all(|server| server.server_type().is_data_bearing())
            }
            _ => false,
        };
        events.after(0, all_known).await;
        (client, told)
    }

    /// Returns the commands with this name, each with the number of its server.
    pub(super) fn arrived(&self, wanted: &str) -> Vec<(usize, Document)> {
        self.arrived.lock().unwrap().iter().filter(|(_, command)| name(command) == wanted).cloned().collect()
    }
}

/// Returns the `hello` reply of a server: a mongos, or a member of a set with these hosts.
fn hello(server: usize, hosts: Option<&Vec<String>>) -> Document {
    let mut hello = standalone();
    match hosts {
        None => drop(hello.insert("msg", "isdbgrid")),
        Some(hosts) => {
            let is_primary = server == 0;
            let of_set = doc! {
                "setName": "rs", "setVersion": 1, "hosts": hosts, "isWritablePrimary": is_primary, "secondary": !is_primary,
                "me": &hosts[server], "electionId": bson::oid::ObjectId::from_bytes([1; 12]),
                "lastWrite": { "lastWriteDate": bson::DateTime::from_millis(1_000) },
            };
            hello.extend(of_set);
            if !is_primary {
                // No write goes to this server.
                hello.insert("maxWriteBatchSize", 1);
            }
        }
    }
    hello
}

/// Returns a client, its command events and its monitoring events.
pub(super) fn client(uri: &str) -> (Client, Told, Events) {
    let (told, events) = (Told::default(), Events::default());
    let of_commands = told.clone();
    let client = Client::builder(Options::parse(uri).unwrap())
        .command_subscriber(move |event: &CommandEvent| of_commands.0.lock().unwrap().push(event.clone()))
        .topology_subscriber(events.clone())
        .build()
        .unwrap();
    (client, told, events)
}

/// A client's command events.
#[derive(Clone, Default)]
pub(super) struct Told(pub(super) Arc<Mutex<Vec<CommandEvent>>>);

impl Told {
    /// Returns the commands with this name as they were sent.
    pub(super) fn started(&self, name: &str) -> Vec<Document> {
        let events = self.0.lock().unwrap();
        let of_name = |event: &CommandEvent| match event {
            CommandEvent::Started(started) if started.source.command_name == name => {
                Some(Document::try_from(&*started.command).unwrap())
            }
            _ => None,
        };
        events.iter().filter_map(of_name).collect()
    }

    pub(super) fn last_reply(&self) -> RawDocumentBuf {
        let events = self.0.lock().unwrap();
        let reply = |event: &CommandEvent| match event {
            CommandEvent::Succeeded(succeeded) => Some(succeeded.reply.clone()),
            _ => None,
        };
        events.iter().rev().find_map(reply).expect("a reply")
    }

    /// Returns the addresses that the failed commands were sent to.
    pub(super) fn failed(&self) -> Vec<String> {
        self.addresses(|event| matches!(event, CommandEvent::Failed(_)))
    }

    /// Returns the addresses that the successful commands were sent to.
    pub(super) fn succeeded(&self) -> Vec<String> {
        self.addresses(|event| matches!(event, CommandEvent::Succeeded(_)))
    }

    fn addresses(&self, is_it: impl Fn(&&CommandEvent) -> bool) -> Vec<String> {
        let events = self.0.lock().unwrap();
        events.iter().filter(is_it).map(|event| event.source().address.to_string()).collect()
    }

    /// Forgets the recorded events.
    pub(super) fn forget(&self) {
        self.0.lock().unwrap().clear();
    }
}

/// Returns a server error with these labels.
pub(super) fn failure(code: i32, labels: &[&str]) -> Answer {
    Answer::Reply(doc! { "ok": 0, "code": code, "errmsg": "it failed", "errorLabels": labels })
}

/// Returns a successful reply.
pub(super) fn ok() -> Answer {
    Answer::Reply(doc! { "ok": 1, "n": 1 })
}

/// Returns a reply with this many documents and this cursor identifier.
pub(super) fn batch(field: &str, id: i64, documents: usize) -> Answer {
    let documents: Vec<_> = (0..documents).map(|number| doc! { "_id": number as i64 }).collect();
    Answer::Reply(doc! { "ok": 1, "cursor": { "id": id, "ns": "test.c", field: documents } })
}

pub(super) fn after(pause: u64, answer: Answer) -> Answer {
    Answer::After(Duration::from_millis(pause), Box::new(answer))
}
