//! Log messages that go to the `log` crate, in a process without a `tracing` subscriber.
#![cfg(not(any(loom, shuttle)))]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use bson::rawdoc;
use log::{LevelFilter, Log, Metadata, Record};
use wharf::Client;
use wharf_testbed::mongod;

/// Keeps the target and text of each message.
struct Kept(Mutex<BTreeSet<(String, String)>>);

static KEPT: Kept = Kept(Mutex::new(BTreeSet::new()));

impl Log for Kept {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().insert((record.target().to_owned(), record.args().to_string()));
    }

    fn flush(&self) {}
}

#[tokio::test]
async fn logger_has_the_messages_of_all_components() {
    log::set_logger(&KEPT).unwrap();
    let server = tokio::task::spawn_blocking(mongod::shared).await.unwrap().unwrap();
    let uri = format!("mongodb://{}/", server.address());
    let texts = || std::mem::take(&mut *KEPT.0.lock().unwrap());

    // Messages at level DEBUG are not built if the logger does not accept them.
    log::set_max_level(LevelFilter::Warn);
    ping(&uri).await;
    assert_eq!(texts(), BTreeSet::new());

    log::set_max_level(LevelFilter::Debug);
    ping(&uri).await;
    let texts = texts();
    for (target, text) in [
        ("wharf::command", "Command succeeded"),
        ("wharf::topology", "Starting topology monitoring"),
        ("wharf::serverSelection", "Server selection succeeded"),
        ("wharf::connection", "Connection checked out"),
    ] {
        assert!(texts.iter().any(|(of, found)| of == target && found.starts_with(text)), "{text}: {texts:#?}");
    }
}

async fn ping(uri: &str) {
    let client = Client::from_uri(uri).unwrap();
    client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    assert!(client.shutdown(Duration::from_secs(10)).await);
}
