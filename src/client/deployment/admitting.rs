//! Admits servers to a deployment: each gets a pool, and an endpoint for its monitor.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use super::applying::Afterwards;
use super::server::{Member, Server};
use super::settled::Settled;
use super::state::{Deployment, State};
use crate::endpoint::options::{InvalidOption, ServerAddress};
use crate::endpoint::{Endpoint, HelloReply, Observer, Terms};
use crate::pool::error::EstablishError;
use crate::pool::runtime::FailedConnection;
use crate::telemetry::Log;

/// Links a server's pool to the deployment. Through this link, the pool asks for its terms and reports the reply to
/// each hello.
#[derive(Debug)]
struct Link {
    deployment: Weak<Deployment>,
    /// Set once the pool exists. The pool is paused until then, so it opens no connection before then.
    server: OnceLock<Weak<Server>>,
}

impl Link {
    fn ends(&self) -> Option<(Arc<Deployment>, Arc<Server>)> {
        Some((self.deployment.upgrade()?, self.server.get()?.upgrade()?))
    }
}

impl Observer for Link {
    fn terms(&self) -> Result<Terms, EstablishError> {
        self.ends().map_or_else(|| Ok(Terms::default()), |(deployment, server)| deployment.terms(&server))
    }

    fn greeted(&self, hello: &HelloReply, took: Duration, generation: u64) {
        if let Some((deployment, server)) = self.ends() {
            deployment.greeted(&server, hello, took, generation);
        }
    }
}

impl Deployment {
    /// Creates the pool of a server that now belongs to the deployment.
    pub(super) fn admit(
        self: &Arc<Self>,
        state: &State,
        address: &ServerAddress,
        after: &mut Afterwards,
    ) -> Option<Arc<Member>> {
        let runtime = state.home.clone()?;
        let replaced = self.replaced.load();
        let replaced = replaced.as_ref().and_then(|replaced| replaced.settled.as_ref());
        let settled = replaced.or_else(|| self.settled.get().map(Arc::as_ref))?;
        match self.server_at(address, settled, runtime) {
            Ok(server) => {
                after.created.push(server.clone());
                after.to_monitor.push(self.monitored(state, &server));
                Some(Arc::new(Member::new(server)))
            }
            Err(error) => {
                after.unusable.push((address.clone(), error));
                None
            }
        }
    }

    fn server_at(
        self: &Arc<Self>,
        address: &ServerAddress,
        settled: &Settled,
        runtime: Handle,
    ) -> Result<Arc<Server>, InvalidOption> {
        let link = Arc::new(Link { deployment: Arc::downgrade(self), server: OnceLock::new() });
        let endpoint = settled.endpoints.at(address)?.observed_by(link.clone());
        // ORD: Relaxed; the lock publishes it. A forked child reads it without the lock, on its only thread.
        let accounts_for_holders = self.accounts_for_holders.load(Ordering::Relaxed);
        let mut builder = endpoint.pool().account_for_holders(accounts_for_holders).log(Log::new()).runtime(runtime);
        if self.scans() {
            builder = builder.options(Self::options_of_one_connection(&settled.options.pool)).without_tasks();
        }
        if let Some(budget) = &self.budget {
            builder = builder.budget(budget);
        }
        for subscriber in &self.subscribers {
            let subscriber = subscriber.clone();
            builder = builder.subscriber(move |event: &crate::PoolEvent| subscriber.on_event(event));
        }
        let told = link.clone();
        builder = builder.on_failure(move |failed: &FailedConnection<'_>| {
            if let Some((deployment, server)) = told.ends() {
                deployment.establishment_failed(&server, failed);
            }
        });
        let pool = builder.begin()?;
        let is_monitored = !settled.options.is_load_balanced() && !self.scans();
        let probe = if is_monitored { Some(settled.probes.at(address)?) } else { None };
        let server = Arc::new(Server::new(address.clone(), pool, probe));
        let _ = link.server.set(Arc::downgrade(&server));
        Ok(server)
    }

    /// Creates, from these values, the endpoint of the server's pool and, if the server has a monitor, the monitor's
    /// endpoint.
    pub(super) fn endpoints_of(
        self: &Arc<Self>,
        server: &Arc<Server>,
        settled: &Settled,
    ) -> Result<(Endpoint, Option<Endpoint>), InvalidOption> {
        let link = Link { deployment: Arc::downgrade(self), server: OnceLock::from(Arc::downgrade(server)) };
        let endpoint = settled.endpoints.at(&server.address)?.observed_by(Arc::new(link));
        let probe = server.probe.as_ref().map(|_| settled.probes.at(&server.address)).transpose()?;
        Ok((endpoint, probe))
    }
}
