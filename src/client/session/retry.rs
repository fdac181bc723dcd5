//! Decides whether to retry a failed operation, how long to pause before the retry, and which error to report if all
//! attempts fail.

use std::time::Duration;

use super::fault::Fault;
use crate::endpoint::options::Options;
use crate::pool::error::Labels;

/// The first retry after an overload is preceded by a random pause of up to twice this time ("Overload retry policy").
const BASE_BACKOFF: Duration = Duration::from_millis(100);
/// The longest pause after an overload.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The base of the random pauses before a whole transaction is repeated ("ClientSession.withTransaction").
const TRANSACTION_BASE_BACKOFF: Duration = Duration::from_millis(5);
/// The longest pause before a transaction is repeated.
const TRANSACTION_MAX_BACKOFF: Duration = Duration::from_millis(500);
/// The longest pause between attempts when a time limit allows any number of attempts.
const PACE: Duration = Duration::from_millis(10);
/// How many times an abort is retried within a time limit.
const ABORT_RETRIES: u32 = 2;

/// The kinds of operations, by the conditions under which they are retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retryability {
    /// A generic command: retried only after an overload, and only if both `retryReads` and `retryWrites` are on.
    Command,
    /// A read that may be repeated, outside a transaction.
    Read,
    /// A write with a transaction number, outside a transaction.
    Write,
    /// A read that is not repeated, except after an overload: `getMore`, and every read in a transaction.
    OtherRead,
    /// A write that is not repeated, except after an overload: a write that may affect many documents, an aggregate
    /// with `$out` or `$merge`, and every write in a transaction.
    OtherWrite,
    /// A commit: repeated regardless of the options.
    Commit,
    /// An abort: likewise repeated, but only a few times. The server aborts the transaction itself when the transaction
    /// expires.
    Abort,
}

/// The options for retries.
#[derive(Clone, Copy, Debug)]
pub struct RetryOptions {
    /// `retryReads`.
    pub reads: bool,
    /// `retryWrites`.
    pub writes: bool,
    /// `maxAdaptiveRetries`: the maximum number of retries of an operation once a server has been overloaded.
    pub max_adaptive: u32,
    /// `enableOverloadRetargeting`: whether a retry avoids the server that was overloaded.
    pub retargets: bool,
}

impl RetryOptions {
    /// Returns the client's retry options.
    pub fn of(options: &Options) -> Self {
        Self {
            reads: options.retry_reads,
            writes: options.retry_writes,
            max_adaptive: options.max_adaptive_retries,
            retargets: options.enable_overload_retargeting,
        }
    }
}

/// The next step after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decision {
    /// Report the error.
    GiveUp,
    /// Report the error as a timeout: another attempt was due, but the time has run out.
    OutOfTime,
    /// Try again.
    Retry {
        /// How long to wait first.
        after: Duration,
        /// Whether server selection avoids the failed attempt's server.
        deprioritize: bool,
    },
}

/// The retries of one operation: the combined policies of Retryable Reads, Retryable Writes and Client Backpressure.
///
/// Since its 2026-03-30 version, the specification has limited the number of retries, and no longer uses a token
/// bucket.
#[derive(Clone, Copy, Debug)]
pub struct Retries {
    options: RetryOptions,
    retryability: Retryability,
    made: u32,
    /// `None` means as many as the time allows.
    most: Option<u32>,
}

impl Retries {
    /// Begins an operation, before its first attempt. With `timeoutMS`, the operation is retried as often as the time
    /// allows, and indefinitely if the limit is zero (Client Side Operations Timeout, "Retryability"). Without
    /// `timeoutMS`, it is retried once.
    ///
    /// The first retry follows immediately, except after an overload. Later retries follow after short pauses. Without
    /// the pauses, a server that refuses commands immediately would receive tens of thousands of attempts per second
    /// from a single operation. The pauses are not a back-off, which only follows an overload (Client Backpressure,
    /// "Interaction with Other Retry Policies").
    pub fn new(options: RetryOptions, retryability: Retryability, has_timeout: bool) -> Self {
        let most = match (has_timeout, retryability) {
            (false, _) => Some(1),
            (true, Retryability::Abort) => Some(ABORT_RETRIES),
            (true, _) => None,
        };
        Self { options, retryability, made: 0, most }
    }

    /// Decides on the next step after a failed attempt.
    ///
    /// `labels` are the error's labels, including the labels that the client adds. In an explicit session, they come
    /// from [`Consequence::labels`](super::explicit::Consequence). `is_sharded` says whether the deployment is a
    /// sharded cluster, where a retry always avoids the failed server. `random` is at least 0 and less than 1, and
    /// `left` is how much of the operation's time limit remains.
    pub fn after(
        &mut self,
        fault: &Fault,
        labels: Labels,
        is_sharded: bool,
        random: f64,
        left: Option<Duration>,
    ) -> Decision {
        if !self.is_retryable(fault, labels) {
            return Decision::GiveUp;
        }
        let is_overload = fault.is_overload();
        if is_overload {
            self.most = Some(self.options.max_adaptive);
        }
        if self.most.is_some_and(|most| self.made >= most) {
            return Decision::GiveUp;
        }
        if left.is_some_and(|left| left.is_zero()) {
            return Decision::OutOfTime;
        }
        let pause = match self.made {
            _ if is_overload => backoff(fault.base_backoff, self.made + 1, random),
            // The pause takes at most half the time left, so that some remains for the attempt.
            1.. if self.most.is_none() => pace(random).min(left.map_or(PACE, |left| left / 2)),
            _ => Duration::ZERO,
        };
        if left.is_some_and(|left| pause > left) {
            return Decision::GiveUp;
        }
        self.made = self.made.saturating_add(1);
        Decision::Retry { after: pause, deprioritize: is_sharded || (is_overload && self.options.retargets) }
    }

    fn is_retryable(&self, fault: &Fault, labels: Labels) -> bool {
        let RetryOptions { reads, writes, .. } = self.options;
        let is_overload = fault.is_retryable_overload();
        match self.retryability {
            Retryability::Command => is_overload && reads && writes,
            Retryability::Read => reads && (is_overload || fault.is_retryable_read()),
            Retryability::OtherRead => reads && is_overload,
            Retryability::Write => writes && (is_overload || labels.contains(Labels::RETRYABLE_WRITE)),
            Retryability::OtherWrite => writes && is_overload,
            Retryability::Commit | Retryability::Abort => is_overload || labels.contains(Labels::RETRYABLE_WRITE),
        }
    }
}

/// Returns the pause between attempts when a time limit allows any number of attempts.
fn pace(random: f64) -> Duration {
    PACE.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

/// Returns the pause before a retry of an operation after an overload. The first retry is number 1. `base` is the pause
/// that the server asks for.
fn backoff(base: Option<Duration>, retry: u32, random: f64) -> Duration {
    let longest = base.unwrap_or(BASE_BACKOFF).saturating_mul(2_u32.saturating_pow(retry));
    longest.min(MAX_BACKOFF).mul_f64(random.clamp(0.0, 1.0))
}

/// Returns the pause before a whole transaction is repeated. The first repetition is number 1. `random` is at least 0
/// and less than 1.
pub fn transaction_backoff(repetition: u32, random: f64) -> Duration {
    let growth = 1.5_f64.powi(i32::try_from(repetition).unwrap_or(i32::MAX));
    let longest = (TRANSACTION_BASE_BACKOFF.as_secs_f64() * growth).min(TRANSACTION_MAX_BACKOFF.as_secs_f64());
    Duration::from_secs_f64(longest * random.clamp(0.0, 1.0))
}

/// The error that an operation reports if all its attempts fail ("Executing Retryable Write Commands", and Retryable
/// Reads, "If a retry attempt fails").
///
/// This is the last error that shows that an attempt was made, or the first error if none does. The caller must be able
/// to tell from the error whether the operation may have been executed.
#[derive(Debug)]
pub struct ErrorToReport<E> {
    error: E,
}

impl<E> ErrorToReport<E> {
    /// Adds the error from an attempt to the earlier errors, if there were any. `tells_of_attempt` is
    /// [`Fault::may_have_written`] for a write and a generic command, and [`Fault::reached_a_server`] for a read.
    pub fn after(earlier: Option<Self>, error: E, tells_of_attempt: bool) -> Self {
        match earlier {
            Some(earlier) if !tells_of_attempt => earlier,
            _ => Self { error },
        }
    }

    /// Replaces the error with the result of `change`.
    #[must_use]
    pub fn map(self, change: impl FnOnce(E) -> E) -> Self {
        Self { error: change(self.error) }
    }

    /// Returns the error to report.
    pub fn into_error(self) -> E {
        self.error
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use proptest::prelude::*;

    use super::super::fault::FaultKind;
    use super::*;

    const OPTIONS: RetryOptions = RetryOptions { reads: true, writes: true, max_adaptive: 2, retargets: false };
    const AT_ONCE: Decision = Decision::Retry { after: Duration::ZERO, deprioritize: false };

    fn network() -> Fault {
        Fault::new(FaultKind::Network, Labels::NONE)
    }

    fn overload() -> Fault {
        let reply = rawdoc! { "ok": 0, "code": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"] };
        Fault::of_reply(&reply).unwrap()
    }

    fn decide(retries: &mut Retries, fault: &Fault) -> Decision {
        let labels = fault.write_labels(true, Some(17), false);
        retries.after(fault, labels, false, 0.5, None)
    }

    impl Decision {
        /// Returns the pause before the retry, if there is one.
        fn pause(self) -> Option<Duration> {
            match self {
                Self::Retry { after, .. } => Some(after),
                Self::GiveUp | Self::OutOfTime => None,
            }
        }
    }

    fn paused(millis: u64) -> Decision {
        Decision::Retry { after: Duration::from_millis(millis), deprioritize: false }
    }

    #[test]
    fn reads_and_writes_are_retried_once_without_a_pause() {
        for retryability in [Retryability::Read, Retryability::Write, Retryability::Commit, Retryability::Abort] {
            let mut retries = Retries::new(OPTIONS, retryability, false);
            assert_eq!(decide(&mut retries, &network()), AT_ONCE, "{retryability:?}");
            assert_eq!(decide(&mut retries, &network()), Decision::GiveUp, "{retryability:?}");
        }
    }

    #[test]
    fn a_time_limit_allows_as_many_retries_as_fit_at_a_pace() {
        let mut retries = Retries::new(OPTIONS, Retryability::Read, true);
        let mut decide = |random, left| retries.after(&network(), Labels::NONE, false, random, left).pause();
        assert_eq!(decide(0.5, Some(Duration::from_secs(1))), Some(Duration::ZERO), "the first retry comes at once");
        for (random, left, expected) in
            [(0.0, 1_000, 5_000), (0.5, 1_000, 7_500), (1.0, 1_000, 10_000), (0.5, 4, 2_000)]
        {
            let pause = decide(random, Some(Duration::from_millis(left)));
            assert_eq!(pause, Some(Duration::from_micros(expected)), "{random} of {left}");
        }
        assert_eq!(decide(0.5, None), Some(Duration::from_micros(7_500)), "timeoutMS=0");
        let out_of_time = retries.after(&network(), Labels::NONE, false, 0.5, Some(Duration::ZERO));
        assert_eq!(out_of_time, Decision::OutOfTime);
    }

    #[test]
    fn time_that_is_up_matters_only_if_a_retry_is_due() {
        for (retryability, has_timeout) in [(Retryability::Command, true), (Retryability::Read, false)] {
            let mut retries = Retries { made: 1, ..Retries::new(OPTIONS, retryability, has_timeout) };
            let decision = retries.after(&network(), Labels::NONE, false, 0.5, Some(Duration::ZERO));
            assert_eq!(decision, Decision::GiveUp, "{retryability:?}");
        }
    }

    #[test]
    fn abort_is_tried_a_few_times_whatever_its_time_limit() {
        let mut retries = Retries::new(OPTIONS, Retryability::Abort, true);
        assert_eq!([(); 3].map(|()| decide(&mut retries, &network())), [AT_ONCE, AT_ONCE, Decision::GiveUp]);
    }

    #[test]
    fn other_operations_are_not_repeated_after_a_network_error() {
        for retryability in [Retryability::Command, Retryability::OtherRead, Retryability::OtherWrite] {
            let mut retries = Retries::new(OPTIONS, retryability, false);
            assert_eq!(decide(&mut retries, &network()), Decision::GiveUp, "{retryability:?}");
        }
    }

    #[test]
    fn every_operation_is_retried_after_an_overload_with_growing_pauses() {
        for retryability in [
            Retryability::Command,
            Retryability::Read,
            Retryability::Write,
            Retryability::OtherRead,
            Retryability::OtherWrite,
            Retryability::Commit,
            Retryability::Abort,
        ] {
            let mut retries = Retries::new(OPTIONS, retryability, false);
            let decisions = [(); 3].map(|()| decide(&mut retries, &overload()));
            assert_eq!(decisions, [paused(100), paused(200), Decision::GiveUp], "{retryability:?}");
        }
    }

    #[test]
    fn options_turn_retries_off() {
        let without = |reads, writes| RetryOptions { reads, writes, ..OPTIONS };
        for (options, retryability, fault, expected) in [
            (without(false, true), Retryability::Read, network(), false),
            (without(false, true), Retryability::Read, overload(), false),
            (without(false, true), Retryability::OtherRead, overload(), false),
            (without(false, true), Retryability::Command, overload(), false),
            (without(true, false), Retryability::Command, overload(), false),
            (without(true, false), Retryability::Write, network(), false),
            (without(true, false), Retryability::OtherWrite, overload(), false),
            (without(false, false), Retryability::Commit, network(), true),
            (without(false, false), Retryability::Abort, overload(), true),
        ] {
            let decision = decide(&mut Retries::new(options, retryability, false), &fault);
            assert_eq!(decision != Decision::GiveUp, expected, "{options:?} {retryability:?} {fault:?}");
        }
    }

    #[test]
    fn an_overload_limits_all_retries_of_the_operation() {
        // Three retries after network errors exceed the limit for overloads.
        let mut retries = Retries::new(OPTIONS, Retryability::Read, true);
        assert_eq!([(); 3].map(|()| decide(&mut retries, &network()) != Decision::GiveUp), [true; 3]);
        assert_eq!(decide(&mut retries, &overload()), Decision::GiveUp);
        // After an overload, a network error also counts towards that limit.
        let mut retries = Retries::new(OPTIONS, Retryability::Read, false);
        assert_eq!(decide(&mut retries, &overload()), paused(100));
        assert_eq!(decide(&mut retries, &network()), AT_ONCE);
        assert_eq!(decide(&mut retries, &network()), Decision::GiveUp);
        let none = RetryOptions { max_adaptive: 0, ..OPTIONS };
        assert_eq!(decide(&mut Retries::new(none, Retryability::Read, false), &overload()), Decision::GiveUp);
    }

    #[test]
    fn pause_that_does_not_fit_into_the_time_limit_ends_the_retries() {
        let mut retries = Retries::new(OPTIONS, Retryability::Read, true);
        let decide = |retries: &mut Retries, left| retries.after(&overload(), Labels::NONE, false, 0.5, Some(left));
        assert_eq!(decide(&mut retries, Duration::from_millis(99)), Decision::GiveUp);
        assert_eq!(decide(&mut retries, Duration::from_millis(100)), paused(100));
    }

    #[test]
    fn server_that_failed_is_avoided_when_sharded_or_overloaded() {
        let decide = |options, fault: &Fault, is_sharded| match Retries::new(options, Retryability::Read, false).after(
            fault,
            Labels::NONE,
            is_sharded,
            0.0,
            None,
        ) {
            Decision::Retry { deprioritize, .. } => deprioritize,
            Decision::GiveUp | Decision::OutOfTime => panic!("not retried"),
        };
        let retargeting = RetryOptions { retargets: true, ..OPTIONS };
        assert!(decide(OPTIONS, &network(), true) && decide(OPTIONS, &overload(), true));
        assert!(!decide(OPTIONS, &network(), false) && !decide(OPTIONS, &overload(), false));
        assert!(!decide(retargeting, &network(), false) && decide(retargeting, &overload(), false));
    }

    #[test]
    fn server_may_choose_the_base_of_the_pauses() {
        let fault = Fault { base_backoff: Some(Duration::from_millis(300)), ..overload() };
        let mut retries = Retries::new(OPTIONS, Retryability::Read, false);
        assert_eq!([(); 2].map(|()| decide(&mut retries, &fault)), [paused(300), paused(600)]);
        let long = Fault { base_backoff: Some(Duration::MAX), ..overload() };
        assert_eq!(decide(&mut Retries::new(OPTIONS, Retryability::Read, false), &long), paused(5_000));
    }

    proptest! {
        #[test]
        fn pauses_stay_within_their_bounds(retry in 1_u32..200, random in 0.0..1.0) {
            prop_assert!(backoff(None, retry, random) <= MAX_BACKOFF);
            prop_assert!(backoff(None, retry, random) <= BASE_BACKOFF * 2_u32.saturating_pow(retry));
            prop_assert!(transaction_backoff(retry, random) <= TRANSACTION_MAX_BACKOFF);
        }
    }

    #[test]
    fn transactions_are_repeated_after_growing_pauses() {
        let pauses = [1, 2, 3, 12, 13].map(|repetition| transaction_backoff(repetition, 1.0).as_micros());
        assert_eq!(pauses, [7_500, 11_250, 16_875, 500_000, 500_000]);
        assert_eq!(transaction_backoff(1, 0.0), Duration::ZERO);
    }

    #[test]
    fn error_to_report_is_the_last_that_tells_of_an_attempt_or_else_the_first() {
        let report = |errors: &[(&'static str, bool)]| {
            let after = |earlier, &(error, tells): &_| Some(ErrorToReport::after(earlier, error, tells));
            errors.iter().fold(None, after).unwrap().into_error()
        };
        assert_eq!(report(&[("network", true), ("network 2", true)]), "network 2");
        assert_eq!(report(&[("network", true), ("selection", false)]), "network");
        assert_eq!(report(&[("no writes", false), ("no writes 2", false)]), "no writes");
        assert_eq!(report(&[("no writes", false), ("network", true), ("no writes", false)]), "network");
    }

    #[test]
    fn only_errors_after_the_command_was_sent_tell_of_writes() {
        assert!(network().may_have_written() && network().reached_a_server());
        for kind in [FaultKind::Selection, FaultKind::CheckOut, FaultKind::PoolCleared, FaultKind::Client] {
            let fault = Fault::new(kind, Labels::NONE);
            assert!(!fault.may_have_written() && !fault.reached_a_server(), "{kind:?}");
        }
        let none = Fault::new(FaultKind::Server, Labels::NO_WRITES_PERFORMED);
        assert!(!none.may_have_written() && none.reached_a_server());
    }
}
