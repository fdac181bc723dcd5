//! Tests of the contents of hello, as servers see them (MongoDB Handshake specification).

use wharf::{DriverInfo, ServerApi, ServerApiVersion};
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};

use super::scripted_scram::hello;
use super::*;

/// Starts a server that includes these fields in its hello reply and accepts all other commands.
async fn saying(fields: Document) -> ScriptedServer {
    let script = move || -> Script {
        let fields = fields.clone();
        Box::new(move |command| match &*name(command) {
            "isMaster" | "hello" => Answer::Reply(hello(fields.clone())),
            _ => Answer::Reply(doc! { "ok": 1.0 }),
        })
    };
    ScriptedServer::start(script).await.unwrap()
}

fn library(name: &str, version: &str, platform: &str) -> DriverInfo {
    DriverInfo::new(name).version(version).platform(platform)
}

/// Returns the `client` documents from all handshakes so far.
fn clients(server: &ScriptedServer) -> Vec<Document> {
    server.commands().iter().map(|command| command.get_document("client").unwrap().clone()).collect()
}

#[tokio::test]
async fn libraries_are_appended_to_the_metadata_of_connections_opened_later() {
    let server = saying(doc! {}).await;
    let options =
        Options::new([&*server.address()]).unwrap().driver_info(library("library", "1.2", "Library Platform"));
    let endpoint = options.endpoint().unwrap();
    drop(endpoint.connect().await.unwrap());
    let clone = endpoint.clone();
    endpoint.append_metadata(library("framework", "2.0", "Framework Platform")).unwrap();
    drop(clone.connect().await.unwrap());
    endpoint.append_metadata(library("library", "1.2", "Library Platform")).unwrap();
    drop(clone.connect().await.unwrap());

    let clients = clients(&server);
    let [before, after, again] = &clients[..] else { panic!("{clients:?}") };
    let own = env!("CARGO_PKG_VERSION");
    let driver = doc! { "name": "wharf|library", "version": format!("{own}|1.2") };
    assert_eq!(before.get_document("driver").unwrap(), &driver);
    let driver = doc! { "name": "wharf|library|framework", "version": format!("{own}|1.2|2.0") };
    assert_eq!(after.get_document("driver").unwrap(), &driver);
    let platform = format!("{}|Framework Platform", before.get_str("platform").unwrap());
    assert_eq!(after.get_str("platform").unwrap(), platform);
    assert_eq!((after.get("os"), after.get("env")), (before.get("os"), before.get("env")));
    assert_eq!(again, after);
}

#[tokio::test]
async fn invalid_library_is_refused() {
    let options = Options::new(["localhost"]).unwrap();
    let error = options.clone().driver_info(library("a|b", "1", "c")).endpoint().unwrap_err();
    assert_eq!(error.option, "driverInfo.name");
    let error = options.endpoint().unwrap().append_metadata(library("a", "1|2", "c")).unwrap_err();
    assert_eq!(error.option, "driverInfo.version");
}

#[tokio::test]
async fn hello_is_sent_with_a_server_api_and_every_command_declares_it() {
    let server = saying(doc! {}).await;
    let api = ServerApi::new(ServerApiVersion::V1).strict(false);
    let options = Options::new([&*server.address()]).unwrap().server_api(api);
    let mut connection = options.endpoint().unwrap().connect().await.unwrap();
    run(&mut connection, "admin", doc! { "ping": 1 }).await;
    let commands = server.commands();
    assert_eq!(server.command_names(), ["hello", "ping"]);
    for command in &commands {
        assert_eq!(command.get_str("apiVersion").unwrap(), "1");
        assert!(!command.get_bool("apiStrict").unwrap());
        assert!(!command.contains_key("apiDeprecationErrors"));
    }
    assert!(!commands[0].contains_key("helloOk"));
    assert_eq!(commands[0].get_str("backpressure").unwrap(), "2");
}

#[cfg(all(feature = "zlib", feature = "snappy"))]
#[tokio::test]
async fn compressors_are_offered_in_the_order_of_the_options() {
    let server = saying(doc! {}).await;
    let compressors = [wharf::Compressor::Zlib { level: 1 }, wharf::Compressor::Snappy];
    let options = Options::new([&*server.address()]).unwrap().compressors(compressors);
    drop(options.endpoint().unwrap().connect().await.unwrap());
    let offered = server.commands()[0].get_array("compression").unwrap().clone();
    assert_eq!(offered, ["zlib".into(), "snappy".into()]);
}

#[tokio::test]
async fn server_may_name_unknown_mechanisms() {
    // The login with SCRAM-SHA-1 still fails, but only after the client has accepted the unknown name.
    let server = saying(doc! { "saslSupportedMechs": ["NEW", 5] }).await;
    let error = connect(&server.address(), Credential::new("user", "pencil")).await.unwrap_err();
    assert_eq!(failure(&error).mechanism, Mechanism::ScramSha1);
    assert_eq!(server.command_names(), ["isMaster", "saslStart"]);
}
