//! Decides whether to repeat a whole transaction, or its commit (Convenient API for Transactions).

use std::time::{Duration, Instant};

use super::retry::transaction_backoff;
use super::transaction::TransactionState;
use crate::pool::error::Labels;

/// How long `with_transaction` keeps repeating a transaction if no time limit is set.
const DEFAULT_LIMIT: Duration = Duration::from_secs(120);

/// The next step of `with_transaction`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NextStep {
    /// Wait, start a transaction and run the callback.
    RunCallback {
        /// How long to wait first: zero before the first run.
        after: Duration,
    },
    /// Wait and commit.
    Commit {
        /// How long to wait first: zero before the first commit and its first repetition.
        after: Duration,
    },
    /// Return the callback's value: the callback ended its transaction itself, or the commit succeeded.
    Return,
    /// Report the error.
    Report,
    /// Report a timeout with the error as its source and with the error's labels.
    ReportTimeout,
}

/// The repetitions within one call to `with_transaction`. This type reads no clock and generates no random numbers: the
/// caller passes the time and random numbers as arguments.
#[derive(Clone, Copy, Debug)]
pub struct Repetitions {
    began: Instant,
    limit: Duration,
    runs: u32,
    /// How many times a commit has been repeated.
    repeated_commits: u32,
}

impl Repetitions {
    /// Begins a call. `limit` is the transaction's [`timeout_of`](super::Session::timeout_of); zero means no limit.
    pub fn new(now: Instant, limit: Option<Duration>) -> Self {
        let limit = match limit {
            None => DEFAULT_LIMIT,
            Some(Duration::ZERO) => Duration::MAX,
            Some(limit) => limit,
        };
        Self { began: now, limit, runs: 0, repeated_commits: 0 }
    }

    /// Begins the first run of the callback.
    pub fn begin(&mut self) -> NextStep {
        self.runs = 1;
        NextStep::RunCallback { after: Duration::ZERO }
    }

    /// Decides on the next step after the callback returned a value, from the session's state.
    pub fn after_callback(&self, state: TransactionState) -> NextStep {
        match state {
            TransactionState::Starting | TransactionState::InProgress => NextStep::Commit { after: Duration::ZERO },
            TransactionState::None | TransactionState::Committed | TransactionState::Aborted => NextStep::Return,
        }
    }

    /// Decides on the next step after the callback returned an error with these labels. If the transaction was still
    /// active, it has been aborted.
    pub fn after_callback_error(&mut self, labels: Labels, now: Instant, random: f64) -> NextStep {
        if labels.contains(Labels::TRANSIENT_TRANSACTION) { self.repeat(now, random) } else { NextStep::Report }
    }

    /// Decides on the next step after a failed commit. `is_max_time_expired` is
    /// [`Fault::is_max_time_expired`](super::Fault).
    pub fn after_commit_error(
        &mut self,
        labels: Labels,
        is_max_time_expired: bool,
        now: Instant,
        random: f64,
    ) -> NextStep {
        if labels.contains(Labels::UNKNOWN_COMMIT_RESULT) && !is_max_time_expired {
            if self.left(now).is_zero() { NextStep::ReportTimeout } else { self.commit_again(now, random) }
        } else if labels.contains(Labels::TRANSIENT_TRANSACTION) {
            self.repeat(now, random)
        } else {
            NextStep::Report
        }
    }

    /// Repeats the commit: immediately the first time, and after a pause each time after that. The specification
    /// requires no pause. But a commit can fail before the client has sent anything, and repeating such a commit
    /// without a pause would keep other tasks on the thread from running.
    fn commit_again(&mut self, now: Instant, random: f64) -> NextStep {
        let after = match self.repeated_commits {
            0 => Duration::ZERO,
            // The pause takes at most half the time left, so that some remains for the commit.
            repeated => transaction_backoff(repeated, random).min(self.left(now) / 2),
        };
        self.repeated_commits = self.repeated_commits.saturating_add(1);
        NextStep::Commit { after }
    }

    fn repeat(&mut self, now: Instant, random: f64) -> NextStep {
        let after = transaction_backoff(self.runs, random);
        if after >= self.left(now) {
            return NextStep::ReportTimeout;
        }
        self.runs = self.runs.saturating_add(1);
        NextStep::RunCallback { after }
    }

    fn left(&self, now: Instant) -> Duration {
        self.limit.saturating_sub(now.saturating_duration_since(self.began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRANSIENT: Labels = Labels::TRANSIENT_TRANSACTION;
    const UNKNOWN: Labels = Labels::UNKNOWN_COMMIT_RESULT;
    const AT_ONCE: NextStep = NextStep::Commit { after: Duration::ZERO };

    fn begun(limit: Option<Duration>) -> (Repetitions, Instant) {
        let now = Instant::now();
        let mut repetitions = Repetitions::new(now, limit);
        assert_eq!(repetitions.begin(), NextStep::RunCallback { after: Duration::ZERO });
        (repetitions, now)
    }

    fn after(millis: f64) -> NextStep {
        NextStep::RunCallback { after: Duration::from_secs_f64(millis / 1_000.0) }
    }

    fn commit_after(millis: f64) -> NextStep {
        NextStep::Commit { after: Duration::from_secs_f64(millis / 1_000.0) }
    }

    #[test]
    fn value_is_returned_after_a_commit_or_if_the_callback_ended_the_transaction() {
        let (repetitions, _) = begun(None);
        for (state, expected) in [
            (TransactionState::Starting, AT_ONCE),
            (TransactionState::InProgress, AT_ONCE),
            (TransactionState::None, NextStep::Return),
            (TransactionState::Committed, NextStep::Return),
            (TransactionState::Aborted, NextStep::Return),
        ] {
            assert_eq!(repetitions.after_callback(state), expected, "{state:?}");
        }
    }

    #[test]
    fn transient_errors_repeat_the_transaction_after_growing_pauses() {
        let (mut repetitions, now) = begun(None);
        assert_eq!(repetitions.after_callback_error(TRANSIENT, now, 0.5), after(3.75));
        assert_eq!(repetitions.after_commit_error(TRANSIENT, false, now, 0.5), after(5.625));
        assert_eq!(repetitions.after_callback_error(TRANSIENT, now, 0.5), after(8.4375));
    }

    /// The prose test "Retry Backoff is Enforced", with the smallest and the largest random number.
    #[test]
    fn thirteen_repetitions_pause_for_up_to_2_3_seconds_in_all() {
        for (random, expected) in [(0.0, 0.0), (1.0, 2.283)] {
            let (mut repetitions, now) = begun(None);
            let mut all = Duration::ZERO;
            for _ in 0..13 {
                let step = repetitions.after_commit_error(TRANSIENT, false, now, random);
                let NextStep::RunCallback { after } = step else { panic!("{step:?}") };
                all += after;
            }
            assert!((all.as_secs_f64() - expected).abs() < 0.001, "{all:?}");
        }
    }

    #[test]
    fn commit_alone_is_repeated_while_its_result_is_unknown() {
        let (mut repetitions, now) = begun(None);
        assert_eq!(repetitions.after_commit_error(UNKNOWN, false, now, 0.5), AT_ONCE);
        assert_eq!(repetitions.after_commit_error(UNKNOWN, true, now, 0.5), NextStep::Report, "MaxTimeMSExpired");
        let both = UNKNOWN.with(TRANSIENT);
        assert_eq!(repetitions.after_commit_error(both, false, now, 0.5), commit_after(3.75));
        // The commit is not repeated, but the label allows repeating the whole transaction.
        assert_eq!(repetitions.after_commit_error(both, true, now, 0.5), after(3.75));
    }

    #[test]
    fn repeated_commits_pause_but_for_the_first() {
        let (mut repetitions, now) = begun(Some(Duration::from_millis(100)));
        for expected in [AT_ONCE, commit_after(7.5), commit_after(11.25)] {
            assert_eq!(repetitions.after_commit_error(UNKNOWN, false, now, 1.0), expected);
        }
        let late = now + Duration::from_millis(98);
        assert_eq!(
            repetitions.after_commit_error(UNKNOWN, false, late, 1.0),
            commit_after(1.0),
            "half of the time left"
        );
    }

    #[test]
    fn other_errors_are_reported_at_once() {
        let (mut repetitions, now) = begun(None);
        assert_eq!(repetitions.after_callback_error(Labels::NONE, now, 0.5), NextStep::Report);
        // The callback must have committed the transaction itself.
        assert_eq!(repetitions.after_callback_error(UNKNOWN, now, 0.5), NextStep::Report);
        assert_eq!(repetitions.after_commit_error(Labels::NONE, false, now, 0.5), NextStep::Report);
    }

    #[test]
    fn nothing_is_repeated_once_the_time_is_up() {
        for (limit, end) in [(None, 120_000), (Some(Duration::from_millis(50)), 50)] {
            let (mut repetitions, now) = begun(limit);
            let end = now + Duration::from_millis(end);
            let before = end - Duration::from_millis(1);
            assert_eq!(repetitions.after_commit_error(UNKNOWN, false, before, 0.5), AT_ONCE);
            assert_eq!(repetitions.after_commit_error(UNKNOWN, false, end, 0.5), NextStep::ReportTimeout);
            assert_eq!(repetitions.after_callback_error(TRANSIENT, end, 0.0), NextStep::ReportTimeout);
            assert_eq!(
                repetitions.after_callback_error(TRANSIENT, before, 1.0),
                NextStep::ReportTimeout,
                "no room for the pause"
            );
            assert_eq!(repetitions.after_callback_error(TRANSIENT, before, 0.0), after(0.0));
        }
        let (mut repetitions, now) = begun(Some(Duration::ZERO));
        let late = now + Duration::from_secs(1_000_000);
        assert_eq!(repetitions.after_commit_error(UNKNOWN, false, late, 0.5), AT_ONCE, "no limit");
    }
}
