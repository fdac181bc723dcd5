//! A client's deployment in a forked child.
//!
//! The child inherits the memory of the monitors, but not the threads that run them, and it may inherit locks that those
//! threads held. So it neither uses nor drops its parent's deployment. It starts with a new one that knows nothing yet.

use std::sync::{Arc, OnceLock};

use super::state::Deployment;
use crate::pool::runtime::{forks, watch_forks};

/// The deployment of this process. Dropping it closes the deployment.
pub(crate) struct Present {
    /// The number of forks before this deployment was created.
    forks: u32,
    deployment: Arc<Deployment>,
    after_fork: OnceLock<Box<Self>>,
}

impl Present {
    pub(crate) fn new(deployment: Arc<Deployment>) -> Self {
        watch_forks();
        Self { forks: forks(), deployment, after_fork: OnceLock::new() }
    }

    /// Returns the deployment.
    #[inline]
    pub(crate) fn here(&self) -> &Arc<Deployment> {
        if self.forks == forks() { &self.deployment } else { self.after_fork() }
    }

    #[cold]
    fn after_fork(&self) -> &Arc<Deployment> {
        self.after_fork.get_or_init(|| Box::new(Self::new(self.deployment.successor()))).here()
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        if self.forks == forks() {
            self.deployment.close();
        } else {
            // Never dropped in the child, because it belongs to the parent.
            std::mem::forget(self.deployment.clone());
        }
    }
}
