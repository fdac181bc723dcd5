//! What is wrong with a file of GridFS.

use std::fmt;

/// What is wrong with a file of a GridFS bucket: [`ClientError::GridFs`](super::ClientError::GridFs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GridFsProblem {
    /// There is no such file.
    NotFound,
    /// There are files with the name, but not so many.
    #[non_exhaustive]
    NoRevision {
        /// The revision that was asked for.
        revision: i32,
    },
    /// A chunk is missing.
    #[non_exhaustive]
    MissingChunk {
        /// The chunk's number; the first one has 0.
        n: u64,
    },
    /// A chunk has another length than the file's document calls for.
    #[non_exhaustive]
    ChunkLength {
        /// The chunk's number; the first one has 0.
        n: u64,
        /// The length that it must have in bytes.
        expected: u64,
        /// Its length in bytes.
        actual: u64,
    },
    /// The file has more chunks than a chunk's number can count: 2,147,483,647.
    TooManyChunks,
    /// The upload has ended, so it takes no more bytes and cannot be aborted.
    Stored,
}

impl fmt::Display for GridFsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("does not exist"),
            Self::NoRevision { revision } => write!(f, "has no revision {revision}"),
            Self::MissingChunk { n } => write!(f, "lacks its chunk {n}"),
            Self::ChunkLength { n, expected, actual } => {
                write!(f, "has {actual} bytes in its chunk {n}, which must have {expected}")
            }
            Self::TooManyChunks => f.write_str("has too many chunks: a larger chunkSizeBytes makes fewer"),
            Self::Stored => f.write_str("is complete: its upload has ended"),
        }
    }
}
