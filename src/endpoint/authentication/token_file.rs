//! Files that hold a token.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::endpoint::options::Secret;
use crate::endpoint::regular_file;
use crate::pool::runtime::blocking;

/// The longest token that a file may hold, in bytes.
const MAX_TOKEN: u64 = 64 * 1024;

/// A token could not be read from its file.
#[derive(Debug, Error)]
#[error("the token file {} cannot be used: {source}", path.display())]
pub(super) struct TokenFileError {
    path: PathBuf,
    source: io::Error,
}

/// Reads the token in a file, and trims white space around it. Tokens contain no white space.
///
/// # Cancel safety
///
/// Nothing is lost. The read may continue for a while in the background.
pub(super) async fn read(path: OsString) -> Result<Secret, TokenFileError> {
    let path = PathBuf::from(path);
    let reading = path.clone();
    let read = blocking(move || read_blocking(&reading)).await.map_err(io::Error::other);
    read.and_then(|token| token).map_err(|source| TokenFileError { path, source })
}

fn read_blocking(path: &Path) -> io::Result<Secret> {
    let (bytes, _) = regular_file::read(path, MAX_TOKEN)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| io::Error::other("it is not UTF-8"))?;
    match text.trim_ascii() {
        "" => Err(io::Error::other("it is empty")),
        token => Ok(Secret::new(token)),
    }
}
