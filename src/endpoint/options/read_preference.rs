//! Which servers of a replica set to read from.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::raw::cstr;
use bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, rawdoc};

use super::InvalidOption;

/// The smallest `maxStalenessSeconds` (Max Staleness specification).
const SMALLEST_MAX_STALENESS: Duration = Duration::from_secs(90);

/// Which servers to read from (Server Selection specification, "Read Preference"). The default is the primary.
///
/// A pool belongs to one server, so only a [`Client`](crate::Client) applies a read preference.
///
/// ```
/// use std::time::Duration;
/// use wharf::{Options, ReadPreference, ReadPreferenceMode};
///
/// let nearby = ReadPreference::new(ReadPreferenceMode::SecondaryPreferred)
///     .tag_set([("dc", "ny")])
///     .max_staleness(Duration::from_secs(120));
/// let options = Options::new(["localhost"])?.read_preference(nearby);
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
#[doc(alias = "SelectionCriteria")]
pub struct ReadPreference {
    /// `readPreference`. Default `primary`.
    pub mode: ReadPreferenceMode,
    /// `readPreferenceTags`: the sets of tags that a secondary may have, in order of preference.
    ///
    /// A server matches a set if it has all the tags in the set, so the empty set matches every server. By default
    /// there are no sets, and every server matches.
    pub tag_sets: Vec<BTreeMap<String, String>>,
    /// `maxStalenessSeconds`: how far a secondary may lag, at least 90 seconds. By default there is no limit.
    pub max_staleness: Option<Duration>,
    /// `hedge` (deprecated): whether a mongos of MongoDB 4.4 or later may send a read to a second server as well, and
    /// take the faster reply. By default, mongos may do so only for `nearest`. Not available in connection strings, and
    /// not allowed for `primary`.
    pub hedge: Option<bool>,
}

/// The read preference for operations that are not reads, unless they set a different read preference.
pub(crate) static PRIMARY: ReadPreference = ReadPreference::new(ReadPreferenceMode::Primary);

/// `readPreference`: whether to read from the primary or from secondaries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReadPreferenceMode {
    /// `primary`: only from the primary.
    #[default]
    Primary,
    /// `primaryPreferred`: from secondaries only if there is no primary.
    PrimaryPreferred,
    /// `secondary`: only from secondaries.
    Secondary,
    /// `secondaryPreferred`: from the primary only if there is no suitable secondary.
    SecondaryPreferred,
    /// `nearest`: from the nearest servers, primary or secondary.
    Nearest,
}

impl ReadPreferenceMode {
    pub(super) const ALL: [Self; 5] =
        [Self::Primary, Self::PrimaryPreferred, Self::Secondary, Self::SecondaryPreferred, Self::Nearest];

    /// Returns the mode's name in connection strings and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Primary => "primary",
            Self::PrimaryPreferred => "primaryPreferred",
            Self::Secondary => "secondary",
            Self::SecondaryPreferred => "secondaryPreferred",
            Self::Nearest => "nearest",
        }
    }
}

impl ReadPreference {
    /// Creates a read preference with this mode, without tags and without a limit on staleness.
    pub const fn new(mode: ReadPreferenceMode) -> Self {
        Self { mode, tag_sets: Vec::new(), max_staleness: None, hedge: None }
    }

    /// Returns whether this is the default: only the primary.
    pub(crate) fn is_default(&self) -> bool {
        let Self { mode, tag_sets, max_staleness, hedge } = self;
        *mode == ReadPreferenceMode::Primary && tag_sets.is_empty() && max_staleness.is_none() && hedge.is_none()
    }

    /// Adds a set of tags to [`tag_sets`](Self#structfield.tag_sets).
    pub fn tag_set<K: Into<String>, V: Into<String>>(mut self, tags: impl IntoIterator<Item = (K, V)>) -> Self {
        self.tag_sets.push(tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect());
        self
    }

    /// Sets [`max_staleness`](Self#structfield.max_staleness).
    pub fn max_staleness(mut self, limit: Duration) -> Self {
        self.max_staleness = Some(limit);
        self
    }

    /// Sets [`hedge`](Self#structfield.hedge).
    #[deprecated = "hedged reads are deprecated in MongoDB 8.0, and a future version of the server will not have them"]
    pub fn hedge(mut self, enabled: bool) -> Self {
        self.hedge = Some(enabled);
        self
    }

    /// Returns the value of a command's `$readPreference`.
    pub(crate) fn document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("mode"), self.mode.name());
        if !self.tag_sets.is_empty() {
            let mut sets = RawArrayBuf::new();
            for tags in &self.tag_sets {
                let tags = tags.iter().map(|(name, value)| (name.clone(), Bson::from(value.as_str())));
                // A tag name that contains a zero byte cannot be sent, and matches no server.
                sets.push(RawDocumentBuf::try_from(&tags.collect::<Document>()).unwrap_or_default());
            }
            document.append(cstr!("tags"), sets);
        }
        if let Some(limit) = self.max_staleness {
            document.append(cstr!("maxStalenessSeconds"), i64::try_from(limit.as_secs()).unwrap_or(i64::MAX));
        }
        if let Some(enabled) = self.hedge {
            document.append(cstr!("hedge"), rawdoc! { "enabled": enabled });
        }
        document
    }

    pub(crate) fn check(&self) -> Result<(), InvalidOption> {
        match self.max_staleness {
            Some(limit) if limit < SMALLEST_MAX_STALENESS => Err(InvalidOption::new(
                "maxStalenessSeconds",
                "-1 (no limit) or at least 90",
                limit.as_secs_f64().to_string(),
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn check_together(&self) -> Result<(), InvalidOption> {
        if self.mode != ReadPreferenceMode::Primary {
            return Ok(());
        }
        if self.tag_sets.iter().any(|tags| !tags.is_empty()) {
            return Err(InvalidOption::conflict("readPreferenceTags", "readPreference=primary"));
        }
        match (self.max_staleness, self.hedge) {
            (Some(_), _) => Err(InvalidOption::conflict("maxStalenessSeconds", "readPreference=primary")),
            (None, Some(_)) => Err(InvalidOption::conflict("hedge", "readPreference=primary")),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(deprecated)]
    fn hedge_is_sent_only_if_it_is_set_and_never_for_the_primary() {
        let nearest = ReadPreference::new(ReadPreferenceMode::Nearest);
        assert_eq!(nearest.document(), rawdoc! { "mode": "nearest" });
        for enabled in [true, false] {
            let hedged = nearest.clone().hedge(enabled);
            assert_eq!(hedged.document(), rawdoc! { "mode": "nearest", "hedge": { "enabled": enabled } });
            hedged.check_together().unwrap();
            let primary = ReadPreference::default().hedge(enabled);
            // This preference is not the default, so it is refused even if a primary is known.
            assert!(!primary.is_default());
            let refused = primary.check_together().unwrap_err().to_string();
            assert!(refused.contains("hedge"), "{refused}");
        }
    }
}
