//! The refusal of check-outs that would be served too late ([`PoolOptions::refuse_late`](crate::PoolOptions)).
//!
//! If a check-out with a time limit finds other check-outs waiting, and the pool expects to serve it only after its
//! limit, it is refused before it joins the queue. The pool estimates the time from the number of waiters and from its
//! *pace* (`pace.rs`).
//!
//! # The rule
//!
//! A check-out behind w waiters is served after w + 1 paces. While all c connections are in use, each use takes c
//! paces. So if the limit includes the use, as `timeoutMS` and a caller's deadline do, the check-out needs w + 1 + c
//! paces. A quarter is added to this estimate, which may be wrong. The check-out is refused if it has less time left
//! than that.
//!
//! The margin was chosen by simulating 1.5 times the load that the pool can serve, with limits ten times as long as a
//! use. Without the margin, all waiters were served just before their limits, and with random use times a third of the
//! work finished late. With a larger margin, a short burst leads to the refusal of check-outs that could have been
//! served in time.
//!
//! | state of the pool | a check-out with a limit |
//! | --- | --- |
//! | no waiter in the queue | is never refused. So a server that has stalled is always tried again: once the waiters have reached their own limits, the next check-out joins. |
//! | it may open more connections, and its budget, if it has one, is not used up | is never refused, and the pace is measured afresh, because the old pace says nothing about a larger pool |
//! | the pace is unknown: fewer waiters were served than there are connections, or no check-out has asked for the pace in the last ten seconds | is never refused |
//! | no waiter is being served | sees a pace that rises with the clock, and falls again when waiters are served |
//! | paused or closed | fails for that reason |
//! | suspended | waits outside of the queue until the pool is resumed, and may be refused only then |
//!
//! Openers do not count as waiters, because each opener adds a connection to the pool.
//!
//! # Why the order stays first come, first served
//!
//! The other known remedy is to serve the newest waiter first. The pool then does as much useful work as if it refused
//! check-outs, but the waiters that are passed over fail only when they reach their limits. At 95 % of the load that
//! the pool can serve, where no check-out need fail, this order makes some of the oldest waiters late. Moreover, the
//! newest waiter cannot be claimed with one swap of the list's word: its ticket would leave a gap, which only the
//! holder of the list's lock may make.

use std::time::Duration;

use super::core::Core;
use super::environment::Environment;
use super::state::Phase;
use crate::pool::error::{TimeLimit, TooLate};

/// The factor that is applied to the estimate, because neither the pace nor the use time is constant.
const MARGIN: f64 = 1.25;

impl<E: Environment> Core<E> {
    /// Starts the pace's clock, because a waiter is in the queue. Called under the wait list's lock.
    pub(super) fn queue_begins(&self) {
        if let Some(pace) = &self.measures.pace {
            pace.start(self.environment.stopwatch());
        }
    }

    /// Stops the pace's clock, because the queue has no waiters left. Called under the wait list's lock.
    pub(super) fn queue_ends(&self) {
        if let Some(pace) = &self.measures.pace {
            pace.stop(self.environment.stopwatch(), self.capacity.load().total);
        }
    }

    /// Counts a waiter that was granted a connection, or a permit to open one, towards the pace.
    #[inline]
    pub(super) fn waiter_is_served(&self) {
        if let Some(pace) = &self.measures.pace {
            pace.count();
        }
    }

    /// Returns why a check-out would be served too late if it joined the queue now, with this much time left until
    /// `limit`. Returns `None` if it would be served in time.
    ///
    /// Does not take the wait list's lock unless the check-out seems to be too late.
    pub fn too_late(&self, time_left: Duration, limit: TimeLimit) -> Option<TooLate> {
        let pace = self.measures.pace.as_ref()?;
        let joined = self.wait_list.span();
        if joined == 0 || self.state.load().phase != Phase::Ready {
            return None;
        }
        let total = self.capacity.load().total;
        let may_grow = total < self.limits().total && !self.lacks_budget();
        let nanos = pace.nanos(self.environment.stopwatch(), total, may_grow)?;
        // Connections beyond the maximum are closed when they are returned.
        let uses = if limit.includes_use() { total.min(self.limits().total) } else { 0 };
        let estimated = |waiting: u32| {
            let served = f64::from(waiting) + 1.0 + f64::from(uses);
            Duration::from_nanos((served * nanos * MARGIN) as u64)
        };
        if estimated(joined) <= time_left {
            return None;
        }
        // Some of these waiters may have left the queue, which only the holder of the lock can tell.
        let waiting = self.wait_list.lock().waiting();
        let (estimated, pace) = (estimated(waiting), Duration::from_nanos(nanos as u64));
        (waiting > 0 && estimated > time_left).then_some(TooLate { limit, time_left, estimated, pace })
    }
}
