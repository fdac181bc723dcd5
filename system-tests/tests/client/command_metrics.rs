//! A client's command metrics, on a server that follows a script.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bson::{doc, rawdoc};
use wharf::client::{CommandEvent, CommandMetrics, CommandSubscriber};
use wharf::{Client, ClientBuilder, Options};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::repetitions::{primary, start};

fn builder(server: &ScriptedServer) -> ClientBuilder {
    Client::builder(Options::parse(&format!("mongodb://{}/?directConnection=true", server.address())).unwrap())
}

#[tokio::test(start_paused = true)]
async fn commands_that_succeed_fail_and_are_dropped_are_counted() {
    let (server, _) = start(primary(), |command, _| match name(command).as_str() {
        "count" => Answer::Reply(doc! { "ok": 0, "code": 13, "errmsg": "not authorized" }),
        "distinct" => Answer::Hang,
        _ => Answer::Reply(doc! { "ok": 1 }),
    })
    .await;
    let commands = CommandMetrics::new();
    let client = builder(&server).command_subscriber(commands.clone()).build().unwrap();
    for _ in 0..2 {
        client.run_command("shop", &rawdoc! { "ping": 1 }).await.unwrap();
    }
    client.run_command("shop", &rawdoc! { "count": "orders" }).await.unwrap_err();
    let distinct = rawdoc! { "distinct": "orders", "key": "price" };
    let dropped = tokio::time::timeout(Duration::from_secs(1), client.run_command("shop", &distinct)).await;
    assert!(dropped.is_err(), "{dropped:?}");
    let snapshot = commands.snapshot();
    let counts: Vec<_> = snapshot.iter().map(|of| (&*of.name, of.succeeded.count(), of.failed.count())).collect();
    assert_eq!(counts, [("count", 0, 1), ("distinct", 0, 1), ("ping", 2, 0)]);
    assert!(snapshot[2].succeeded.sum() > Duration::ZERO);
}

/// Notes the lengths of the commands and replies.
#[derive(Clone, Default)]
struct Lengths {
    reads_documents: bool,
    noted: Arc<Mutex<Vec<usize>>>,
}

impl CommandSubscriber for Lengths {
    fn on_event(&self, event: &CommandEvent) {
        self.noted.lock().unwrap().push(match event {
            CommandEvent::Started(event) => event.command.iter().count(),
            CommandEvent::Succeeded(event) => event.reply.iter().count(),
            _ => panic!("{event:?}"),
        });
    }

    fn reads_documents(&self) -> bool {
        self.reads_documents
    }
}

#[tokio::test(start_paused = true)]
async fn events_have_commands_and_replies_only_if_a_subscriber_reads_them() {
    let (server, _) = start(primary(), |_, _| Answer::Reply(doc! { "ok": 1 })).await;
    for (read, are_empty) in [([false, false], true), ([false, true], false), ([true, true], false)] {
        let [one, another] = read.map(|reads_documents| Lengths { reads_documents, ..Lengths::default() });
        let client = builder(&server).command_subscriber(one.clone()).command_subscriber(another.clone()).build();
        client.unwrap().run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
        for Lengths { noted, .. } in [one, another] {
            let noted = noted.lock().unwrap();
            assert_eq!(noted.len(), 2, "{read:?}");
            assert!(noted.iter().all(|length| (*length == 0) == are_empty), "{read:?}: {noted:?}");
        }
    }
}
