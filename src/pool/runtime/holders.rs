//! The methods of `Pool` that account for the holders of its connections, and the reports of long holds.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::pool::Pool;
use super::publisher::List;
use crate::pool::core::{Core, HoldReview};
use crate::pool::holder::Holder;
use crate::pool::sync::contain;

const TARGET: &str = "wharf::holders";

pub(super) type HoldSink = Arc<dyn Fn(&LongHold) + Send + Sync>;

/// A report that a connection has been in use for longer than the threshold, or that a use reported earlier has ended.
/// See [`Pool::report_holds_after`].
///
/// The report prints as a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LongHold {
    /// The pool's address.
    pub address: Arc<str>,
    /// The connection, and where it was checked out. [`Holder::held_for`] is the time up to this report, or up to the
    /// check-in.
    pub holder: Holder,
    /// Whether the connection has been checked in since it was reported.
    pub has_ended: bool,
    /// The threshold at the time of the report. `None` if it has been removed since the first report.
    pub threshold: Option<Duration>,
}

impl fmt::Display for LongHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, holder, has_ended, .. } = self;
        match has_ended {
            false => write!(f, "a connection to {address} is held for long: {holder}"),
            true => write!(f, "a connection to {address} that was held for long came back: {holder}"),
        }
    }
}

/// The sinks for a pool's reports, and the notification that requests a review of the connections in use.
#[derive(Default)]
pub(super) struct HoldReports {
    sinks: List<HoldSink>,
    requested: Notify,
}

impl HoldReports {
    pub(super) fn new(sinks: Vec<HoldSink>) -> Self {
        Self { sinks: sinks.into_iter().collect(), requested: Notify::new() }
    }

    pub(super) fn sinks(&self) -> Vec<HoldSink> {
        self.sinks.iter().cloned().collect()
    }

    pub(super) fn request(&self) {
        self.requested.notify_one();
    }

    fn tell(&self, report: &LongHold) {
        let LongHold { address, holder, .. } = report;
        let Holder { connection_id, held_for, call_site, task_id, .. } = holder;
        let site = call_site.map(tracing::field::display);
        let ms = u64::try_from(held_for.as_millis()).unwrap_or(u64::MAX);
        let address: &str = address;
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    target: TARGET, address, driverConnectionId = connection_id, heldMS = ms, callSite = site,
                    taskId = task_id, "{report}"
                )
            };
        }
        // A panic in a tracing subscriber must neither stop the background task nor keep the report from the sinks.
        contain(|| if report.has_ended { log!(info) } else { log!(warn) });
        for sink in self.sinks.iter() {
            // If a sink panics, the others still receive the report.
            contain(|| sink(report));
        }
    }
}

/// Reports long holds. Never completes. While no threshold is set, it waits for one without using a timer.
pub(super) async fn watch<E: Establish>(core: &Core<TokioEnvironment<E>>) {
    let reports = &core.environment().holds;
    loop {
        let next = tell_news(core);
        let requested = reports.requested.notified();
        match next {
            Some(next) => tokio::select! {
                () = requested => {}
                () = tokio::time::sleep(next) => {}
            },
            None => requested.await,
        }
    }
}

/// Reports new long holds, and the end of each reported hold. Returns the time until there may be more to report.
pub(super) fn tell_news<E: Establish>(core: &Core<TokioEnvironment<E>>) -> Option<Duration> {
    let HoldReview { long, ended, threshold, next } = core.review_holds();
    for (holders, has_ended) in [(long, false), (ended, true)] {
        for holder in holders {
            let report = LongHold { address: core.address().clone(), holder, has_ended, threshold };
            core.environment().holds.tell(&report);
        }
    }
    next
}

impl<E: Establish> Pool<E> {
    /// Switches the accounting for the holders of the pool's connections ([`Pool::holders`]) on or off. It is off by
    /// default.
    ///
    /// Accounting may be switched on or off at any time, even while the pool is in use. Later check-outs are recorded
    /// with their call site and task. A connection that was checked out earlier is listed without them.
    ///
    /// # Cost
    ///
    /// While accounting is off, it costs one extra pointer in the future of each check-out. While it is on, a check-out
    /// that finds a connection reads the clock and writes one cache line, and its check-in executes one more locked
    /// instruction. Neither takes a lock, except once for each connection that existed when accounting was switched on.
    /// The [guide](crate::guide::metrics_and_traces#holders-of-connections) has figures. Each connection that has been
    /// checked out since then takes another 64 bytes.
    pub fn account_for_holders(&self, on: bool) {
        self.here().core.account_for_holders(on);
    }

    /// Returns whether the pool accounts for holders, because of [`Pool::account_for_holders`] or
    /// [`Pool::report_holds_after`].
    #[must_use]
    pub fn accounts_for_holders(&self) -> bool {
        self.here().core.accounts_for_holders()
    }

    /// Returns the connections in use, with the details known about each. The connection that has been in use longest
    /// comes first. Empty unless the pool [accounts for holders](Self::account_for_holders).
    ///
    /// A connection that is being drained is not listed, although [`PoolStatus::in_use`](crate::PoolStatus::in_use)
    /// counts it, because its caller has checked it in. Each entry was accurate at some instant during the call, but
    /// the instants may differ.
    ///
    /// The call reads all connections of the pool and takes short locks, so use it for monitoring. Check-outs and
    /// check-ins do not wait for it, unless it lists connections that were checked out before accounting began.
    ///
    /// ```
    /// use wharf::{Endpoint, Pool};
    ///
    /// fn print_who_holds_a_connection_for_long(pool: &Pool<Endpoint>) {
    ///     for holder in pool.holders().iter().filter(|holder| holder.held_for.as_secs() >= 10) {
    ///         eprintln!("{holder}");
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn holders(&self) -> Vec<Holder> {
        self.here().core.holders()
    }

    /// Sets how long a connection may be in use before it is reported as a long hold. With `None` (the default) or
    /// zero, connections are not reported.
    ///
    /// Each long use is reported when it exceeds the threshold, and again when the connection is checked in. Reports go
    /// to the [log](Self::on_long_hold) and to the functions that were added with [`Pool::on_long_hold`]. The holder
    /// keeps the connection.
    ///
    /// While a threshold is set, [accounting](Self::account_for_holders) is on. A connection that was checked out
    /// earlier is treated as if it had been checked out when accounting began.
    ///
    /// The pool's background task makes the reports. The task stops when the pool's runtime shuts down, and restarts
    /// once the pool has [moved](Self#runtimes).
    pub fn report_holds_after(&self, threshold: Option<Duration>) {
        self.here().core.report_holds_after(threshold);
    }

    /// Returns the threshold set by [`Pool::report_holds_after`].
    #[must_use]
    pub fn holds_are_reported_after(&self) -> Option<Duration> {
        self.here().core.holds_are_reported_after()
    }

    /// Adds a function that receives the reports of long holds for as long as the pool exists.
    ///
    /// The background task calls it outside all locks, with one report at a time. The report of a use comes before the
    /// report of its end. The function must not block, because the background task also maintains the pool. A panic in
    /// the function is caught.
    ///
    /// The reports are also logged, with the `wharf::holders` target: a long hold at level `WARN`, its end at level
    /// `INFO`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use wharf::{Endpoint, LongHold, Pool};
    ///
    /// fn count_leaks(pool: &Pool<Endpoint>, count: fn(&str)) {
    ///     pool.on_long_hold(move |report: &LongHold| count(if report.has_ended { "came back" } else { "held for long" }));
    ///     pool.report_holds_after(Some(Duration::from_secs(30)));
    /// }
    /// ```
    pub fn on_long_hold(&self, sink: impl Fn(&LongHold) + Send + Sync + 'static) {
        self.here().core.environment().holds.sinks.add(Arc::new(sink));
    }
}

/// Returns the number of the tokio task that is running on this thread.
pub(super) fn task_id() -> Option<u64> {
    let mut number = Number(0);
    tokio::task::try_id()?.hash(&mut number);
    Some(number.0).filter(|number| *number != 0)
}

/// A hasher that returns the number it was given. Printing and parsing a task's id would take longer than the rest of
/// the accounting.
struct Number(u64);

impl Hasher for Number {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.try_into().map_or(0, u64::from_ne_bytes);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// A tracing subscriber that panics on every event.
    struct Panics;

    impl Subscriber for Panics {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == TARGET
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            panic!("a tracing subscriber panics");
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn panic_in_the_log_keeps_no_report_from_the_sinks() {
        let told = Arc::new(AtomicU32::new(0));
        let sink: HoldSink = Arc::new({
            let told = told.clone();
            move |_: &LongHold| _ = told.fetch_add(1, Ordering::Relaxed)
        });
        let reports = HoldReports::new(vec![sink]);
        let holder = Holder {
            connection_id: 1,
            held_for: Duration::from_secs(11),
            call_site: None,
            task_id: None,
            purpose: None,
            generation: 0,
            service_id: None,
        };
        tracing::subscriber::with_default(Panics, || {
            for has_ended in [false, true] {
                let (address, holder) = (Arc::from("mock:27017"), holder.clone());
                reports.tell(&LongHold { address, holder, has_ended, threshold: None });
            }
        });
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn task_id_is_the_number_that_tokio_prints() {
        assert_eq!(task_id(), None, "`block_on` is no task");
        let number = tokio::spawn(async { (task_id().unwrap().to_string(), tokio::task::id().to_string()) });
        let (ours, tokios) = number.await.unwrap();
        assert_eq!(ours, tokios);
    }
}
