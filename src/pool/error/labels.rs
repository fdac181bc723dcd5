//! Error labels, which say what an error implies about the server and about retries.

use std::fmt;

/// A set of the error labels that the specifications define.
///
/// A server may attach other labels to an error: [`ServerError::has_label`](crate::ServerError::has_label) finds them.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels(u8);

impl Labels {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// `SystemOverloadedError`: the server may be overloaded, so this error must not clear the pool, and the caller
    /// must wait before a retry.
    pub const SYSTEM_OVERLOADED: Self = Self(1);
    /// `RetryableError`: any kind of operation may be retried.
    pub const RETRYABLE: Self = Self(2);
    /// `RetryableWriteError`: a write may be repeated with the same transaction number.
    pub const RETRYABLE_WRITE: Self = Self(4);
    /// `TransientTransactionError`: the whole transaction may be repeated.
    pub const TRANSIENT_TRANSACTION: Self = Self(8);
    /// `UnknownTransactionCommitResult`: the commit may be repeated.
    pub const UNKNOWN_COMMIT_RESULT: Self = Self(16);
    /// `NoWritesPerformed`: the attempt wrote nothing.
    pub const NO_WRITES_PERFORMED: Self = Self(32);
    /// `ResumableChangeStreamError`: a new cursor may continue the change stream.
    pub const RESUMABLE_CHANGE_STREAM: Self = Self(64);

    const NAMES: [(Self, &'static str); 7] = [
        (Self::SYSTEM_OVERLOADED, "SystemOverloadedError"),
        (Self::RETRYABLE, "RetryableError"),
        (Self::RETRYABLE_WRITE, "RetryableWriteError"),
        (Self::TRANSIENT_TRANSACTION, "TransientTransactionError"),
        (Self::UNKNOWN_COMMIT_RESULT, "UnknownTransactionCommitResult"),
        (Self::NO_WRITES_PERFORMED, "NoWritesPerformed"),
        (Self::RESUMABLE_CHANGE_STREAM, "ResumableChangeStreamError"),
    ];

    /// Returns the labels with these names. Names that the specifications do not define are left out.
    pub fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let known = |name| Self::NAMES.iter().find(|(_, known)| *known == name);
        names.into_iter().filter_map(known).fold(Self::NONE, |set, &(label, _)| set.with(label))
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the labels that are in both sets.
    #[must_use]
    pub const fn among(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether this set contains every label of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether this set contains the label with this name.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Returns the names of the labels.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(label, _)| self.contains(*label)).map(|(_, name)| name)
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
