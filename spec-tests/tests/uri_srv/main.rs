//! Deployments that the DNS lists: the specification's own cases, its prose tests, and more of the kind.
//!
//! A name server in this process has the records that the suite's README lists. The cases are those of the suite
//! `srv_seedlist`, all of them, up to the servers that are found and the options that result; nothing is connected to,
//! because the servers and their state (`hosts`, `numHosts`, `ping`) are a client's affair.
//!
//! The prose tests of the name `localhost` are in `src/options/srv.rs`, because the resolver answers by itself for that
//! name (RFC 6761) and asks nobody.
#![cfg(not(loom))]
#![cfg(feature = "srv")]

mod resolving;
mod suite;

use std::time::Duration;

use wharf::endpoint::hickory_resolver::TokioResolver;
use wharf::endpoint::hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use wharf::endpoint::hickory_resolver::net::runtime::TokioRuntimeProvider;
use wharf::{Options, ResolveError};
use wharf_spec_tests::values;
use wharf_testbed::dns::{DnsServer, Zone};

/// A resolver that asks this server and no other.
fn resolver(server: &DnsServer) -> TokioResolver {
    let address = server.address();
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    let name_server = NameServerConfig::new(address.ip(), true, connections.into());
    let config = ResolverConfig::from_parts(None, Vec::new(), vec![name_server]);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    // A test's answer comes at once or never, and what is asked is counted.
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
