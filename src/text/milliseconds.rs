//! Times in milliseconds, in messages and in commands.

use std::fmt;
use std::time::Duration;

/// Displays a time in milliseconds, the unit of the options: `200 ms`, or `0.05 ms` if it is not a whole number.
pub(crate) struct Milliseconds(pub Duration);

/// Returns a time in milliseconds, rounded up, because a limit of 0 means no limit.
pub(crate) fn rounded_up(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Returns a server's time limit in milliseconds, rounded up.
#[cfg(feature = "mongodb")]
pub(crate) fn limit_for_server(time: Duration) -> i64 {
    i64::try_from(rounded_up(time)).unwrap_or(i64::MAX)
}

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(time) = self;
        write!(f, "{}", time.as_millis())?;
        match time.subsec_nanos() % 1_000_000 {
            0 => {}
            nanoseconds => write!(f, ".{}", format!("{nanoseconds:06}").trim_end_matches('0'))?,
        }
        f.write_str(" ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fraction_of_a_millisecond_is_shown() {
        for (nanoseconds, shown) in [
            (0, "0 ms"),
            (1, "0.000001 ms"),
            (50_000, "0.05 ms"),
            (999_999, "0.999999 ms"),
            (1_000_000, "1 ms"),
            (1_500_000, "1.5 ms"),
            (60_000_000_000, "60000 ms"),
        ] {
            assert_eq!(Milliseconds(Duration::from_nanos(nanoseconds)).to_string(), shown);
        }
    }

    #[cfg(feature = "mongodb")]
    #[test]
    fn short_limit_does_not_become_none() {
        let limits = [0, 1, 1_000_000, 1_000_001].map(|time| limit_for_server(Duration::from_nanos(time)));
        assert_eq!(limits, [0, 1, 1, 2]);
        assert_eq!(limit_for_server(Duration::MAX), i64::MAX);
    }
}
