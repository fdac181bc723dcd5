//! The background task. Each pool has one.

use std::pin::pin;

use super::establish::Establish;
use super::fork;
use super::holders;
use super::home::Resident;
use super::opening::open;
use crate::options::BackgroundInterval;
use crate::pool::Phase;

/// Runs maintenance until the pool is closed: when the core asks for it, and after each interval if time alone can
/// leave work.
///
/// A run never waits. Connections towards `minPoolSize` are opened by separate tasks. When such a task ends, the core
/// asks for the next run.
///
/// With [`BackgroundInterval::Never`] the task runs no maintenance. It exists to notice the end of its runtime.
pub(super) async fn keep<E: Establish>(resident: Resident<E>) {
    let core = &resident.core;
    let mut holds = pin!(holders::watch(core));
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
        let asked_for = core.environment().maintenance.notified();
        if core.state().phase == Phase::Closed {
            // A pool that is closed waits for its connections in use, so their holders matter still.
            if core.holds_are_reported_after().is_none() || core.status().total == 0 {
                // The last check-in may have told of the end of a long use, and `holds` may not have been polled since.
                holders::tell_news(core);
                return;
            }
            tokio::select! {
                () = asked_for => {}
                () = &mut holds => {}
            }
            continue;
        }
        // Even a timer that does not fire has a cost: tokio then reads the clock whenever a thread goes to sleep.
        match interval {
            Some(interval) => tokio::select! {
                () = asked_for => {}
                () = tokio::time::sleep(interval) => {}
                () = &mut holds => {}
            },
            None => tokio::select! {
                () = asked_for => {}
                () = &mut holds => {}
            },
        }
    }
}
