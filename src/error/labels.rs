//! The labels by which errors say what they mean for the server and for a retry.

use std::fmt;

/// A set of error labels.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels(u8);

impl Labels {
    /// No label.
    pub const NONE: Self = Self(0);
    /// `SystemOverloadedError`: the server may be overloaded; the pool must not be cleared because of this error.
    pub const SYSTEM_OVERLOADED: Self = Self(1);
    /// `RetryableError`: the operation may be tried again.
    pub const RETRYABLE: Self = Self(2);

    const NAMES: [(Self, &'static str); 2] =
        [(Self::SYSTEM_OVERLOADED, "SystemOverloadedError"), (Self::RETRYABLE, "RetryableError")];

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every label of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The labels' names.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(label, _)| self.contains(*label)).map(|(_, name)| name)
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
