//! Connecting before the first operation, and what the client reports about its connections.

use bson::rawdoc;
use wharf::ClientError;
use wharf::client::ServerSelectionError;
use wharf::single::Client;
use wharf_testbed::balancer::Balancer;
use wharf_testbed::{mongod, replica_set};

/// Returns how many connections each server has accepted, and how many are open and idle.
fn connections(client: &Client) -> Vec<(u64, u32)> {
    client.metrics().iter().map(|pool| (pool.connections.created, pool.status.available)).collect()
}

#[test]
fn warm_client_has_one_connection_to_each_member() {
    let set = replica_set::shared().unwrap();
    let client = Client::from_uri(&set.uri()).unwrap();
    assert_eq!(connections(&client), []);
    for _ in 0..2 {
        client.warm_up().unwrap();
        assert_eq!(connections(&client), [(1, 1); 3]);
    }
    let mut addresses: Vec<_> = client.metrics().iter().map(|pool| pool.address.to_string()).collect();
    let mut members: Vec<_> = set.addresses().iter().map(ToString::to_string).collect();
    addresses.sort();
    members.sort();
    assert_eq!(addresses, members);
    // Each command uses the existing connection to the primary.
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    let hits = |client: &Client| client.metrics().iter().map(|pool| pool.check_outs.hits).sum::<u64>();
    let before = hits(&client);
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    assert_eq!((hits(&client), connections(&client)), (before + 1, vec![(1, 1); 3]));
}

#[test]
fn warm_client_behind_a_load_balancer_has_a_connection() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = mongod::shared().unwrap();
    let balancer = runtime.block_on(Balancer::start(server.address(), 1)).unwrap();
    let client = Client::from_uri(&format!("mongodb://{}/?loadBalanced=true", balancer.address())).unwrap();
    // A scan alone would not have opened this connection.
    client.warm_up().unwrap();
    assert_eq!(connections(&client), [(1, 1)]);
}

#[test]
fn client_that_finds_no_server_or_is_closed_does_not_get_warm() {
    let server = mongod::shared().unwrap();
    let client = Client::from_uri(&format!("mongodb://{}/?replicaSet=none", server.address())).unwrap();
    assert!(matches!(client.warm_up(), Err(ClientError::Selection(_))));
    let client = Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    client.warm_up().unwrap();
    client.shutdown(std::time::Duration::from_secs(10)).unwrap();
    let refused = client.warm_up().unwrap_err();
    let ClientError::Selection(error) = &refused else { panic!("{refused}") };
    assert!(matches!(error, ServerSelectionError::Closed), "{error}");
}
