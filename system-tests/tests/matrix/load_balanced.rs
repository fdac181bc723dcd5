//! A load balancer behind TLS.

use bson::oid::ObjectId;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use wharf::ServiceId;
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};
use wharf_testbed::tls_front::TlsFront;

use super::*;

#[tokio::test]
async fn connections_through_tls_belong_to_the_services_of_their_hello() {
    let certificates = Certificates::create().unwrap();
    let trust = TlsOptions::default().ca_file(certificates.file(Pem::Authority));
    for version in [&TLS12, &TLS13] {
        let services = [ObjectId::new(), ObjectId::new()];
        let options = EmbeddedOptions { service_ids: services.to_vec(), ..EmbeddedOptions::default() };
        let services = services.map(ServiceId::from);
        let server = EmbeddedServer::start(options).await.unwrap();
        let address = server.address().parse().unwrap();
        let front = TlsFront::start(address, &certificates.file(Pem::Server), version, None).await.unwrap();
        let pool = pool_of(localhost(front.address().port()).tls(trust.clone()).load_balanced(true));
        let mut held = Vec::new();
        for turn in 0..4 {
            let mut connection = pool.check_out().await.unwrap();
            assert_eq!(connection.service_id(), Some(services[turn % 2]));
            let error = connection.run_command("admin", &rawdoc! { "nonsense": 1 }).await.unwrap_err();
            let origin = error.command_error().unwrap().origin();
            assert_eq!((origin.service_id, origin.generation), (Some(services[turn % 2]), Some(0)));
            held.push(connection);
        }
        let resumed = front.handshakes().iter().filter(|handshake| handshake.resumed).count();
        assert_eq!(resumed, 3, "{version:?}");
        // Clearing one service does not affect the other.
        assert!(pool.clear_service(services[0], wharf::Clear::new()).unwrap());
        let stale: Vec<_> = held.iter().map(|connection| connection.is_stale()).collect();
        assert_eq!(stale, [true, false, true, false]);
        drop(held);
        assert_eq!(pool.status().total, 2);
    }
}

#[tokio::test]
async fn failure_before_the_service_is_known_clears_nothing() {
    let certificates = Certificates::create().unwrap();
    let server = EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap();
    let address = server.address().parse().unwrap();
    let front = TlsFront::start(address, &certificates.file(Pem::Server), &TLS13, None).await.unwrap();
    for (authority, stage) in [(Pem::OtherAuthority, Stage::Tls), (Pem::Authority, Stage::Hello)] {
        let trust = TlsOptions::default().ca_file(certificates.file(authority));
        let options = localhost(front.address().port()).tls(trust).load_balanced(true);
        // A certificate that is not trusted, and a server that is not behind a load balancer.
        let (error, clears) = refused(options).await;
        assert_eq!((error.stage(), error.labels(), clears), (stage, Labels::NONE, false), "{error}");
    }
}
