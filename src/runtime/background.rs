//! The background task: one for each pool.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::establish::Establish;
use super::host::TokioHost;
use super::opening::open;
use crate::options::BackgroundInterval;
use crate::pool::{Core, Phase};

/// Runs until the pool is closed: whenever the core asks for it, and after each interval if time alone can bring work.
///
/// A run does what there is to do and ends; it waits for nothing. Connections towards `minPoolSize` are opened by
/// tasks of their own; when one is open or has failed, the core asks for the next run.
pub(super) async fn keep<E: Establish>(core: Arc<Core<E::Connection, TokioHost<E>>>, runtime: Handle) {
    let BackgroundInterval::Every(interval) = core.options().interval() else { return };
    loop {
        core.run();
        while let Some(pending) = core.populate() {
            runtime.spawn(open(core.clone(), pending, None));
        }
        if core.state().phase == Phase::Closed {
            return;
        }
        let asked_for = core.host().run.notified();
        if core.options().needs_intervals() {
            tokio::select! {
                () = asked_for => {}
                () = tokio::time::sleep(interval) => {}
            }
        } else {
            // A timer would not be free while it rests: with one, tokio reads the clock whenever a thread goes to sleep.
            asked_for.await;
        }
    }
}
