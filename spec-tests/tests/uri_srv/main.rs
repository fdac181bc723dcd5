//! Deployments listed in DNS: the official cases, the prose tests, and additional cases.
//!
//! A name server in this process serves the records that the suite's README lists. One test runs all cases in the suite
//! `srv_seedlist` and asserts the seeds and the options. Another test runs them with a client against scripted servers.
//! It asserts which servers the client finds, and that a ping succeeds (`hosts`, `numHosts`, `ping`).
//!
//! The prose tests for the name `localhost` are in `src/endpoint/options/srv.rs`, because the resolver answers
//! questions about that name itself (RFC 6761), without asking a name server.
#![cfg(not(loom))]
#![cfg(feature = "srv")]

mod clients;
mod resolving;
mod suite;

use std::time::Duration;

use wharf::endpoint::hickory_resolver::TokioResolver;
use wharf::endpoint::hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use wharf::endpoint::hickory_resolver::net::runtime::TokioRuntimeProvider;
use wharf::{Options, ResolveError};
use wharf_spec_tests::values;
use wharf_testbed::dns::{DnsServer, Zone};

/// Returns a resolver that asks only this server.
fn resolver(server: &DnsServer) -> TokioResolver {
    let address = server.address();
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    let name_server = NameServerConfig::new(address.ip(), true, connections.into());
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    // Tests count the questions to the server, so the resolver must not retry.
    builder.options_mut().timeout = Duration::from_secs(60);
    builder.options_mut().attempts = 0;
    builder.build().expect("a resolver")
}

async fn start(zone: Zone) -> DnsServer {
    DnsServer::start(zone).await.expect("a name server")
}

async fn resolve(server: &DnsServer, uri: &str) -> Result<Options, ResolveError> {
    Options::parse(uri)?.resolve_with(&resolver(server)).await
}

fn hosts(options: &Options) -> Vec<&str> {
    options.hosts.iter().map(|address| address.as_str()).collect()
}
