//! How far check-outs exceed their time limit when the subscriber is slow.
//!
//! 32 callers share 4 connections, and hold each for 5 ms. The subscriber sleeps for 5 ms, and check-outs have a limit
//! of 50 ms. Every caller has a separate thread, so that callers never wait for a worker: any delay to a check-out
//! comes from the pool. The pool's own tasks run on a runtime without callers.
//!
//! A check-out that reaches its time limit still has to deliver the event that reports its failure. The limit may also
//! pass while the check-out is delivering the event that reports its start. So its own events account for twice the
//! subscriber's time. The operating system also has to wake the caller's thread, for which the claim allows the same
//! time again.

use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::micro::two_workers;
use crate::subjects::Handled;

use super::claims;

const CALLERS: usize = 32;
const SIZE: usize = 4;
/// How long the subscriber takes for an event, and how long a caller uses a connection.
const SUBSCRIBER: Duration = Duration::from_millis(5);
const LIMIT: Duration = Duration::from_millis(50);
/// How late a check-out may return; see the module's documentation.
const ALLOWED: Duration = SUBSCRIBER.saturating_mul(4);

/// The outcomes of check-outs.
pub struct Late {
    succeeded: u64,
    failed: u64,
    /// Microseconds from the time limit to the return, or 0 for a check-out that returned before the limit.
    late: Histogram<u64>,
}

/// Prints the columns' titles.
pub fn print_heading(length: Duration) {
    println!(
        "\nObserved: {CALLERS} callers on {SIZE} connections, a time limit of {LIMIT:?}, a subscriber that takes \
         {SUBSCRIBER:?}, {length:?}\n{:<12}{:>12}{:>12}{:>16}{:>16}{:>16}",
        "subject", "succeeded", "failed", "late p50, ms", "late p99, ms", "latest, ms",
    );
}

impl Late {
    /// Prints the subject's line.
    pub fn print(&self, subject: &str) {
        let millis = |value: u64| value as f64 / 1e3;
        println!(
            "{subject:<12}{:>12}{:>12}{:>16.1}{:>16.1}{:>16.1}",
            self.succeeded,
            self.failed,
            millis(self.late.value_at_quantile(0.5)),
            millis(self.late.value_at_quantile(0.99)),
            millis(self.late.max()),
        );
    }

    /// Prints the claim.
    pub fn print_claim(&self, subject: &str) {
        let latest = Duration::from_micros(self.late.max());
        let claimed = format!("at most {ALLOWED:?}");
        claims::line(
            "late",
            &format!("{subject}, past the time limit"),
            &format!("{latest:.1?}"),
            &claimed,
            latest <= ALLOWED,
        );
    }
}

/// Runs the scenario.
pub fn run<S: Handled>(length: Duration) -> Late {
    let runtime = two_workers();
    let subject = Arc::new(runtime.block_on(S::open_handled(SIZE, Arc::new(|| sleep(SUBSCRIBER)))));
    let start = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (subject, handle) = (Arc::clone(&subject), runtime.handle().clone());
            thread::spawn(move || {
                let mut own = Late::new();
                // Every caller checks out at least once.
                while own.late.is_empty() || start.elapsed() < length {
                    own.note_one(&*subject, &handle);
                }
                own
            })
        })
        .collect();
    let mut all = Late::new();
    for caller in callers {
        let own = caller.join().expect("a caller panicked");
        all.succeeded += own.succeeded;
        all.failed += own.failed;
        all.late.add(own.late).expect("a histogram that resizes takes every value");
    }
    all
}

impl Late {
    fn new() -> Self {
        let late = Histogram::new(3).expect("three significant digits are allowed");
        Self { succeeded: 0, failed: 0, late }
    }

    fn note_one<S: Handled>(&mut self, subject: &S, handle: &tokio::runtime::Handle) {
        let limit = Instant::now() + LIMIT;
        let connection = handle.block_on(subject.check_out_within(LIMIT));
        let late = Instant::now().saturating_duration_since(limit);
        self.late.record(late.as_micros() as u64).expect("a histogram that resizes takes every value");
        match connection {
            Some(connection) => {
                self.succeeded += 1;
                sleep(SUBSCRIBER);
                drop(connection);
            }
            None => self.failed += 1,
        }
    }
}
