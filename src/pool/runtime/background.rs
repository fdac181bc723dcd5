//! A pool's background task.

use std::pin::pin;
use std::time::Duration;

use tokio::task::yield_now;

use super::alarm::alarm;
use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork;
use super::holders;
use super::home::HomeGuard;
use super::opening::open;
use crate::pool::core::{Core, Phase};
use crate::pool::options::BackgroundInterval;

/// The longest interval at which a pool under a budget checks whether connections in other pools have become idle.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs maintenance until the pool is closed: whenever the core requests it, and after each interval if the passage of
/// time can create work.
///
/// A run never waits. Separate tasks open the connections that `minPoolSize` requires. When such a task finishes, the
/// core requests the next run.
///
/// With [`BackgroundInterval::Never`], the task does not run maintenance. It then only detects the shutdown of its
/// runtime, and reports long holds.
pub(super) async fn keep<E: Establish>(guard: HomeGuard<E>) {
    let core = &guard.core;
    let mut holds = pin!(holders::watch(core));
    let interval = match core.options().interval() {
        BackgroundInterval::Every(interval) if core.is_budgeted() => Some(interval.min(LOOK_INTERVAL)),
        BackgroundInterval::Every(interval) => Some(interval),
        BackgroundInterval::Never => None,
    };
    // Whether `rest` will ever complete.
    let mut rests = core.needs_intervals();
    let mut rest = pin!(rest_of(core, interval));
    loop {
        if interval.is_some() {
            core.maintain();
            while let Some(pending) = core.populate() {
                let opening = fork::spawn(guard.handle(), open(core.clone(), pending, None, true));
                // If the runtime has shut down, the new task has already been cancelled, and this task stops at the
                // `await`.
                if opening.is_finished() {
                    yield_now().await;
                }
            }
        }
        let asked_for = core.environment().maintenance.notified();
        if core.state().phase == Phase::Closed {
            // A closed pool may still have connections in use, whose long holds are still reported.
            if core.holds_are_reported_after().is_none() || core.status().total == 0 {
                // The last check-in may have ended a long use, and `holds` may not have been polled since.
                holders::tell_news(core);
                // A clear just before the close may have asked for interruptions.
                if interval.is_some() {
                    core.maintain();
                }
                return;
            }
            tokio::select! {
                () = asked_for => {}
                () = &mut holds => {}
            }
            continue;
        }
        tokio::select! {
            // A request does not restart the interval, because restarting it for every connection that opens would be
            // expensive. But a resize may make intervals necessary.
            () = asked_for => if rests || !core.needs_intervals() { continue },
            () = &mut rest => {}
            () = &mut holds => continue,
        }
        rests = core.needs_intervals();
        rest.set(rest_of(core, interval));
    }
}

/// Waits until the interval has passed, or forever if the passage of time cannot create work.
///
/// Even a timer that does not fire has a cost: tokio then reads the clock whenever a thread goes to sleep. So if the
/// pool has a connection, the wait does not leave a timer in the runtime. Without a connection there are no commands to
/// slow down, and the runtime may lack the I/O driver that an alarm needs.
async fn rest_of<E: Establish>(core: &Core<TokioEnvironment<E>>, interval: Option<Duration>) {
    let Some(interval) = interval.filter(|_| core.needs_intervals()) else {
        return std::future::pending().await;
    };
    let status = core.status();
    if E::HAS_SOCKETS && status.available + status.in_use > 0 {
        alarm(interval).await;
    } else {
        tokio::time::sleep(interval).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::pool::error::EstablishError;
    use crate::pool::options::PoolOptions;
    use crate::pool::runtime::tests::Numbers;
    use crate::pool::runtime::{Establishing, Pool};

    const INTERVAL: Duration = Duration::from_millis(20);

    /// An establisher whose connections claim to have sockets.
    struct Sockets;

    impl Establish for Sockets {
        type Connection = ();
        const HAS_SOCKETS: bool = true;

        async fn establish(&self, _: Establishing) -> Result<(), EstablishError> {
            Ok(())
        }
    }

    fn pool<E: Establish>(establisher: E, home: &Runtime) -> Pool<E> {
        let _entered = home.enter();
        let options = PoolOptions::default().max_idle_time(Duration::from_secs(60));
        let pool = Pool::builder("pool", establisher).options(options).build().unwrap();
        pool.ready();
        pool
    }

    fn rest<E: Establish>(pool: &Pool<E>, on: &Runtime) {
        let begun = std::time::Instant::now();
        on.block_on(rest_of(&pool.core, Some(INTERVAL)));
        assert!(begun.elapsed() >= INTERVAL);
    }

    #[test]
    fn rest_needs_no_sockets_before_the_pool_has_a_connection_with_one() {
        let (home, timers) = (Builder::new_current_thread().enable_all().build().unwrap(), || {
            Builder::new_current_thread().enable_time().build().unwrap()
        });
        rest(&pool(Sockets, &home), &timers());
        let numbers = pool(Numbers, &home);
        drop(home.block_on(numbers.check_out()).unwrap());
        rest(&numbers, &timers());
    }

    /// The runtime that polls `rest_of` has no time driver, so tokio's timers would panic on it.
    #[cfg(target_os = "linux")]
    #[test]
    fn rest_of_a_pool_with_a_connection_leaves_no_timer_in_the_runtime() {
        let home = Builder::new_current_thread().enable_all().build().unwrap();
        let pool = pool(Sockets, &home);
        let held = home.block_on(pool.check_out()).unwrap();
        let sockets = || Builder::new_current_thread().enable_io().build().unwrap();
        rest(&pool, &sockets());
        drop(held);
        rest(&pool, &sockets());
    }
}
