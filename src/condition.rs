//! What a connection is good for when it comes back.

/// The condition of a connection that is checked in: whether it can be checked out again.
///
/// There will be no other condition: the code that passes a connection on matches on all of them, in the pool and in an
/// [`Establish`](crate::Establish) of your own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The connection can be checked out again as it is.
    Reusable,
    /// Its last user left in the middle of something. The connection can be checked out again once it is
    /// [drained](crate::Establish::drain).
    NeedsDrain,
    /// The connection cannot be used again, and is to be closed.
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
