//! Files that hold a token.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;
use zeroize::Zeroizing;

use crate::options::Secret;
use crate::runtime::blocking;

/// The longest token that a file may hold, in bytes.
const MAX_TOKEN: u64 = 64 * 1024;

/// A token could not be read from its file.
#[derive(Debug, Error)]
#[error("the token file {} cannot be used: {source}", path.display())]
pub(super) struct TokenFileError {
    path: PathBuf,
    source: io::Error,
}

/// Reads the token in a file, without the surrounding white space. Tokens contain none.
///
/// # Cancel safety
///
/// Dropping the future loses nothing. The read may continue for a while in the background.
pub(super) async fn read(path: OsString) -> Result<Secret, TokenFileError> {
    let path = PathBuf::from(path);
    let reading = path.clone();
    let read = blocking(move || read_blocking(&reading)).await.map_err(io::Error::other);
    read.and_then(|token| token).map_err(|source| TokenFileError { path, source })
}

fn read_blocking(path: &Path) -> io::Result<Secret> {
    // Opening a pipe waits for a writer, which may never come.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    // With capacity for all of it, because growing would leave copies behind that are not wiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_TOKEN as usize + 1));
    File::open(path)?.take(MAX_TOKEN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_TOKEN {
        return Err(io::Error::other(format!("it is longer than {MAX_TOKEN} bytes")));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| io::Error::other("it is not UTF-8"))?;
    match text.trim_ascii() {
        "" => Err(io::Error::other("it is empty")),
        token => Ok(Secret::new(token)),
    }
}
