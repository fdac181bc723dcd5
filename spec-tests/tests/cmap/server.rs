//! The integration files: a real `mongod` with its fail points, in real time.

use bson::{Bson, Document, RawDocumentBuf, doc};
use serde_json::Value;
use wharf::{DirectConnection, Endpoint, Options};
use wharf_testbed::mongod::{Mongod, MongodOptions};

use super::case::Case;
use super::runner;

/// Runs an integration file on a separate server, because a server has only one fail point with each name, and does not
/// switch it off while it still blocks a command.
pub fn run(case: &Case) {
    let server = Mongod::start(MongodOptions::default()).expect("a mongod");
    let address = server.address().to_string();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut admin = Endpoint::new(&address).unwrap().connect().await.expect("a connection for commands");
        let version = version(&mut admin).await;
        assert!(
            case.run_on.is_empty() || case.run_on.iter().any(|range| admits(range, &version)),
            "the server is {version:?}, but the file is for {:?}",
            case.run_on
        );
        if let Some(fail_point) = &case.fail_point {
            set(&mut admin, fail_point).await;
        }
        let mut options = Options::new([address.as_str()]).unwrap();
        if let Some(name) = &case.app_name {
            options = options.app_name(name);
        }
        runner::run(case, &address, options.endpoint().unwrap(), |_| panic!("only a mock's connection can be spoiled"))
            .await;
    });
}

async fn set(admin: &mut DirectConnection, fail_point: &Value) {
    let Bson::Document(given) = to_bson(fail_point) else { panic!("a fail point is a document") };
    // The command's name must come first.
    let mut ordered = doc! { "configureFailPoint": given.get("configureFailPoint").expect("a fail point's name") };
    ordered.extend(given);
    command(admin, ordered).await;
}

async fn version(admin: &mut DirectConnection) -> Vec<u32> {
    let reply = command(admin, doc! { "buildInfo": 1 }).await;
    parts(reply.get_str("version").expect("a version"))
}

async fn command(admin: &mut DirectConnection, command: Document) -> Document {
    let command = RawDocumentBuf::try_from(&command).expect("a command");
    let reply = admin.run_command("admin", &command).await.expect("a successful command");
    Document::try_from(reply.as_ref()).expect("a reply")
}

fn admits(range: &Value, version: &Vec<u32>) -> bool {
    let bound = |name: &str| range[name].as_str().map(parts);
    bound("minServerVersion").is_none_or(|least| *version >= least)
        && bound("maxServerVersion").is_none_or(|most| *version <= most)
}

fn parts(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().expect("a number")).collect()
}

fn to_bson(value: &Value) -> Bson {
    match value {
        Value::Null => Bson::Null,
        Value::Bool(flag) => Bson::Boolean(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => i32::try_from(whole).map_or(Bson::Int64(whole), Bson::Int32),
            None => Bson::Double(number.as_f64().expect("a number")),
        },
        Value::String(text) => Bson::String(text.clone()),
        Value::Array(items) => Bson::Array(items.iter().map(to_bson).collect()),
        Value::Object(fields) => {
            Bson::Document(fields.iter().map(|(name, value)| (name.clone(), to_bson(value))).collect())
        }
    }
}
