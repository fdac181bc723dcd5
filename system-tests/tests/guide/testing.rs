use std::sync::LazyLock;

use wharf::{Client, Database};

/// The client of all tests of a file. It moves to the runtime of each test.
static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    let uri = std::env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://localhost:27017/?replicaSet=rs0".to_owned());
    Client::from_uri(&uri).expect("MONGODB_URI should be a connection string")
});

/// Returns a database that only the test with this name uses, even if two runs of the tests overlap.
pub fn database(test: &str) -> Database {
    CLIENT.database(format!("{test}_{}", std::process::id()))
}
