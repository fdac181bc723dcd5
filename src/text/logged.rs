//! Checks whether anything reads the log messages.

use tracing::Level;
#[cfg(feature = "log")]
use tracing::level_filters::LevelFilter;

/// Returns whether anything may read messages with this target at this level: a [`tracing`] subscriber, or a
/// [logger](may_reach_logger). A message that nothing reads is not built.
macro_rules! is_logged {
    ($target:expr, $level:expr) => {
        tracing::enabled!(target: $target, $level) || $crate::text::logged::may_reach_logger($level)
    };
}

pub(crate) use is_logged;

/// Returns whether a logger from the `log` crate may read messages at this level. `tracing` sends messages to that
/// logger only with the `log` feature, and only if it has never had a subscriber.
///
/// Does not call foreign code.
#[inline]
pub(crate) fn may_reach_logger(level: Level) -> bool {
    #[cfg(feature = "log")]
    {
        let level = match level {
            Level::ERROR => log::Level::Error,
            Level::WARN => log::Level::Warn,
            Level::INFO => log::Level::Info,
            Level::DEBUG => log::Level::Debug,
            _ => log::Level::Trace,
        };
        // The filter is off if there is no subscriber. It is also off if there is a subscriber that does not read
        // anything, in which case messages are built but not read.
        LevelFilter::current() == LevelFilter::OFF && level <= log::max_level()
    }
    #[cfg(not(feature = "log"))]
    {
        let _ = level;
        false
    }
}
