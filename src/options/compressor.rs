//! The compressors that the two ends of a connection may agree on.

/// A compressor of messages (OP_COMPRESSED specification).
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

impl Compressor {
    /// The compressor's name in connection strings and in the handshake.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Snappy => "snappy",
            Self::Zlib { .. } => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// Whether this build has the compressor: each is a feature of its own, named like it, and all are default features.
    #[must_use]
    pub fn is_supported(self) -> bool {
        match self {
            Self::Snappy => cfg!(feature = "snappy"),
            Self::Zlib { .. } => cfg!(feature = "zlib"),
            Self::Zstd => cfg!(feature = "zstd"),
        }
    }
}
