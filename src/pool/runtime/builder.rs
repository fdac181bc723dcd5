//! The builder for a pool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::coarse::Coarse;
use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::failure::{FailedConnection, FailureSink};
use super::fork;
use super::holders::{HoldReports, HoldSink, LongHold};
use super::pool::Pool;
use super::publisher::{Publisher, Subscriber};
use super::stopwatch::Stopwatch;
use super::traced::SlowCheckOuts;
use crate::pool::core::{Budget, Core};
use crate::pool::options::{CheckBeforeUse, InvalidOption, PoolOptions};

/// Builds a [`Pool`].
///
/// After the pool is built, these methods return its settings: [`Pool::options`], [`Pool::timeout`],
/// [`Pool::max_waiting`], [`Pool::budget`], [`Pool::slow_check_out`], [`Pool::accounts_for_holders`],
/// [`Pool::holds_are_reported_after`], [`Pool::runtime`] and [`Pool::tokio_clock`]. Subscribers, the log, the failure
/// sink and the sinks for long holds cannot be read back: only the pool calls them.
///
/// ```no_run
/// use std::time::Duration;
/// use wharf::{Endpoint, FailedConnection, PoolOptions};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Endpoint::new("localhost")?
///     .pool()
///     .options(PoolOptions::default().max_pool_size(20))
///     .timeout(Some(Duration::from_secs(1)))
///     .subscriber(|event: &wharf::PoolEvent| println!("{}", event.name()))
///     .on_failure(|failed: &FailedConnection<'_>| eprintln!("{}", failed.error()))
///     .build()?;
/// # let _ = pool;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct PoolBuilder<E: Establish> {
    address: String,
    establish: E,
    options: PoolOptions,
    subscribers: Vec<Arc<dyn Subscriber>>,
    log: Option<Arc<dyn Subscriber>>,
    on_failure: Option<Arc<FailureSink>>,
    timeout: Option<Duration>,
    max_waiting: Option<u32>,
    budget: Option<Budget>,
    slow_check_out: Option<Duration>,
    accounts_for_holders: bool,
    reports_holds_after: Option<Duration>,
    on_long_hold: Vec<HoldSink>,
    runtime: Option<Handle>,
    tokio_clock: bool,
    has_tasks: bool,
}

impl<E: Establish> fmt::Debug for PoolBuilder<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuilder")
            .field("address", &self.address)
            .field("options", &self.options)
            .field("subscribers", &self.subscribers.len())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl<E: Establish> PoolBuilder<E> {
    pub(super) fn new(address: &str, establish: E) -> Self {
        Self {
            address: address.to_owned(),
            establish,
            options: PoolOptions::default(),
            subscribers: Vec::new(),
            log: None,
            on_failure: None,
            timeout: None,
            max_waiting: None,
            budget: None,
            slow_check_out: None,
            accounts_for_holders: false,
            reports_holds_after: None,
            on_long_hold: Vec::new(),
            runtime: None,
            tokio_clock: false,
            has_tasks: true,
        }
    }

    /// Sets the pool's options. The default is [`PoolOptions::default`].
    pub fn options(mut self, options: PoolOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds a subscriber. It receives all events, beginning with `PoolCreated`.
    pub fn subscriber(mut self, subscriber: impl Subscriber) -> Self {
        self.subscribers.push(Arc::new(subscriber));
        self
    }

    /// Sets the log, usually [`telemetry::Log`](crate::telemetry::Log). The log is a subscriber, but events are built
    /// for it only while some [`tracing`] subscriber may want messages at level `DEBUG` with the target
    /// `wharf::connection`. The log receives each event before the other subscribers do. By default there is no log.
    ///
    /// A log that is switched on while the pool is in use receives connection events and the pool's own events from the
    /// next event on. It receives check-out and check-in events once the pool has noticed the log: after at most 191
    /// more uses of a connection, or at the next call to [`Pool::ready`], if that comes first. A client makes that call
    /// after each successful check of the server, every ten seconds by default (`heartbeatFrequencyMS`). A connection
    /// that is in use at that time is later reported as checked in after a use of zero duration.
    pub fn log(mut self, log: impl Subscriber) -> Self {
        self.log = Some(Arc::new(log));
        self
    }

    /// Sets the failure sink, which is called when a connection cannot be established. It is usually the monitor of the
    /// server.
    ///
    /// It is called by the task that failed to open the connection, outside all locks. A panic in the sink is caught.
    /// Without a sink, only the check-out that requested the connection learns of the failure.
    ///
    /// A pool that the sink clears stays paused until [`Pool::ready`] is called. The sink does not receive the network
    /// errors from commands on established connections.
    pub fn on_failure(mut self, sink: impl Fn(&FailedConnection<'_>) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Arc::new(sink));
        self
    }

    /// Sets `timeoutMS`: how long a check-out without its own deadline may take in total, including the establishment
    /// of a new connection.
    ///
    /// If it is set, `waitQueueTimeoutMS` has no effect. Zero means no limit. By default it is not set (`None`), and
    /// [`PoolOptions::wait_queue_timeout`] limits the time in the queue.
    ///
    /// [`Endpoint::pool`](crate::Endpoint::pool) sets it to [`Options::timeout`](crate::Options::timeout).
    pub fn timeout(mut self, limit: Option<Duration>) -> Self {
        self.timeout = limit;
        self
    }

    /// Sets how many check-outs may wait at a time. A check-out beyond this number fails immediately with
    /// [`CheckOutError::WaitQueueFull`](crate::CheckOutError::WaitQueueFull), which contains the pool's numbers. By
    /// default (`None`), there is no limit.
    ///
    /// With a limit, a service sheds load that it cannot serve in time, instead of letting the queue grow. With zero, a
    /// check-out fails unless it finds a connection or may open one. A check-out that opens a connection does not count
    /// as waiting. Nor does a check-out from a suspended pool, until the pool is resumed.
    ///
    /// `ConnectionCheckOutFailed` is emitted with the reason "timeout", the closest of the reasons that the
    /// specification defines.
    #[doc(alias = "max_wait_queue_size")]
    #[doc(alias = "waitQueueSize")]
    pub fn max_waiting(mut self, limit: Option<u32>) -> Self {
        self.max_waiting = limit;
        self
    }

    /// Sets the budget that the pool shares with other pools. By default, the pool has no budget.
    ///
    /// The pool then holds at most `maxPoolSize` connections, and all pools under the budget together hold no more than
    /// the budget allows. See [`Budget`] for the rules by which the pools share it.
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// Sets how long a check-out may wait before the pool warns about it. By default (`None`) the pool does not warn.
    ///
    /// The warning is a `tracing` event at level `WARN` with the `wharf::connection` target, logged when the check-out
    /// ends: with a connection, with an error, or because its caller dropped it (`outcome`). It records how long the
    /// check-out waited (`waited_ms`, in milliseconds) and the pool's numbers at the end: `in_use`, `available`,
    /// `pending`, `waiting` and `max` (`maxPoolSize`; 0 means no limit). A pool logs at most one warning a second.
    /// `suppressed` is the number of slow check-outs that have gone unreported since the last warning.
    ///
    /// A check-out that finds a connection at once is not measured and costs nothing extra. A check-out that waits
    /// reads a clock twice and makes one more allocation.
    pub fn slow_check_out(mut self, threshold: Option<Duration>) -> Self {
        self.slow_check_out = threshold;
        self
    }

    /// Sets whether the pool accounts for the holders of its connections from the start. See
    /// [`Pool::account_for_holders`].
    pub fn account_for_holders(mut self, on: bool) -> Self {
        self.accounts_for_holders = on;
        self
    }

    /// Sets how long a connection may be in use before it is reported. See [`Pool::report_holds_after`]. The default is
    /// `None`.
    pub fn report_holds_after(mut self, threshold: Option<Duration>) -> Self {
        self.reports_holds_after = threshold;
        self
    }

    /// Adds a function that receives the reports of long holds. See [`Pool::on_long_hold`].
    pub fn on_long_hold(mut self, sink: impl Fn(&LongHold) + Send + Sync + 'static) -> Self {
        self.on_long_hold.push(Arc::new(sink));
        self
    }

    /// Sets the runtime for the pool's tasks. The default is the runtime that [`PoolBuilder::build`] is called on. When
    /// the runtime shuts down, the pool [moves](Pool#runtimes).
    pub fn runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Sets whether the durations of events and metrics are measured with tokio's clock, which tests can pause. By
    /// default, the pool uses a clock that is never paused and takes a third as long to read.
    ///
    /// The time after which a connection is [checked](Establish::check) is measured with the same clock. Idle times and
    /// time limits are always measured with tokio's clock.
    pub fn tokio_clock(mut self, on: bool) -> Self {
        self.tokio_clock = on;
        self
    }

    /// Keeps the pool from spawning tasks: a check-out opens its connection itself, and a connection that needs a drain
    /// is closed. Closing the pool, or changing it through [`Pool::conclude`], also does the background task's work.
    /// `minPoolSize` and the background interval have no effect.
    pub(crate) fn without_tasks(mut self) -> Self {
        self.has_tasks = false;
        self
    }

    /// Builds the pool. It starts paused.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if an option is invalid. If there is no runtime, the error names the `runtime` option.
    ///
    /// ```
    /// // Outside of a tokio runtime.
    /// let error = wharf::Endpoint::new("localhost").unwrap().pool().build().unwrap_err();
    /// assert_eq!(error.option, "runtime");
    /// ```
    pub fn build(self) -> Result<Pool<E>, InvalidOption> {
        let pool = self.begin()?;
        pool.deliver();
        Ok(pool)
    }

    /// Does the part of [`build`](Self::build) that does not call foreign code. [`Pool::deliver`] does the rest.
    pub(crate) fn begin(self) -> Result<Pool<E>, InvalidOption> {
        let runtime = match self.runtime {
            Some(runtime) => runtime,
            None => Handle::try_current().map_err(|_| no_runtime())?,
        };
        fork::watch();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let publisher = Publisher::new(self.subscribers).logged_by(self.log);
        let mut environment = TokioEnvironment::new(Arc::new(self.establish), publisher, self.on_failure, false);
        environment.timeout = self.timeout;
        environment.max_waiting = self.max_waiting;
        environment.budget = self.budget.as_ref().map(Budget::here);
        environment.has_tasks = self.has_tasks;
        if self.tokio_clock {
            environment.stopwatch = Stopwatch::tokio();
        }
        if !E::HAS_CHECK {
            self.options.refuse_check()?;
        } else if let CheckBeforeUse::IdleLongerThan(_) =
            self.options.check_before_use.unwrap_or(CheckBeforeUse::DEFAULT)
        {
            environment.coarse = if self.tokio_clock { Coarse::tokio() } else { Coarse::shared() };
        }
        environment.slow_check_outs = self.slow_check_out.map(SlowCheckOuts::new);
        environment.holds = HoldReports::new(self.on_long_hold);
        let pool = Pool::new(Core::begin(&self.address, self.options, threads, environment)?);
        pool.core.account_for_holders(self.accounts_for_holders);
        pool.core.report_holds_after(self.reports_holds_after);
        match pool.home(|| Some(runtime)) {
            Some(_) => Ok(pool),
            None => Err(no_runtime()),
        }
    }
}

/// Returns the error for a pool without a runtime.
fn no_runtime() -> InvalidOption {
    InvalidOption::because("runtime", "must be a tokio runtime that has not ended: build the pool on one, or name one")
}
