//! Error labels, which say what an error means for the server and for a retry.

use std::fmt;

/// A set of error labels.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels(u8);

impl Labels {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// `SystemOverloadedError`: the server may be overloaded, so this error must not clear the pool.
    pub const SYSTEM_OVERLOADED: Self = Self(1);
    /// `RetryableError`: the operation may be retried.
    pub const RETRYABLE: Self = Self(2);

    const NAMES: [(Self, &'static str); 2] =
        [(Self::SYSTEM_OVERLOADED, "SystemOverloadedError"), (Self::RETRYABLE, "RetryableError")];

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether this set contains every label of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
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
