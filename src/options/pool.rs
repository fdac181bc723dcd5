//! The pool's options, checked once when a pool is built.

use std::time::Duration;

use super::InvalidOption;

/// The largest `maxPoolSize` that a pool accepts, and the number of connections at which an unlimited pool stops
/// growing: 1,048,575.
///
/// A connection's place in the pool is a 20-bit index, because it shares a 64-bit word with a tag.
pub const MAX_CONNECTIONS: u32 = (1 << 20) - 1;

/// The options of one pool, in the words of the CMAP specification ("Connection Pool Options").
///
/// Start from [`PoolOptions::default`] and set what differs. Nothing is checked until the pool is built; then
/// [`PoolOptions::validate`] refuses what cannot work, with the option's name, its value and what is allowed.
///
/// ```
/// use std::time::Duration;
/// use wharf::PoolOptions;
///
/// let options = PoolOptions::default()
///     .max_pool_size(50)
///     .max_idle_time(Duration::from_secs(60));
/// assert!(options.validate().is_ok());
///
/// let error = PoolOptions::default().max_connecting(0).validate().unwrap_err();
/// assert_eq!(error.to_string(), "maxConnecting is 0, but must be 1 to 1048575");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct PoolOptions {
    pub(crate) max_pool_size: u32,
    pub(crate) min_pool_size: u32,
    pub(crate) max_idle_time: Duration,
    pub(crate) max_connecting: u32,
    pub(crate) wait_queue_timeout: Duration,
    pub(crate) background_interval: BackgroundInterval,
    pub(crate) load_balanced: bool,
    specified: Specified,
}

/// Which options were set, whatever to. It is no part of what the options are: two that came about in different ways are
/// equal.
#[derive(Debug, Clone, Copy, Default)]
struct Specified(u8);

impl PartialEq for Specified {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Specified {}

/// How long the background task rests between the end of one run and the beginning of the next.
///
/// The specification leaves the interval open; its test format calls it `backgroundThreadIntervalMS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackgroundInterval {
    /// Runs begin by themselves this long after the last one ended, and at once after a clear. Without `minPoolSize`
    /// and `maxIdleTimeMS`, unless in load-balanced mode, time alone leaves nothing to do, and they only begin when
    /// there is.
    Every(Duration),
    /// No run ever begins. For tests: such a pool neither populates itself to `minPoolSize` nor removes idle
    /// connections without traffic nor interrupts connections in use.
    Never,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            max_pool_size: 100,
            min_pool_size: 0,
            max_idle_time: Duration::ZERO,
            max_connecting: 2,
            wait_queue_timeout: Duration::ZERO,
            background_interval: BackgroundInterval::Every(Duration::from_secs(10)),
            load_balanced: false,
            specified: Specified::default(),
        }
    }
}

/// The options that the log tells of, by their bit in [`Specified`].
const LOGGED: [&str; 5] = ["maxIdleTimeMS", "minPoolSize", "maxPoolSize", "maxConnecting", "waitQueueTimeoutMS"];
const MAX_IDLE_TIME: u8 = 0;
const MIN_POOL_SIZE: u8 = 1;
const MAX_POOL_SIZE: u8 = 2;
const MAX_CONNECTING: u8 = 3;
const WAIT_QUEUE_TIMEOUT: u8 = 4;

impl PoolOptions {
    /// `maxPoolSize`: how many connections may exist at a time, pending, available and in use together.
    ///
    /// Default 100; 0 means no limit (but for [`MAX_CONNECTIONS`]).
    pub fn max_pool_size(mut self, connections: u32) -> Self {
        self.max_pool_size = connections;
        self.specified.0 |= 1 << MAX_POOL_SIZE;
        self
    }

    /// `minPoolSize`: how many connections the background task keeps in existence while the pool is ready.
    ///
    /// Default 0; at most `maxPoolSize`.
    pub fn min_pool_size(mut self, connections: u32) -> Self {
        self.min_pool_size = connections;
        self.specified.0 |= 1 << MIN_POOL_SIZE;
        self
    }

    /// `maxIdleTimeMS`: how long a connection may be available without being checked out before it is closed.
    ///
    /// Default zero, which means no limit.
    pub fn max_idle_time(mut self, time: Duration) -> Self {
        self.max_idle_time = time;
        self.specified.0 |= 1 << MAX_IDLE_TIME;
        self
    }

    /// `maxConnecting`: how many connections may be in establishment at a time.
    ///
    /// Default 2; at least 1.
    pub fn max_connecting(mut self, connections: u32) -> Self {
        self.max_connecting = connections;
        self.specified.0 |= 1 << MAX_CONNECTING;
        self
    }

    /// `waitQueueTimeoutMS`: how long a check-out waits for an available connection or for the right to open one.
    ///
    /// Default zero, which means no limit. Deprecated in favour of `timeoutMS`, and ignored where that is set, for the pool
    /// or for the operation. The time that a connection's establishment takes does not count: an endpoint limits that by
    /// `connectTimeoutMS`. The [guide](crate::guide#time-limits) has a table of all limits.
    pub fn wait_queue_timeout(mut self, time: Duration) -> Self {
        self.wait_queue_timeout = time;
        self.specified.0 |= 1 << WAIT_QUEUE_TIMEOUT;
        self
    }

    /// How long the background task rests between two runs. Default 10 seconds.
    pub fn background_interval(mut self, interval: BackgroundInterval) -> Self {
        self.background_interval = interval;
        self
    }

    /// `loadBalanced`: whether the address is a load balancer's, so that each connection belongs to one of several
    /// services behind it and generations are kept per service. Default `false`.
    pub fn load_balanced(mut self, load_balanced: bool) -> Self {
        self.load_balanced = load_balanced;
        self
    }

    /// Refuses options that cannot work.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first offending option, its value and what is allowed.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        self.check()?;
        self.check_together()
    }

    /// Refuses values that no other option could make work.
    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        let refuse = |option, value: String, allowed: String| Err(InvalidOption { option, value, allowed });
        if self.max_pool_size > MAX_CONNECTIONS {
            return refuse("maxPoolSize", self.max_pool_size.to_string(), format!("0 (no limit) to {MAX_CONNECTIONS}"));
        }
        if self.min_pool_size > MAX_CONNECTIONS {
            return refuse("minPoolSize", self.min_pool_size.to_string(), format!("0 to {MAX_CONNECTIONS}"));
        }
        if self.max_connecting == 0 || self.max_connecting > MAX_CONNECTIONS {
            return refuse("maxConnecting", self.max_connecting.to_string(), format!("1 to {MAX_CONNECTIONS}"));
        }
        if self.background_interval == BackgroundInterval::Every(Duration::ZERO) {
            return refuse("backgroundInterval", "0 ms".into(), "a positive duration, or Never".into());
        }
        Ok(())
    }

    /// Refuses values that do not go together.
    pub(super) fn check_together(&self) -> Result<(), InvalidOption> {
        if self.min_pool_size > self.capacity() {
            return Err(InvalidOption {
                option: "minPoolSize",
                value: self.min_pool_size.to_string(),
                allowed: format!("0 to maxPoolSize ({})", self.capacity()),
            });
        }
        Ok(())
    }

    /// Whether the pool is in load-balanced mode.
    #[must_use]
    pub fn is_load_balanced(&self) -> bool {
        self.load_balanced
    }

    pub(crate) fn interval(&self) -> BackgroundInterval {
        self.background_interval
    }

    /// Whether the passing of time can leave something to do for the background task: connections that were idle for
    /// too long, or an establishment towards `minPoolSize` to try again after one failed. All else that it does follows
    /// from a clear, a closing or a call of `ready`, each of which asks for a run. In load-balanced mode the intervals
    /// remain as a second look for connections of cleared services, whose runs look at every shard.
    pub(crate) fn needs_intervals(&self) -> bool {
        self.min_pool_size > 0 || !self.max_idle_time.is_zero() || self.load_balanced
    }

    /// The number of connections that may exist: `maxPoolSize`, or [`MAX_CONNECTIONS`] where there is no limit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        if self.max_pool_size == 0 { MAX_CONNECTIONS } else { self.max_pool_size }
    }

    /// The options that were set, also to their default, as far as the log of a pool's creation has them: by the
    /// specification's names and in its units.
    #[must_use]
    pub fn specified(&self) -> Vec<(&'static str, u64)> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let values = [
            millis(self.max_idle_time),
            self.min_pool_size.into(),
            self.max_pool_size.into(),
            self.max_connecting.into(),
            millis(self.wait_queue_timeout),
        ];
        let logged = LOGGED.into_iter().zip(values).enumerate();
        logged.filter(|(bit, _)| self.specified.0 >> bit & 1 == 1).map(|(_, option)| option).collect()
    }

    /// The options that differ from the default, by the specification's names and in its units, as the
    /// `PoolCreated` event carries them.
    #[must_use]
    pub fn non_default(&self) -> Vec<(&'static str, OptionValue)> {
        let default = Self::default();
        let millis = |time: Duration| OptionValue::Number(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let mut options = Vec::new();
        let mut note = |differs: bool, name, value| {
            if differs {
                options.push((name, value));
            }
        };
        note(
            self.max_pool_size != default.max_pool_size,
            "maxPoolSize",
            OptionValue::Number(self.max_pool_size.into()),
        );
        note(
            self.min_pool_size != default.min_pool_size,
            "minPoolSize",
            OptionValue::Number(self.min_pool_size.into()),
        );
        note(self.max_idle_time != default.max_idle_time, "maxIdleTimeMS", millis(self.max_idle_time));
        note(
            self.max_connecting != default.max_connecting,
            "maxConnecting",
            OptionValue::Number(self.max_connecting.into()),
        );
        note(
            self.wait_queue_timeout != default.wait_queue_timeout,
            "waitQueueTimeoutMS",
            millis(self.wait_queue_timeout),
        );
        note(self.load_balanced, "loadBalanced", OptionValue::Flag(self.load_balanced));
        options
    }
}

/// The value of an option in a `PoolCreated` event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionValue {
    /// A count, or a time in milliseconds.
    Number(u64),
    /// A yes or no.
    Flag(bool),
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_specifications() {
        let options = PoolOptions::default();
        assert_eq!(options.max_pool_size, 100);
        assert_eq!(options.min_pool_size, 0);
        assert_eq!(options.max_idle_time, Duration::ZERO);
        assert_eq!(options.max_connecting, 2);
        assert_eq!(options.wait_queue_timeout, Duration::ZERO);
        assert_eq!(options.validate(), Ok(()));
        assert_eq!(options.non_default(), []);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name_value_and_range() {
        let refusals = [
            (PoolOptions::default().min_pool_size(101), "minPoolSize is 101, but must be 0 to maxPoolSize (100)"),
            (PoolOptions::default().max_connecting(0), "maxConnecting is 0, but must be 1 to 1048575"),
            (
                PoolOptions::default().max_pool_size(1 << 20),
                "maxPoolSize is 1048576, but must be 0 (no limit) to 1048575",
            ),
            (
                PoolOptions::default().background_interval(BackgroundInterval::Every(Duration::ZERO)),
                "backgroundInterval is 0 ms, but must be a positive duration, or Never",
            ),
        ];
        for (options, message) in refusals {
            assert_eq!(options.validate().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn without_a_limit_any_minimum_is_allowed() {
        assert_eq!(PoolOptions::default().max_pool_size(0).min_pool_size(5_000).validate(), Ok(()));
    }

    #[test]
    fn the_created_event_lists_what_differs_in_the_specifications_units() {
        let options =
            PoolOptions::default().max_pool_size(50).min_pool_size(5).max_idle_time(Duration::from_millis(100));
        assert_eq!(
            options.non_default(),
            [
                ("maxPoolSize", OptionValue::Number(50)),
                ("minPoolSize", OptionValue::Number(5)),
                ("maxIdleTimeMS", OptionValue::Number(100)),
            ]
        );
    }
}
