//! The options of sessions and transactions.

use std::time::Duration;

use bson::Timestamp;

use crate::endpoint::options::{InvalidOption, Options, ReadPreference, WriteConcern};

/// The options of an explicit session.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct SessionOptions {
    /// `causalConsistency`: whether each operation sees the effects of earlier operations in the session, and the data
    /// that they read (Causal Consistency). Default: true, except with [`snapshot`](Self#structfield.snapshot).
    /// Unacknowledged writes are not seen.
    pub causal_consistency: Option<bool>,
    /// `snapshot`: whether all reads in the session see the same point in time (Snapshot Reads). Needs MongoDB 5.0.
    /// Default: false.
    pub snapshot: bool,
    /// `snapshotTime`: the point in time, from another session's `snapshot_time`. Default: the point in time of the
    /// first read.
    pub snapshot_time: Option<Timestamp>,
    /// `defaultTransactionOptions`: the options for transactions that do not set their own.
    pub default_transaction_options: TransactionOptions,
    /// `defaultTimeoutMS`: how long a commit, an abort or a whole `with_transaction` may take; zero means no limit.
    /// Default: [`Options::timeout`].
    pub default_timeout: Option<Duration>,
}

impl SessionOptions {
    /// Sets [`causal_consistency`](Self#structfield.causal_consistency).
    pub fn causal_consistency(mut self, value: bool) -> Self {
        self.causal_consistency = Some(value);
        self
    }

    /// Sets [`snapshot`](Self#structfield.snapshot).
    pub fn snapshot(mut self, value: bool) -> Self {
        self.snapshot = value;
        self
    }

    /// Sets [`snapshot_time`](Self#structfield.snapshot_time).
    pub fn snapshot_time(mut self, time: Timestamp) -> Self {
        self.snapshot_time = Some(time);
        self
    }

    /// Sets [`default_transaction_options`](Self#structfield.default_transaction_options).
    pub fn default_transaction_options(mut self, options: TransactionOptions) -> Self {
        self.default_transaction_options = options;
        self
    }

    /// Sets [`default_timeout`](Self#structfield.default_timeout).
    pub fn default_timeout(mut self, limit: Duration) -> Self {
        self.default_timeout = Some(limit);
        self
    }

    /// Returns whether the session is causally consistent.
    pub fn is_causally_consistent(&self) -> bool {
        self.causal_consistency.unwrap_or(!self.snapshot)
    }

    /// Checks for options that conflict (Snapshot Reads, "SessionOptions changes").
    ///
    /// # Errors
    ///
    /// [`InvalidOption`].
    pub fn check(&self) -> Result<(), InvalidOption> {
        if self.snapshot && self.causal_consistency == Some(true) {
            return Err(InvalidOption::because("snapshot", "cannot be combined with causalConsistency"));
        }
        if self.snapshot_time.is_some() && !self.snapshot {
            return Err(InvalidOption::because("snapshotTime", "needs snapshot"));
        }
        Ok(())
    }
}

/// The options of a transaction. Options that are not set come from the session's
/// [`default_transaction_options`](crate::client::StartSession::default_transaction_options), or otherwise from the
/// client.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct TransactionOptions {
    /// `readConcern`: the level for the whole transaction, sent with its first command. An empty string means the
    /// server's default.
    pub read_concern: Option<String>,
    /// `writeConcern`: sent with the commit and the abort. Must be acknowledged.
    pub write_concern: Option<WriteConcern>,
    /// `readPreference`: must be the primary if the transaction reads.
    pub read_preference: Option<ReadPreference>,
    /// `maxCommitTimeMS`: how long the server may take to commit. Deprecated in favour of the session's
    /// [`default_timeout`](crate::client::StartSession::default_timeout). If the session has that limit,
    /// `maxCommitTimeMS` is not sent.
    pub max_commit_time: Option<Duration>,
    /// `timeoutMS`: how long the commit, the abort or the whole `with_transaction` may take; zero means no limit.
    /// Default: the limit of [the session](crate::client::StartSession::default_timeout).
    pub timeout: Option<Duration>,
}

impl TransactionOptions {
    /// Sets [`read_concern`](Self#structfield.read_concern).
    pub fn read_concern(mut self, level: impl Into<String>) -> Self {
        self.read_concern = Some(level.into());
        self
    }

    /// Sets [`write_concern`](Self#structfield.write_concern).
    pub fn write_concern(mut self, value: WriteConcern) -> Self {
        self.write_concern = Some(value);
        self
    }

    /// Sets [`read_preference`](Self#structfield.read_preference).
    pub fn read_preference(mut self, value: ReadPreference) -> Self {
        self.read_preference = Some(value);
        self
    }

    /// Sets [`max_commit_time`](Self#structfield.max_commit_time).
    pub fn max_commit_time(mut self, limit: Duration) -> Self {
        self.max_commit_time = Some(limit);
        self
    }

    /// Sets [`timeout`](Self#structfield.timeout).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Returns these options, with unset options taken from `other`.
    pub(super) fn or(self, other: &Self) -> Self {
        Self {
            read_concern: self.read_concern.or_else(|| other.read_concern.clone()),
            write_concern: self.write_concern.or_else(|| other.write_concern.clone()),
            read_preference: self.read_preference.or_else(|| other.read_preference.clone()),
            max_commit_time: self.max_commit_time.or(other.max_commit_time),
            timeout: self.timeout.or(other.timeout),
        }
    }

    /// Returns the options that transactions inherit from a client's options.
    pub(super) fn of_client(options: &Options) -> Self {
        Self {
            read_concern: options.read_concern.clone(),
            write_concern: Some(options.write_concern.clone()),
            read_preference: Some(options.read_preference.clone()),
            max_commit_time: None,
            timeout: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::options::ReadPreferenceMode;

    #[test]
    fn sessions_are_causally_consistent_except_for_snapshots() {
        assert!(SessionOptions::default().is_causally_consistent());
        assert!(!SessionOptions::default().snapshot(true).is_causally_consistent());
        assert!(!SessionOptions::default().causal_consistency(false).is_causally_consistent());
    }

    #[test]
    fn options_that_exclude_each_other_are_refused() {
        let message = |options: SessionOptions| options.check().unwrap_err().to_string();
        let both = SessionOptions::default().snapshot(true).causal_consistency(true);
        assert_eq!(message(both), "snapshot cannot be combined with causalConsistency");
        let time = SessionOptions::default().snapshot_time(Timestamp { time: 1, increment: 0 });
        assert_eq!(message(time.clone()), "snapshotTime needs snapshot");
        assert!(time.snapshot(true).causal_consistency(false).check().is_ok());
    }

    #[test]
    fn transaction_inherits_each_option_by_itself() {
        let client = Options::parse("mongodb://h/?readConcernLevel=local&w=2&readPreference=secondary").unwrap();
        let session = TransactionOptions::default().read_concern("majority").max_commit_time(Duration::from_secs(1));
        let merged = TransactionOptions::default()
            .max_commit_time(Duration::from_secs(2))
            .or(&session)
            .or(&TransactionOptions::of_client(&client));
        assert_eq!(merged.read_concern.as_deref(), Some("majority"));
        assert_eq!(merged.write_concern, Some(client.write_concern));
        assert_eq!(merged.read_preference.map(|preference| preference.mode), Some(ReadPreferenceMode::Secondary));
        assert_eq!(merged.max_commit_time, Some(Duration::from_secs(2)));
    }
}
