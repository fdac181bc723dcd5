//! The background task: one for each pool.

use super::establish::Establish;
use super::fork;
use super::home::Resident;
use super::opening::open;
use crate::options::BackgroundInterval;
use crate::pool::Phase;

/// Runs until the pool is closed: whenever the core asks for it, and after each interval if time alone can bring work.
///
/// A run does what there is to do and ends; it waits for nothing. Connections towards `minPoolSize` are opened by
/// tasks of their own; when one is open or has failed, the core asks for the next run.
///
/// With [`BackgroundInterval::Never`] it runs nothing, and is there to notice the end of its runtime.
pub(super) async fn keep<E: Establish>(resident: Resident<E>) {
    let core = &resident.core;
    loop {
        let interval = match core.options().interval() {
            BackgroundInterval::Every(interval) => {
                core.maintain();
                while let Some(pending) = core.populate() {
                    resident.handle().spawn(fork::own(open(core.clone(), pending, None)));
                }
                core.options().needs_intervals().then_some(interval)
            }
            BackgroundInterval::Never => None,
        };
        if core.state().phase == Phase::Closed {
            return;
        }
        let asked_for = core.environment().maintenance.notified();
        // A timer would not be free while it rests: with one, tokio reads the clock whenever a thread goes to sleep.
        match interval {
            Some(interval) => tokio::select! {
                () = asked_for => {}
                () = tokio::time::sleep(interval) => {}
            },
            None => asked_for.await,
        }
    }
}
