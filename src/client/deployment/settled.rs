//! The values derived from a deployment's options.

use std::sync::Arc;

use crate::client::topology::TopologyDescription;
use crate::endpoint::options::{InvalidOption, Options};
use crate::endpoint::{Endpoints, Handshake};

/// The values derived from the options, once the servers are known.
pub(super) struct Settled {
    pub(super) options: Arc<Options>,
    /// Creates the endpoints of pools.
    pub(super) endpoints: Endpoints,
    /// Creates the endpoints of monitors. These endpoints have no credential, because monitors do not authenticate.
    pub(super) probes: Endpoints,
}

/// The latest options with which the application replaced the credential, the TLS options and the compressors.
pub(super) struct Replaced {
    pub(super) options: Options,
    /// The values derived from these options. `None` if the servers were not known yet.
    pub(super) settled: Option<Settled>,
}

impl Settled {
    /// Reads the files that the options name, and creates the description of the servers.
    pub(super) fn new(
        options: Options,
        handshake: &Arc<Handshake>,
    ) -> Result<(Self, TopologyDescription), InvalidOption> {
        let topology = TopologyDescription::of_options(&options)
            .map_err(|error| InvalidOption::because("hosts", error.to_string()))?;
        let options = Arc::new(options);
        let mut of_monitors = Options::clone(&options);
        of_monitors.credential = None;
        of_monitors.timeout = None;
        let probes = Endpoints::new(Arc::new(of_monitors), handshake.clone())?;
        let endpoints = Endpoints::new(options.clone(), handshake.clone())?;
        for server in topology.servers() {
            // Refuses an unusable seed now rather than in the first operation.
            let _ = endpoints.at(&server.address)?;
        }
        Ok((Self { options, endpoints, probes }, topology))
    }
}
