//! The condition of a connection at check-in.

/// The condition of a connection at check-in: whether it can be checked out again.
///
/// No other conditions will be added, so the pool and your own [`Establish`](crate::Establish) can match on all of
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The connection can be checked out again as it is.
    Reusable,
    /// The connection's last user left work unfinished. The connection can be checked out again after it has been
    /// [drained](crate::Establish::drain).
    NeedsDrain,
    /// The connection cannot be used again, and must be closed.
    Broken,
}

impl Condition {
    /// Returns whether the connection can be checked out again as it is.
    #[must_use]
    #[inline]
    pub fn is_reusable(self) -> bool {
        matches!(self, Self::Reusable)
    }
}
