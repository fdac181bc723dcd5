//! A client's deployment in a forked child.
//!
//! The child inherits the memory of the monitors, but not the threads that run them, and it may inherit locks that
//! these threads held. So the child neither uses nor drops its parent's deployment. The child starts with a new
//! deployment, in which no server has been checked yet.

use std::sync::{Arc, OnceLock};

use super::state::Deployment;
use crate::pool::runtime::OfThisProcess;

/// The deployment of this process. Dropping it closes the deployment.
pub(crate) struct Present {
    deployment: OfThisProcess<Arc<Deployment>>,
    after_fork: OnceLock<Box<Self>>,
}

impl Present {
    pub(crate) fn new(deployment: Arc<Deployment>) -> Self {
        Self { deployment: OfThisProcess::new(deployment), after_fork: OnceLock::new() }
    }

    #[inline]
    pub(crate) fn here(&self) -> &Arc<Deployment> {
        if self.deployment.is_inherited() { self.after_fork() } else { &self.deployment }
    }

    #[cold]
    fn after_fork(&self) -> &Arc<Deployment> {
        self.after_fork.get_or_init(|| Box::new(Self::new(self.deployment.successor()))).here()
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        if !self.deployment.is_inherited() {
            self.deployment.close();
        }
    }
}
