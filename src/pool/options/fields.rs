//! Serializes a pool's options, and reads them from configuration files and environment variables.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;

use super::pool::MAX_INT;
use super::{BackgroundInterval, CheckBeforeUse, InvalidOption, PoolOptions};
use crate::text::given::{nearest, number};
use crate::text::milliseconds::rounded_up;

/// A pool option that is not in [`PoolOptions::TABLE`].
struct Field {
    name: &'static str,
    /// The allowed values, worded to follow "must be".
    allowed: &'static str,
    value: fn(&PoolOptions) -> Value,
    /// Reads the value, or returns `None` if it is not allowed.
    set: fn(&mut PoolOptions, &str) -> Option<()>,
}

const FIELDS: [Field; 6] = [
    Field {
        name: "loadBalanced",
        allowed: "true or false",
        value: |options| options.load_balanced.into(),
        set: |options, text| text.parse().ok().map(|flag| options.load_balanced = flag),
    },
    Field {
        name: "backgroundIntervalMS",
        allowed: "1 to 2147483647, or never",
        value: |options| match options.background_interval {
            BackgroundInterval::Every(interval) => millis(interval),
            BackgroundInterval::Never => "never".into(),
        },
        set: |options, text| {
            options.background_interval = match text {
                "never" => BackgroundInterval::Never,
                _ => BackgroundInterval::Every(read_millis(text, 1)?),
            };
            Some(())
        },
    },
    Field {
        name: "checkBeforeUseMS",
        allowed: "0 to 2147483647, never or always",
        value: |options| match options.check_before_use {
            None => Value::Null,
            Some(CheckBeforeUse::Never) => "never".into(),
            Some(CheckBeforeUse::IdleLongerThan(time)) => millis(time),
            Some(CheckBeforeUse::Always) => "always".into(),
        },
        set: |options, text| {
            options.check_before_use = Some(match text {
                "never" => CheckBeforeUse::Never,
                "always" => CheckBeforeUse::Always,
                _ => CheckBeforeUse::IdleLongerThan(read_millis(text, 0)?),
            });
            Some(())
        },
    },
    Field {
        name: "maxLifetimeMS",
        allowed: "0 (no limit) to 2147483647",
        value: |options| millis(options.max_lifetime),
        set: |options, text| read_millis(text, 0).map(|time| options.max_lifetime = time),
    },
    Field {
        name: "jitterPercent",
        allowed: "0 to 100",
        value: |options| options.jitter_percent.into(),
        set: |options, text| {
            options.jitter_percent = number(text, 0, 100)?.try_into().ok()?;
            Some(())
        },
    },
    Field {
        name: "refuseLate",
        allowed: "true or false",
        value: |options| options.refuse_late.into(),
        set: |options, text| text.parse().ok().map(|flag| options.refuse_late = flag),
    },
];

fn millis(time: Duration) -> Value {
    rounded_up(time).into()
}

fn read_millis(text: &str, least: u64) -> Option<Duration> {
    number(text, least, MAX_INT).map(Duration::from_millis)
}

/// Returns whether `given` matches the option name `name`. Case, underscores and hyphens are ignored, because
/// environment variables and configuration files follow different naming conventions.
pub(crate) fn is_name(given: &str, name: &str) -> bool {
    let given = given.bytes().filter(|byte| !b"_-".contains(byte));
    given.map(|byte| byte.to_ascii_lowercase()).eq(name.bytes().map(|byte| byte.to_ascii_lowercase()))
}

/// Returns a single value as text, or `None` for any other value. Environment variables provide numbers and flags as
/// text, and some configuration formats turn text that looks like a number into a number.
pub(crate) fn text_of(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

impl PoolOptions {
    /// Returns the names of all options.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        Self::TABLE.iter().map(|option| option.name).chain(FIELDS.iter().map(|field| field.name))
    }

    /// Returns the name and the value of each option.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'static str, Value)> {
        let of_table = Self::TABLE.iter().map(|option| (option.name, (option.value)(self).into()));
        of_table.chain(FIELDS.iter().map(|field| (field.name, (field.value)(self))))
    }

    /// Sets the option with this name, which is one of [`names`](Self::names).
    pub(crate) fn set_field(&mut self, name: &'static str, value: Value) -> Result<(), InvalidOption> {
        let shown = value.to_string();
        let set = text_of(value).ok_or("a single value").and_then(|text| self.set_text(name, &text));
        set.map_err(|allowed| InvalidOption::new(name, allowed, shown))
    }

    /// Sets an option. If the value is not allowed, returns a description of the allowed values.
    fn set_text(&mut self, name: &str, text: &str) -> Result<(), &'static str> {
        if let Some(option) = Self::TABLE.iter().find(|option| option.name == name) {
            // As with connection strings, `check` later refuses a number that a pool cannot support.
            let number = number(text, *option.range.start(), MAX_INT).ok_or(option.allowed)?;
            (option.set)(self, number);
            return Ok(());
        }
        match FIELDS.iter().find(|field| field.name == name) {
            Some(field) => (field.set)(self, text).ok_or(field.allowed),
            None => Err("left out"),
        }
    }
}

/// Writes a map whose keys are the names of the options in connection strings. Times are in milliseconds. Options that
/// connection strings do not support are named in the same style: `backgroundIntervalMS` and `checkBeforeUseMS`, whose
/// values may be words (`never`, `always`), `maxLifetimeMS`, `jitterPercent`, and `refuseLate`.
impl Serialize for PoolOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields())
    }
}

/// Reads a map with the names that `Serialize` writes. Case, underscores and hyphens in names are ignored, and numbers
/// may be given as text. An option that is missing or null keeps its default. The
/// [guide](crate::guide::options#from-files-and-environment-variables) has an example.
///
/// # Errors
///
/// An error names the option, the value and the allowed values, as [`InvalidOption`] does. Unknown options are refused.
impl<'de> Deserialize<'de> for PoolOptions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = PoolOptions;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of a pool's options")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PoolOptions, A::Error> {
        let mut options = PoolOptions::default();
        let mut given = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            let known = find_name(&name, PoolOptions::names, &mut given).map_err(A::Error::custom)?;
            if !value.is_null() {
                options.set_field(known, value).map_err(A::Error::custom)?;
            }
        }
        options.validate().map_err(A::Error::custom)?;
        Ok(options)
    }
}

/// Returns the entry in `names` that a field matches, and adds it to `given`.
pub(crate) fn find_name<N: Iterator<Item = &'static str>>(
    field: &str,
    names: impl Fn() -> N,
    given: &mut Vec<&'static str>,
) -> Result<&'static str, InvalidOption> {
    let Some(name) = names().find(|name| is_name(field, name)) else {
        let bare = field.replace(['_', '-'], "");
        return Err(InvalidOption::unknown(format_args!("{field:?}"), nearest(&bare, names())));
    };
    if given.contains(&name) {
        return Err(InvalidOption::because(name, "is given more than once"));
    }
    given.push(name);
    Ok(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A map that gives each option a value other than its default.
    fn unusual() -> Value {
        json!({
            "maxIdleTimeMS": 3_000, "minPoolSize": 1, "maxPoolSize": 7, "maxConnecting": 3, "waitQueueTimeoutMS": 5,
            "loadBalanced": true, "backgroundIntervalMS": 20, "checkBeforeUseMS": "always", "maxLifetimeMS": 60_000,
            "jitterPercent": 10, "refuseLate": true
        })
    }

    fn read(map: &Value) -> Result<PoolOptions, String> {
        serde_json::from_value(map.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_option_is_written_as_it_is_read() {
        let options = read(&unusual()).unwrap();
        assert_eq!(serde_json::to_value(&options).unwrap(), unusual());
        // The struct has one more field, which records the options that were set by a method.
        let debug = format!("{options:#?}");
        let is_field = |line: &&str| line.contains(": ") && line.find(|char| char != ' ') == Some(4);
        assert_eq!(debug.lines().filter(is_field).count(), PoolOptions::names().count() + 1, "{debug}");
        let defaults = serde_json::to_value(PoolOptions::default()).unwrap();
        assert_eq!(read(&defaults).unwrap(), PoolOptions::default());
        for (name, value) in defaults.as_object().unwrap() {
            assert_ne!(unusual()[name], *value, "{name}");
        }
    }

    #[test]
    fn words_are_written_as_they_are_read() {
        let words = [
            PoolOptions::default()
                .background_interval(BackgroundInterval::Never)
                .check_before_use(CheckBeforeUse::Never),
            PoolOptions::default().check_before_use(CheckBeforeUse::IdleLongerThan(Duration::from_millis(500))),
        ];
        for options in words {
            assert_eq!(read(&serde_json::to_value(&options).unwrap()), Ok(options));
        }
    }

    #[test]
    fn names_and_values_may_have_the_form_of_environment_variables() {
        let text =
            json!({ "MAX_POOL_SIZE": "7", "max-idle-time-ms": "3000", "loadbalanced": "true", "jitterPercent": null });
        let expected =
            PoolOptions::default().max_pool_size(7).max_idle_time(Duration::from_secs(3)).load_balanced(true);
        assert_eq!(read(&text), Ok(expected));
    }

    #[test]
    fn errors_name_the_option_the_value_and_what_is_allowed() {
        let refusals = [
            (json!({ "maxPoolSise": 5 }), "option \"maxPoolSise\" is not supported; the nearest name is maxPoolSize"),
            (json!({ "color": 5 }), "option \"color\" is not supported"),
            (json!({ "maxConnecting": 0 }), "maxConnecting must be 1 to 1048575, got 0"),
            (json!({ "maxPoolSize": -1 }), "maxPoolSize must be 0 (no limit) to 1048575, got -1"),
            (json!({ "maxPoolSize": 2_000_000 }), "maxPoolSize must be at most 1048575, got 2000000"),
            (json!({ "maxIdleTimeMS": "soon" }), "maxIdleTimeMS must be 0 (no limit) to 2147483647, got \"soon\""),
            (json!({ "maxPoolSize": [1] }), "maxPoolSize must be a single value, got [1]"),
            (json!({ "minPoolSize": 5, "maxPoolSize": 4 }), "minPoolSize must be at most maxPoolSize (4), got 5"),
            (json!({ "jitterPercent": 101 }), "jitterPercent must be 0 to 100, got 101"),
            (json!({ "backgroundIntervalMS": 0 }), "backgroundIntervalMS must be 1 to 2147483647, or never, got 0"),
            (json!({ "maxPoolSize": 5, "max_pool_size": 5 }), "maxPoolSize is given more than once"),
        ];
        for (map, message) in refusals {
            assert_eq!(read(&map).unwrap_err(), message);
        }
    }
}
