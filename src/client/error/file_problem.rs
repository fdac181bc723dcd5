//! The problems that GridFS files can have.

use std::fmt;

/// A problem with a file in a GridFS bucket: [`ClientError::GridFs`](super::ClientError::GridFs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GridFsProblem {
    /// The file does not exist.
    NotFound,
    /// There are files with this name, but none with this revision.
    #[non_exhaustive]
    NoRevision {
        /// The requested revision.
        revision: i32,
    },
    /// A chunk is missing.
    #[non_exhaustive]
    MissingChunk {
        /// The chunk's number, counted from 0.
        n: u64,
    },
    /// A chunk's length does not match the file's document.
    #[non_exhaustive]
    ChunkLength {
        /// The chunk's number, counted from 0.
        n: u64,
        /// The required length in bytes.
        expected: u64,
        /// The actual length in bytes.
        actual: u64,
    },
    /// The file has too many chunks: the largest chunk number is 2,147,483,647.
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
