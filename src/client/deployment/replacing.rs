//! Replaces the options that new connections use: the credential, TLS, and the compressors.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::settled::{Replaced, Settled};
use super::state::Deployment;
use crate::client::topology::TopologyDescription;
use crate::endpoint::Endpoints;
use crate::endpoint::options::{InvalidOption, Options};
use crate::pool::runtime::Pool;

impl Deployment {
    /// Opens all later connections with the credential, TLS and the compressors from these options, and renews the
    /// pools.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidOption`] in the same cases as [`Deployment::new`], and for options that cannot be replaced. In
    /// that case, nothing changes.
    pub(crate) fn replace_options(self: &Arc<Self>, options: Options) -> Result<(), InvalidOption> {
        options.validate()?;
        // A TXT record may have added options. The new options may or may not include these additions.
        let check = self.options().check_replacement(&options);
        check.or_else(|error| self.given().check_replacement(&options).map_err(|_| error))?;
        let mut pools = Vec::new();
        {
            let _turn = self.replacing();
            let Some(present) = self.settled.get() else {
                // Reads the files, so that an error is reported now rather than when the servers are known.
                let next = self.given().with_replaced(&options);
                let handshake = Arc::new(self.handshake().with_compressors(&next));
                Endpoints::new(Arc::new(next), handshake)?;
                self.replaced.store(Some(Arc::new(Replaced { options, settled: None })));
                return Ok(());
            };
            let (next, _) = self.settled_with(present.options.with_replaced(&options))?;
            let _state = self.lock();
            let snapshot = self.snapshot();
            let servers = snapshot.members().iter().flatten().map(|member| &member.server);
            let servers = servers.map(|server| Ok((server, self.endpoints_of(server, &next)?)));
            let servers = servers.collect::<Result<Vec<_>, InvalidOption>>()?;
            for (server, (endpoint, next_probe)) in servers {
                if let (Some(probe), Some(next)) = (&server.probe, next_probe) {
                    probe.store(Arc::new(next));
                }
                server.pool.set_establisher(endpoint);
                pools.push(server.pool.clone());
            }
            self.replaced.store(Some(Arc::new(Replaced { options, settled: Some(next) })));
        }
        // This happens outside the lock, because it closes connections, and their events may reach subscribers.
        pools.iter().for_each(Pool::renew);
        Ok(())
    }

    /// Waits until no other replacement of options is in progress, and locks out other replacements.
    pub(super) fn replacing(&self) -> MutexGuard<'_, ()> {
        // The lock protects no data.
        self.replacing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the values derived from these options, which must contain the servers, and from the latest replacement,
    /// if there is one.
    pub(super) fn settled_now(&self, options: Options) -> Result<(Settled, TopologyDescription), InvalidOption> {
        match self.replaced.load_full() {
            Some(replaced) => self.settled_with(options.with_replaced(&replaced.options)),
            None => self.settled_with(options),
        }
    }

    fn settled_with(&self, options: Options) -> Result<(Settled, TopologyDescription), InvalidOption> {
        let handshake = self.handshake().with_compressors(&options);
        Settled::new(options, &Arc::new(handshake))
    }
}
