//! Serializes the options of a pool for serde.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{BackgroundInterval, PoolOptions};

/// A map with the option names of connection strings, and `backgroundIntervalMS` (`null` means never). Times are in
/// milliseconds.
impl Serialize for PoolOptions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Self::TABLE.len() + 2))?;
        for (name, number) in self.numbers() {
            map.serialize_entry(name, &number)?;
        }
        map.serialize_entry("loadBalanced", &self.load_balanced)?;
        map.end()
    }
}

impl PoolOptions {
    /// Returns the options that are numbers, each with its name.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = (&'static str, Option<u64>)> {
        let interval = match self.background_interval {
            BackgroundInterval::Every(interval) => Some(u64::try_from(interval.as_millis()).unwrap_or(u64::MAX)),
            BackgroundInterval::Never => None,
        };
        let of_table = Self::TABLE.iter().map(|option| (option.name, Some((option.value)(self))));
        of_table.chain([("backgroundIntervalMS", interval)])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    #[test]
    fn pool_options_have_their_names_in_connection_strings() {
        let options = PoolOptions::default().max_idle_time(Duration::from_secs(3)).load_balanced(true);
        let expected = json!({
            "maxIdleTimeMS": 3_000, "minPoolSize": 0, "maxPoolSize": 100, "maxConnecting": 2, "waitQueueTimeoutMS": 0,
            "loadBalanced": true, "backgroundIntervalMS": 10_000
        });
        assert_eq!(serde_json::to_value(options).unwrap(), expected);
    }
}
