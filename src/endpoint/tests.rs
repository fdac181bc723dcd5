//! What needs a load-balanced pool's side of an establishment. All else is tested from outside, in
//! `spec-tests/endpoint.rs`.

use std::sync::Mutex;

use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};

use super::*;
use crate::error::Labels;
use crate::wire::hello::LoadBalancingUnsupported;

/// Opens a load-balanced connection, and returns it with the services that were identified.
async fn open(server: &EmbeddedServer) -> (Result<EndpointConnection, EstablishError>, Vec<ObjectId>) {
    let endpoint = Endpoint::new(&server.address()).unwrap();
    let identified = Mutex::new(Vec::new());
    let identify = |id| identified.lock().unwrap().push(id);
    let connection = endpoint.open(Place { connection_id: 1, generation: 0, identify: Some(&identify) }).await;
    (connection, identified.into_inner().unwrap())
}

#[tokio::test]
async fn a_load_balanced_connection_identifies_the_service_of_its_hello() {
    let service_ids = vec![ObjectId::new(), ObjectId::new()];
    let options = EmbeddedOptions { service_ids: service_ids.clone(), ..EmbeddedOptions::default() };
    let server = EmbeddedServer::start(options).await.unwrap();
    for turn in 0..4 {
        let (connection, identified) = open(&server).await;
        assert_eq!(identified, [service_ids[turn % 2]]);
        assert_eq!(connection.unwrap().hello().service_id, Some(service_ids[turn % 2]));
    }

    let hello = server.counters().last_handshake.unwrap();
    assert!(hello.get_bool("loadBalanced").unwrap());
    assert_eq!(server.counters().commands("hello"), 4);
    assert_eq!(server.counters().commands("isMaster"), 0);
}

#[tokio::test]
async fn a_server_without_load_balancing_is_refused_with_the_specifications_message() {
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let (connection, identified) = open(&server).await;
    let error = connection.unwrap_err();
    assert_eq!(identified, []);
    assert_eq!((error.stage, error.labels), (Stage::Hello, Labels::NONE));
    assert!(error.source.is::<LoadBalancingUnsupported>());
    assert_eq!(
        error.source.to_string(),
        "Driver attempted to initialize in load balancing mode, but the server does not support this mode."
    );
}

#[tokio::test]
async fn a_connection_without_load_balancing_has_no_service() {
    let options = EmbeddedOptions { service_ids: vec![ObjectId::new()], ..EmbeddedOptions::default() };
    let server = EmbeddedServer::start(options).await.unwrap();
    let connection = Endpoint::new(&server.address()).unwrap().connect().await.unwrap();
    assert_eq!(connection.hello().service_id, None);
}
