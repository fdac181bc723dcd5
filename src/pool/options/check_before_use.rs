//! When a pool checks a connection before use.

use std::time::Duration;

/// When a pool [checks](crate::Establish::check) an available connection before a check-out returns it.
///
/// If the establisher does not [have a check](crate::Establish::HAS_CHECK), only `Never` is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias("test_on_check_out", "test_before_acquire", "before_acquire", "recycle", "is_valid"))]
pub enum CheckBeforeUse {
    /// The pool does not check connections. A check-out may return a connection that the server has closed.
    Never,
    /// The pool checks a connection that has been available for longer than this time. It may do so up to 0.2 seconds
    /// early.
    ///
    /// For a connection that was used more recently, the check-out and the check-in each make one comparison, and do
    /// not read the system clock. While a pool with this policy exists, a thread of this process advances a coarse
    /// clock ten times a second.
    IdleLongerThan(Duration),
    /// The pool checks every connection, except one that was opened for the check-out itself.
    Always,
}

impl CheckBeforeUse {
    /// The default for an establisher that has a check: connections that have been available for longer than one
    /// second.
    pub(crate) const DEFAULT: Self = Self::IdleLongerThan(Duration::from_secs(1));
}
