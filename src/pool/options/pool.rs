//! The pool's options, which are checked once, when a pool is built.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{CheckBeforeUse, InvalidOption};
use crate::text::milliseconds::rounded_up;

/// The largest `maxPoolSize`, and the number of connections at which an unlimited pool stops growing: 1,048,575.
///
/// A slot's index has only 20 bits, because it shares a 64-bit word with a tag.
pub const MAX_CONNECTIONS: u32 = (1 << 20) - 1;

/// The largest value of a numeric option, unless the specification defines the option as a 64-bit integer.
pub(crate) const MAX_INT: u64 = i32::MAX.unsigned_abs() as u64;

/// Declares [`PoolOptions`] and [`PoolOptions::TABLE`] from one entry for each option that connection strings can set.
///
/// One entry suffices for an option to be stored, set, read from connection strings, validated, logged, and listed in
/// events and in the guide. The first line of its documentation is also its description in the guide's table.
///
/// The entries follow the order in which the specification logs a new pool's options.
macro_rules! pool_options {
    ($(
        #[doc = $summary:literal]
        $(#[doc = $detail:literal])*
        $field:ident: $type:ty {
            uri: $uri:literal,
            default: $default:literal,
            range: $range:expr,
            allowed: $allowed:literal,
        }
    )*) => {
        /// The options of one pool, named as in the CMAP specification ("Connection Pool Options").
        ///
        /// Start from [`PoolOptions::default`]. Building a pool calls [`PoolOptions::validate`].
        ///
        /// ```
        /// use std::time::Duration;
        /// use wharf::PoolOptions;
        ///
        /// let options = PoolOptions::default()
        ///     .max_pool_size(50)
        ///     .max_idle_time(Duration::from_secs(60));
        /// assert_eq!(options.max_pool_size, 50);
        /// assert!(options.validate().is_ok());
        ///
        /// let error = PoolOptions::default().max_connecting(0).validate().unwrap_err();
        /// assert_eq!(error.to_string(), "maxConnecting must be at least 1, got 0");
        /// ```
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        #[must_use]
        pub struct PoolOptions {
            $(
                #[doc = $summary]
                $(#[doc = $detail])*
                #[doc = concat!("\n`", $uri, "` in connection strings. Default ", $default, "; allowed: ", $allowed, ".")]
                pub $field: $type,
            )*
            /// How long the background task waits between two rounds of maintenance. Not available in connection
            /// strings. Default 10 seconds.
            pub background_interval: BackgroundInterval,
            /// Whether the address belongs to a load balancer.
            ///
            /// If so, each connection belongs to one of the services behind the load balancer, and each service has its
            /// own generation. `loadBalanced` in connection strings. Default `false`.
            pub load_balanced: bool,
            /// When an available connection is [checked](crate::Establish::check) before a check-out returns it.
            ///
            /// `None`, the default, means [`IdleLongerThan`](CheckBeforeUse::IdleLongerThan) one second if the
            /// establisher [has a check](crate::Establish::HAS_CHECK), and [`Never`](CheckBeforeUse::Never) otherwise.
            /// An [`Endpoint`](crate::Endpoint) has no check, because its connections notice that the server has closed
            /// them. Not available in connection strings.
            pub check_before_use: Option<CheckBeforeUse>,
            /// How long a connection may exist. Zero, the default, means no limit.
            ///
            /// An idle connection past its lifetime is closed at the next round of maintenance (`background_interval`),
            /// and can be checked out until then. A connection in use is not interrupted: it is closed when it is
            /// checked in. Up to `minPoolSize` expired connections remain available until they have been replaced,
            /// unless the pool already has `maxPoolSize` connections. The reason in the event is "idle". Not available
            /// in connection strings.
            pub max_lifetime: Duration,
            /// The largest amount, in percent, by which each connection's idle time and lifetime are shortened. Default
            /// 0.
            ///
            /// The amount is random for each connection, so that connections that were opened together do not expire
            /// together. Not available in connection strings.
            pub jitter_percent: u8,
            /// Whether a check-out that would be served too late fails immediately. Default `false`.
            ///
            /// Without this option, an overloaded pool serves its check-outs just before or just after their time
            /// limits, which helps no caller. With this option, a check-out that finds others waiting estimates when it
            /// would be served, from the number of waiting check-outs and the rate at which the pool has been serving
            /// check-outs. If that is later than its limit, the check-out fails with
            /// [`CheckOutError::WaitQueueFull`](crate::CheckOutError::WaitQueueFull), which contains the numbers. The
            /// limit is `waitQueueTimeoutMS`, or what is left of `timeoutMS` or of the caller's deadline. With
            /// `timeoutMS` or a deadline, the remaining time must also cover the use of the connection.
            ///
            /// A check-out without a limit is never refused. No check-out is refused while no other is waiting, or
            /// while the pool may open more connections. The option does not slow down a check-out that finds a
            /// connection at once. Not available in connection strings.
            pub refuse_late: bool,
            specified: Specified,
        }

        /// The options that were set by a method, including those set to their default.
        #[derive(Debug, Clone, Copy, Default)]
        struct Specified {
            $($field: bool,)*
        }

        impl Default for PoolOptions {
            fn default() -> Self {
                Self {
                    $($field: <$type>::from_number($default),)*
                    background_interval: BackgroundInterval::Every(Duration::from_secs(10)),
                    load_balanced: false,
                    check_before_use: None,
                    max_lifetime: Duration::ZERO,
                    jitter_percent: 0,
                    refuse_late: false,
                    specified: Specified::default(),
                }
            }
        }

        impl PoolOptions {
            /// One row for each option that connection strings can set.
            pub(crate) const TABLE: &[PoolOption] = &[$(
                PoolOption {
                    name: $uri,
                    summary: $summary,
                    default: stringify!($default),
                    range: $range,
                    allowed: $allowed,
                    value: |options| options.$field.to_number(),
                    set: |options, number| {
                        options.$field = <$type>::from_number(number);
                        options.specified.$field = true;
                    },
                    differs: |options| options.$field != <$type>::from_number($default),
                    is_specified: |options| options.specified.$field,
                },
            )*];

            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), "), `", $uri, "`.")]
                pub fn $field(mut self, value: $type) -> Self {
                    self.$field = value;
                    self.specified.$field = true;
                    self
                }
            )*
        }
    };
}

pool_options! {
    /// How long a connection may be idle before it is closed.
    max_idle_time: Duration {
        uri: "maxIdleTimeMS",
        default: 0,
        range: 0..=u64::MAX,
        allowed: "0 (no limit) to 2147483647",
    }

    /// How many connections the background task keeps open while the pool is ready.
    ///
    /// At most `maxPoolSize`.
    min_pool_size: u32 {
        uri: "minPoolSize",
        default: 0,
        range: 0..=MAX_CONNECTIONS as u64,
        allowed: "0 to 1048575",
    }

    /// How many connections may exist at a time: pending, idle and in use together.
    ///
    /// Without a limit the pool stops growing at [`MAX_CONNECTIONS`].
    max_pool_size: u32 {
        uri: "maxPoolSize",
        default: 100,
        range: 0..=MAX_CONNECTIONS as u64,
        allowed: "0 (no limit) to 1048575",
    }

    /// How many connections may be opened at a time.
    max_connecting: u32 {
        uri: "maxConnecting",
        default: 2,
        range: 1..=MAX_CONNECTIONS as u64,
        allowed: "1 to 1048575",
    }

    /// How long a check-out waits for an idle connection or for a permit to open one.
    ///
    /// Deprecated in favour of `timeoutMS`, and ignored where `timeoutMS` is set, for the pool or for the operation.
    /// The wait does not include the time to establish a connection, which an endpoint limits with `connectTimeoutMS`.
    /// The [guide](crate::guide::time_limits) has a table of all limits.
    wait_queue_timeout: Duration {
        uri: "waitQueueTimeoutMS",
        default: 0,
        range: 0..=u64::MAX,
        allowed: "0 (no limit) to 2147483647",
    }
}

/// Describes one pool option for the documentation, connection strings, validation, events and the log.
pub(crate) struct PoolOption {
    /// The name in connection strings, events and logs.
    pub name: &'static str,
    /// The purpose of the option, in one line.
    pub summary: &'static str,
    /// The default, in the form used in connection strings.
    pub default: &'static str,
    /// The values that a pool accepts. If the specification allows values outside this range, a larger value in a
    /// connection string is refused, and a smaller value is ignored.
    pub range: RangeInclusive<u64>,
    /// The numbers that connection strings may give, in words.
    pub allowed: &'static str,
    pub(crate) value: fn(&PoolOptions) -> u64,
    pub set: fn(&mut PoolOptions, u64),
    differs: fn(&PoolOptions) -> bool,
    is_specified: fn(&PoolOptions) -> bool,
}

/// The type of an option whose value converts to and from a number in the specification's unit.
trait OptionNumber {
    fn from_number(number: u64) -> Self;
    fn to_number(self) -> u64;
}

/// A number of connections.
impl OptionNumber for u32 {
    fn from_number(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }

    fn to_number(self) -> u64 {
        self.into()
    }
}

/// Milliseconds.
impl OptionNumber for Duration {
    fn from_number(number: u64) -> Self {
        Self::from_millis(number)
    }

    fn to_number(self) -> u64 {
        rounded_up(self)
    }
}

/// All values of this type are equal, so that two `PoolOptions` with equal values are equal, no matter how the values
/// were set.
impl PartialEq for Specified {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Specified {}

/// How long the background task waits between two rounds of maintenance.
///
/// The specification leaves the interval open; its test format calls it `backgroundThreadIntervalMS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackgroundInterval {
    /// Maintenance runs this long after the previous round has finished, and immediately after a clear.
    ///
    /// If none of `minPoolSize`, `maxIdleTimeMS` and a lifetime is set, the passage of time alone does not create work,
    /// and maintenance runs only when there is work. In load-balanced mode, it always runs at intervals.
    Every(Duration),
    /// Maintenance never runs. This is for tests: a pool without maintenance does not open connections to reach
    /// `minPoolSize`, does not close idle connections while there is no traffic, and does not interrupt connections in
    /// use.
    Never,
}

impl PoolOptions {
    /// Sets [`background_interval`](Self#structfield.background_interval).
    pub fn background_interval(mut self, interval: BackgroundInterval) -> Self {
        self.background_interval = interval;
        self
    }

    /// Sets [`load_balanced`](Self#structfield.load_balanced), `loadBalanced`.
    pub fn load_balanced(mut self, load_balanced: bool) -> Self {
        self.load_balanced = load_balanced;
        self
    }

    /// Sets [`check_before_use`](Self#structfield.check_before_use).
    pub fn check_before_use(mut self, policy: CheckBeforeUse) -> Self {
        self.check_before_use = Some(policy);
        self
    }

    /// Sets [`max_lifetime`](Self#structfield.max_lifetime).
    #[doc(alias("max_age", "lifetime"))]
    pub fn max_lifetime(mut self, time: Duration) -> Self {
        self.max_lifetime = time;
        self
    }

    /// Sets [`jitter_percent`](Self#structfield.jitter_percent).
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.jitter_percent = percent;
        self
    }

    /// Sets [`refuse_late`](Self#structfield.refuse_late).
    #[doc(alias("admission", "load_shedding"))]
    pub fn refuse_late(mut self, refuse: bool) -> Self {
        self.refuse_late = refuse;
        self
    }

    /// Returns whether connections can expire because of their age or their idle time.
    pub(crate) fn has_expiry(&self) -> bool {
        !self.max_idle_time.is_zero() || !self.max_lifetime.is_zero()
    }

    /// Refuses a policy that requires a check, for an establisher that has none.
    pub(crate) fn refuse_check(&self) -> Result<(), InvalidOption> {
        match self.check_before_use {
            None | Some(CheckBeforeUse::Never) => Ok(()),
            Some(policy) => {
                let must = "Never for connections without a check (Establish::HAS_CHECK)";
                Err(InvalidOption::new("checkBeforeUse", must, format!("{policy:?}")))
            }
        }
    }

    /// Checks that the options are valid and do not conflict.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first option that is invalid, its value and the allowed values.
    pub fn validate(&self) -> Result<(), InvalidOption> {
        self.check()?;
        self.check_together()
    }

    /// Refuses values that are invalid regardless of the other options.
    pub(crate) fn check(&self) -> Result<(), InvalidOption> {
        for option in Self::TABLE {
            let (value, range) = ((option.value)(self), &option.range);
            if value < *range.start() {
                return Err(InvalidOption::new(option.name, format!("at least {}", range.start()), value.to_string()));
            }
            if value > *range.end() {
                return Err(InvalidOption::new(option.name, format!("at most {}", range.end()), value.to_string()));
            }
        }
        if self.jitter_percent > 100 {
            return Err(InvalidOption::new("jitterPercent", "at most 100", self.jitter_percent.to_string()));
        }
        match self.background_interval {
            BackgroundInterval::Every(Duration::ZERO) => {
                Err(InvalidOption::because("backgroundInterval", "must be longer than zero, or Never"))
            }
            _ => Ok(()),
        }
    }

    /// Refuses values that conflict.
    pub(crate) fn check_together(&self) -> Result<(), InvalidOption> {
        if self.min_pool_size > self.capacity() {
            let must = format!("at most maxPoolSize ({})", self.capacity());
            return Err(InvalidOption::new("minPoolSize", must, self.min_pool_size.to_string()));
        }
        Ok(())
    }

    pub(crate) fn interval(&self) -> BackgroundInterval {
        self.background_interval
    }

    /// Returns whether the passage of time alone can create work for the background task, regardless of the pool's
    /// sizes.
    ///
    /// Such work consists of closing connections that have been idle for too long or are too old. `minPoolSize` also
    /// creates such work, because failed openings are retried, and so does a resize: see `Core::needs_intervals`. All
    /// other work results from a clear, a close or a call to `ready`, each of which requests maintenance. In
    /// load-balanced mode, maintenance runs at intervals to find the remaining connections to cleared services.
    pub(crate) fn needs_intervals(&self) -> bool {
        self.has_expiry() || self.load_balanced
    }

    /// Returns the number of connections that may exist: `maxPoolSize`, or [`MAX_CONNECTIONS`] without a limit.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        Self::capacity_of(self.max_pool_size)
    }

    /// Returns the number of connections that may exist with this `maxPoolSize`.
    pub(crate) fn capacity_of(max_pool_size: u32) -> u32 {
        if max_pool_size == 0 { MAX_CONNECTIONS } else { max_pool_size }
    }

    /// Refuses options that differ from the pool's current options in anything but the sizes.
    pub(crate) fn check_resize_from(&self, present: &Self) -> Result<(), InvalidOption> {
        const SIZES: [&str; 3] = ["minPoolSize", "maxPoolSize", "maxConnecting"];
        match self.differences(present).find(|option| !SIZES.contains(option)) {
            Some(other) => Err(InvalidOption::because(other, "cannot change while the pool is in use")),
            None => Ok(()),
        }
    }

    /// Returns the names of the options that differ.
    pub(crate) fn differences(&self, other: &Self) -> impl Iterator<Item = &'static str> {
        let differs = |option: &&PoolOption| (option.value)(self) != (option.value)(other);
        let others = [
            ("backgroundInterval", self.background_interval != other.background_interval),
            ("loadBalanced", self.load_balanced != other.load_balanced),
            ("checkBeforeUse", self.check_before_use != other.check_before_use),
            ("maxLifetime", self.max_lifetime != other.max_lifetime),
            ("jitterPercent", self.jitter_percent != other.jitter_percent),
            ("refuseLate", self.refuse_late != other.refuse_late),
        ];
        let others = others.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name);
        Self::TABLE.iter().filter(differs).map(|option| option.name).chain(others)
    }

    /// Returns the options that are logged when a pool is created: all options that were set, including those set to
    /// their default.
    ///
    /// Each has the specification's name and unit. `loadBalanced` is not among them, because the specification does not
    /// log it (CMAP, "Connection Pool Logging").
    #[must_use]
    pub fn specified(&self) -> Vec<(&'static str, OptionValue)> {
        let specified = Self::TABLE.iter().filter(|option| (option.is_specified)(self) || (option.differs)(self));
        specified.map(|option| (option.name, OptionValue::Number((option.value)(self)))).collect()
    }

    /// Returns the options that differ from their default, as in the `PoolCreated` event.
    ///
    /// Each has the specification's name and unit.
    #[must_use]
    pub fn non_default(&self) -> Vec<(&'static str, OptionValue)> {
        let differing = Self::TABLE.iter().filter(|option| (option.differs)(self));
        let numbers = differing.map(|option| (option.name, OptionValue::Number((option.value)(self))));
        let flag = self.load_balanced.then_some(("loadBalanced", OptionValue::Flag(true)));
        numbers.chain(flag).collect()
    }
}

/// The value of a pool option, as shown in events and in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionValue {
    /// A count, or a time in milliseconds.
    Number(u64),
    /// `true` or `false`.
    Flag(bool),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_specification() {
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
    fn invalid_value_is_refused_with_name_value_and_range() {
        let refusals = [
            (PoolOptions::default().min_pool_size(101), "minPoolSize must be at most maxPoolSize (100), got 101"),
            (PoolOptions::default().max_connecting(0), "maxConnecting must be at least 1, got 0"),
            (PoolOptions::default().max_pool_size(1 << 20), "maxPoolSize must be at most 1048575, got 1048576"),
            (
                PoolOptions::default().background_interval(BackgroundInterval::Every(Duration::ZERO)),
                "backgroundInterval must be longer than zero, or Never",
            ),
        ];
        for (options, message) in refusals {
            assert_eq!(options.validate().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn resize_allows_other_sizes_and_refuses_all_other_changes() {
        let present = PoolOptions::default();
        let check = |changed: PoolOptions| changed.check_resize_from(&present).map_err(|error| error.option);
        assert_eq!(check(present.clone().max_pool_size(7).min_pool_size(1).max_connecting(3)), Ok(()));
        let second = Duration::from_secs(1);
        for (changed, option) in [
            (present.clone().max_idle_time(second), "maxIdleTimeMS"),
            (present.clone().background_interval(BackgroundInterval::Never), "backgroundInterval"),
            (present.clone().load_balanced(true), "loadBalanced"),
            (present.clone().check_before_use(CheckBeforeUse::Always), "checkBeforeUse"),
            (present.clone().max_lifetime(second), "maxLifetime"),
            (present.clone().jitter_percent(5), "jitterPercent"),
            (present.clone().refuse_late(true), "refuseLate"),
        ] {
            assert_eq!(check(changed), Err(option));
        }
    }

    #[test]
    fn pool_without_a_limit_allows_any_minimum() {
        assert_eq!(PoolOptions::default().max_pool_size(0).min_pool_size(5_000).validate(), Ok(()));
    }

    #[test]
    fn created_event_has_the_options_that_differ_from_their_default() {
        let options =
            PoolOptions::default().max_pool_size(50).min_pool_size(5).max_idle_time(Duration::from_millis(100));
        assert_eq!(
            options.non_default(),
            [
                ("maxIdleTimeMS", OptionValue::Number(100)),
                ("minPoolSize", OptionValue::Number(5)),
                ("maxPoolSize", OptionValue::Number(50)),
            ]
        );
    }
}
