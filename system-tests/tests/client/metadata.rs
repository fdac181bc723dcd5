//! Libraries that are appended to an existing client's metadata (MongoDB Handshake, "Client Metadata Update Prose
//! Tests"). The servers follow scripts, and record the metadata of the connection on which a ping arrives.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bson::{Document, doc, rawdoc};
use wharf::{Client, DriverInfo, Options, single};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::repetitions::standalone;

/// A server that records the metadata of connections.
struct Server {
    server: ScriptedServer,
    /// The metadata of the connection on which each ping arrived.
    pinged: Arc<Mutex<Vec<Document>>>,
}

impl Server {
    async fn start() -> Self {
        let pinged = Arc::<Mutex<Vec<Document>>>::default();
        let noted = pinged.clone();
        let server = ScriptedServer::start(move || {
            let (noted, mut metadata) = (noted.clone(), None);
            Box::new(move |command: &Document| match &*name(command) {
                "hello" | "isMaster" => {
                    if let Ok(client) = command.get_document("client") {
                        metadata.get_or_insert_with(|| client.clone());
                    }
                    Answer::Reply(standalone())
                }
                "close" => Answer::Close,
                _ => {
                    noted.lock().unwrap().push(metadata.clone().expect("a hello with metadata before"));
                    Answer::Reply(doc! { "ok": 1 })
                }
            })
        });
        Self { server: server.await.unwrap(), pinged }
    }

    fn options(&self, initial: Option<DriverInfo>) -> Options {
        let options = Options::parse(&format!("mongodb://{}/?maxIdleTimeMS=1", self.server.address())).unwrap();
        match initial {
            Some(initial) => options.driver_info(initial),
            None => options,
        }
    }

    fn last_pinged(&self) -> Metadata {
        Metadata::of(self.pinged.lock().unwrap().last().expect("a ping").clone())
    }
}

#[derive(Debug, PartialEq)]
struct Metadata {
    /// The name, version and platform, without wharf's own values.
    libraries: [String; 3],
    /// All other fields.
    rest: Document,
}

impl Metadata {
    fn of(mut client: Document) -> Self {
        let libraries = |value: bson::Bson| {
            let value = value.as_str().unwrap().to_owned();
            value.split_once('|').map_or("", |(_, libraries)| libraries).to_owned()
        };
        let platform = libraries(client.remove("platform").unwrap());
        let driver = client.get_document_mut("driver").unwrap();
        let [name, version] = ["name", "version"].map(|field| libraries(driver.remove(field).unwrap()));
        Self { libraries: [name, version, platform], rest: client }
    }
}

fn info(name: &str, version: Option<&str>, platform: Option<&str>) -> DriverInfo {
    let mut info = DriverInfo::new(name);
    info.version = version.map(str::to_owned);
    info.platform = platform.map(str::to_owned);
    info
}

fn library() -> DriverInfo {
    info("library", Some("1.2"), Some("Library Platform"))
}

fn framework() -> DriverInfo {
    info("framework", Some("2.0"), Some("Framework Platform"))
}

/// Creates a client, and appends one library after another. As in the prose tests, returns the metadata of a new
/// connection after each appended library. If the options name a library, the metadata without appended libraries comes
/// first.
async fn updated(initial: Option<DriverInfo>, appended: &[DriverInfo]) -> Vec<Metadata> {
    let server = Server::start().await;
    let mut seen = Vec::new();
    let is_first_seen = initial.is_some();
    let client = Client::new(server.options(initial)).unwrap();
    let ping = async || {
        client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
        // The connection has now been idle for too long, so the next ping opens a new connection.
        tokio::time::advance(Duration::from_millis(5)).await;
        server.last_pinged()
    };
    if is_first_seen {
        seen.push(ping().await);
    }
    for library in appended {
        client.clone().append_metadata(library.clone()).unwrap();
        seen.push(ping().await);
    }
    // Test 9: each handshake, including the monitors' handshakes, contains the `backpressure` field.
    let handshakes: Vec<_> =
        server.server.commands().into_iter().filter(|command| command.contains_key("client")).collect();
    assert!(handshakes.len() > seen.len(), "{handshakes:?}");
    for handshake in handshakes {
        assert_eq!(handshake.get_str("backpressure").unwrap(), "2", "{handshake}");
    }
    seen
}

/// Returns the values of two libraries, joined. If only one value is given, the result is that value.
fn joined(first: &DriverInfo, second: &DriverInfo) -> [String; 3] {
    let joined =
        |first: Option<&str>, second: Option<&str>| [first, second].into_iter().flatten().collect::<Vec<_>>().join("|");
    [
        joined(Some(&first.name), Some(&second.name)),
        joined(first.version.as_deref(), second.version.as_deref()),
        joined(first.platform.as_deref(), second.platform.as_deref()),
    ]
}

/// Tests 1 and 2.
#[tokio::test(start_paused = true)]
async fn appended_library_follows_those_before_it() {
    for (version, platform) in [
        (Some("2.0"), Some("Framework Platform")),
        (Some("2.0"), None),
        (None, Some("Framework Platform")),
        (None, None),
    ] {
        let framework = info("framework", version, platform);
        let at_creation = updated(Some(library()), std::slice::from_ref(&framework)).await;
        let later = updated(None, &[library(), framework.clone()]).await;
        for seen in [at_creation, later] {
            let [before, after] = &seen[..] else { panic!("{seen:?}") };
            assert_eq!(before.libraries, ["library", "1.2", "Library Platform"]);
            assert_eq!(after.libraries, joined(&library(), &framework));
            assert_eq!(after.rest, before.rest);
        }
    }
}

/// Test 3.
#[tokio::test(start_paused = true)]
async fn library_that_differs_in_any_field_is_another_one() {
    for (name, version, platform) in [
        ("library", "1.2", "Library Platform"),
        ("framework", "1.2", "Library Platform"),
        ("library", "2.0", "Library Platform"),
        ("library", "1.2", "Framework Platform"),
        ("framework", "2.0", "Library Platform"),
        ("framework", "1.2", "Framework Platform"),
        ("library", "2.0", "Framework Platform"),
    ] {
        let second = info(name, Some(version), Some(platform));
        let seen = updated(None, &[library(), second.clone()]).await;
        let [before, after] = &seen[..] else { panic!("{seen:?}") };
        if second == library() {
            assert_eq!(after, before);
        } else {
            assert_eq!((&after.libraries, &after.rest), (&joined(&library(), &second), &before.rest));
        }
    }
}

/// Tests 4, 5 and 6.
#[tokio::test(start_paused = true)]
async fn library_that_was_appended_before_changes_nothing() {
    for (initial, appended) in [
        (None, vec![library(), framework(), library()]),
        (Some(library()), vec![library()]),
        (Some(library()), vec![info("framework", Some("1.2"), Some("Library Platform")), library()]),
    ] {
        let seen = updated(initial, &appended).await;
        let [.., before, after] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(after, before);
    }
}

/// Tests 7 and 8.
#[tokio::test(start_paused = true)]
async fn empty_field_is_one_that_is_not_given() {
    for (given, empty) in [
        (info("library", None, Some("Library Platform")), info("library", Some(""), Some("Library Platform"))),
        (info("library", Some("1.2"), None), info("library", Some("1.2"), Some(""))),
    ] {
        let later = updated(None, &[given.clone(), empty.clone()]).await;
        let at_creation = updated(Some(given), &[empty]).await;
        for seen in [later, at_creation] {
            let [before, after] = &seen[..] else { panic!("{seen:?}") };
            assert_eq!(after, before);
        }
    }
}

#[tokio::test]
async fn single_client_sends_what_was_appended_with_its_next_connection() {
    let server = Server::start().await;
    let options = server.options(Some(library()));
    let ended = thread::spawn(move || {
        let client = single::Client::new(options).unwrap();
        let ping = || {
            client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
            // The server closes the connection, so the next ping opens a new one.
            client.run_command("admin", &rawdoc! { "close": 1 }).unwrap_err();
        };
        ping();
        client.append_metadata(framework()).unwrap();
        ping();
        client.append_metadata(library()).unwrap();
        ping();
    });
    tokio::task::spawn_blocking(|| ended.join().unwrap()).await.unwrap();
    let pinged: Vec<_> = server.pinged.lock().unwrap().drain(..).map(Metadata::of).collect();
    let [before, after, again] = &pinged[..] else { panic!("{pinged:?}") };
    assert_eq!(before.libraries, ["library", "1.2", "Library Platform"]);
    assert_eq!((&after.libraries, &after.rest), (&joined(&library(), &framework()), &before.rest));
    assert_eq!(again, after);
}

#[test]
fn library_with_the_separator_is_refused() {
    let client = Client::from_uri("mongodb://localhost").unwrap();
    let error = client.append_metadata(info("a|b", None, None)).unwrap_err();
    assert_eq!(error.to_string(), r#"driverInfo.name must be without '|', which separates libraries, got "a|b""#);
}
