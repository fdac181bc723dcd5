//! The compressors that a client and a server can agree on.

use super::InvalidOption;

/// A compressor of messages (OP_COMPRESSED specification).
///
/// ```
/// use wharf::{Compressor, Options};
///
/// let options = Options::new(["localhost"])?.compressors([Compressor::Zstd, Compressor::Zlib { level: 6 }]);
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compressor {
    /// `snappy`.
    Snappy,
    /// `zlib`.
    Zlib {
        /// `zlibCompressionLevel`: -1 (zlib's own default) to 9.
        level: i32,
    },
    /// `zstd`, at its default level.
    Zstd,
}

/// zlib's own default level.
pub(super) const DEFAULT_ZLIB_LEVEL: i32 = -1;

impl Compressor {
    /// Returns the compressor's name in connection strings and in the handshake.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Snappy => "snappy",
            Self::Zlib { .. } => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// Returns the compressor with that name, at its default level.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "snappy" => Some(Self::Snappy),
            "zlib" => Some(Self::Zlib { level: DEFAULT_ZLIB_LEVEL }),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns whether this build includes the compressor. Each compressor has a feature of the same name. All of these
    /// features are on by default, except `zstd`.
    #[must_use]
    pub fn is_supported(self) -> bool {
        match self {
            Self::Snappy => cfg!(feature = "snappy"),
            Self::Zlib { .. } => cfg!(feature = "zlib"),
            Self::Zstd => cfg!(feature = "zstd"),
        }
    }

    /// Returns a list of the compressors in this build, as text that follows "must be".
    pub(super) fn available() -> String {
        let all = [Self::Snappy, Self::Zlib { level: DEFAULT_ZLIB_LEVEL }, Self::Zstd];
        let (built, left_out): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.is_supported());
        let names = |of: Vec<Self>| of.into_iter().map(Self::name).collect::<Vec<_>>().join(", ");
        match (built.is_empty(), left_out.is_empty()) {
            (true, _) => "left out, because this build of wharf has no compressor".to_owned(),
            (false, true) => format!("one of {}", names(built)),
            (false, false) => format!("one of {} ({} with the feature of that name)", names(built), names(left_out)),
        }
    }

    pub(super) fn check(self) -> Result<(), InvalidOption> {
        match self {
            Self::Zlib { level } if !(-1..=9).contains(&level) => {
                Err(InvalidOption::new("zlibCompressionLevel", "-1 (zlib's default) to 9", level.to_string()))
            }
            _ if !self.is_supported() => Err(InvalidOption::new("compressors", Self::available(), self.name())),
            _ => Ok(()),
        }
    }
}
