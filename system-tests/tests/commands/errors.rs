//! The contents of an error: where it happened, and its consequences for the server and the pool.

use bson::oid::ObjectId;
use wharf::unstable::wire::reply::StateChange;
use wharf::{Clear, Command, CommandError, OperationError, Phase, ServiceId};

use super::*;

#[tokio::test]
async fn error_names_its_connection_and_generation() {
    let server = start().await;
    let pool = pool_of(options(&server.address()));
    pool.clear(Clear::new()).unwrap();
    pool.ready();
    let first = pool.check_out().await.unwrap();
    let mut connection = pool.check_out().await.unwrap();
    let error = connection.run_command("admin", &rawdoc! { "nonsense": 1 }).await.unwrap_err();
    let origin = error.command_error().unwrap().origin();
    assert_eq!((&*origin.address, origin.connection_id, origin.generation), (&*server.address(), Some(2), Some(1)));
    assert_eq!(origin.server_connection_id, connection.hello().server_connection_id);
    assert!(origin.server_connection_id.is_some() && origin.service_id.is_none());
    let theirs = origin.server_connection_id.unwrap();
    let place = format!("{} (connection 2, server connection {theirs})", server.address());
    assert!(error.to_string().contains(&place), "{error}");
    drop(first);

    let mut alone = Endpoint::new(&server.address()).unwrap().connect().await.unwrap();
    let failure = alone.run_command("admin", &rawdoc! { "nonsense": 1 }).await.unwrap_err();
    assert_eq!((failure.origin().connection_id, failure.origin().generation), (None, None));
}

#[tokio::test]
async fn load_balanced_error_names_its_service_and_the_services_generation() {
    let services = [ObjectId::new(), ObjectId::new()];
    let server = EmbeddedServer::start(EmbeddedOptions { service_ids: services.to_vec(), ..Default::default() });
    let server = server.await.unwrap();
    let pool = pool_of(options(&server.address()).load_balanced(true));
    let services = services.map(ServiceId::from);
    // Services are assigned in turn: the first and the third connection belong to the first service.
    let mut held = Vec::new();
    for turn in 0..3 {
        let connection = pool.check_out().await.unwrap();
        assert_eq!(connection.service_id(), Some(services[turn % 2]));
        held.push(connection);
    }
    let of = |error: &OperationError| {
        let origin = error.command_error().unwrap().origin().clone();
        (origin.connection_id, origin.service_id, origin.generation)
    };
    let refused = held[2].run_command("admin", &rawdoc! { "nonsense": 1 }).await.unwrap_err();
    assert_eq!(of(&refused), (Some(3), Some(services[0]), Some(0)));

    let close = doc! { "failCommands": ["ping"], "closeConnection": true };
    // The fail point is set over a connection that is not load-balanced. A real load balancer would not allow this.
    set_fail_point(&server, doc! { "times": 2 }, close).await;
    let mut errors = Vec::new();
    for connection in [2, 0] {
        let error = held[connection].run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
        assert_eq!(of(&error), (Some(connection as u64 + 1), Some(services[0]), Some(0)));
        errors.push(error);
    }
    assert!(pool.clear_after(&errors[0]));
    assert!(!pool.clear_after(&errors[1]), "an error of an older generation cleared its service");
    assert_eq!((pool.status().phase, pool.status().generation), (Phase::Ready, 0), "the whole pool was cleared");
    assert_eq!(pool.service(services[0]).map(|status| status.generation), Some(1));
    assert_eq!(pool.service(services[1]).map(|status| status.generation), Some(0));
    assert!(held[0].is_stale() && !held[1].is_stale());
    held[1].run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();

    // The next connection to the first service belongs to its new generation. The fail point was set over the fourth
    // connection.
    let mut next = pool.check_out().await.unwrap();
    let refused = next.run_command("admin", &rawdoc! { "nonsense": 1 }).await.unwrap_err();
    assert_eq!(of(&refused), (Some(4), Some(services[0]), Some(1)));
}

#[tokio::test]
async fn network_error_clears_the_pool_once_per_generation() {
    let server = start().await;
    let pool = pool_of(options(&server.address()));
    let close = doc! { "failCommands": ["ping"], "closeConnection": true };
    set_fail_point(&server, doc! { "times": 2 }, close).await;
    let mut errors = Vec::new();
    let mut connections = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
    for connection in &mut connections {
        let error = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
        assert!(error.clears_pool() && error.marks_server_unknown() && !error.is_timeout() && !error.is_retryable());
        errors.push(error);
    }
    assert_eq!(
        (pool.status().phase, pool.status().generation),
        (Phase::Ready, 0),
        "the pool was cleared without clear_after"
    );
    assert!(pool.clear_after(&errors[0]));
    assert!(!pool.clear_after(&errors[1]), "an error of an older generation cleared the pool");
    assert_eq!((pool.status().phase, pool.status().generation), (Phase::Paused, 1));
    let refused = pool.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    assert!(matches!(refused, OperationError::CheckOut(_)) && refused.is_retryable());
    assert!(refused.to_string().contains(&errors[0].to_string()), "{refused}");
    assert!(!pool.clear_after(&refused));
}

#[tokio::test]
async fn state_change_is_reported_and_only_a_shutdown_clears_the_pool() {
    let server = start().await;
    let pool = pool_of(options(&server.address()));
    for (code, change, clears) in [
        (91, Some(StateChange::ShuttingDown), true),
        (189, Some(StateChange::Recovering), false),
        (10107, Some(StateChange::NotWritablePrimary), false),
        (11000, None, false),
    ] {
        let fail = doc! { "failCommands": ["ping"], "errorCode": code, "errorLabels": ["RetryableError"] };
        set_fail_point(&server, doc! { "times": 1 }, fail).await;
        let error = pool.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
        assert_eq!(error.state_change(), change, "{code}");
        assert_eq!((error.clears_pool(), error.marks_server_unknown()), (clears, change.is_some()), "{code}");
        assert!(error.is_retryable() && error.has_label("RetryableError") && !error.has_label("SystemOverloadedError"));
        assert_eq!(pool.clear_after(&error), clears);
        pool.ready();
    }
}

#[tokio::test]
async fn reply_without_a_valid_ok_closes_the_connection() {
    let (listener, address) = listen().await;
    let endpoint = Endpoint::new(&address).unwrap();
    let (connection, mut peer) = tokio::join!(endpoint.connect(), Peer::accept(&listener));
    let mut connection = connection.unwrap();
    let ping = rawdoc! { "ping": 1 };
    let (outcome, ()) = tokio::join!(connection.run(Command::new("admin", &ping)), async {
        let request = peer.receive().await;
        peer.reply(&request, &rawdoc! { "ko": 1 }).await;
    });
    let failure = outcome.unwrap_err();
    assert!(matches!(failure, CommandError::Wire { .. }) && !failure.clears_pool(), "{failure}");
    assert!(!connection.condition().is_reusable());
    assert_eq!(failure.origin().server_connection_id, Some(77));
}
