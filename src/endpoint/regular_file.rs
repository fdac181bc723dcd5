//! Files with certificates, keys and tokens: regular files of a bounded length.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use zeroize::Zeroizing;

/// The maximum length of a file with certificates or a key, in bytes. The certificates of the authorities that a system
/// trusts take up a few hundred kilobytes.
pub(super) const MAX_PEM: u64 = 4 * 1024 * 1024;

/// Reads a file of at most `most` bytes.
///
/// # Errors
///
/// The file system's error, or an error that says that the file is not regular or is too long.
pub(super) fn read(path: &Path, most: u64) -> io::Result<(Zeroizing<Vec<u8>>, Metadata)> {
    let file = open(path)?;
    // Query the open file, because the path may name a different file by now.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    // Allocated in full, because growing would leave behind copies that are not wiped.
    let mut bytes = Zeroizing::new(Vec::with_capacity(most as usize + 1));
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it is longer than {most} bytes")));
    }
    Ok((bytes, metadata))
}

/// Opens a file without blocking. A blocking open of a pipe would wait for a writer, which might never come.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    options.open(path)
}

/// Returns whether users other than the file's owner may write to it.
pub(super) fn is_writable_by_others(metadata: &Metadata) -> bool {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::mode(metadata) & 0o022 != 0;
    #[cfg(not(unix))]
    return {
        let _ = metadata;
        false
    };
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_length_are_read() {
        let folder = std::env::temp_dir().join(format!("wharf-regular-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("file");
        fs::write(&file, "12345").unwrap();
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let problem = |path: &Path, most| read(path, most).map(drop).unwrap_err().to_string();
        assert_eq!(&**read(&file, 5).unwrap().0, b"12345");
        assert_eq!(problem(&file, 4), "it is longer than 4 bytes");
        for other in [Path::new("/dev/zero"), &folder, &pipe] {
            assert_eq!(problem(other, 5), "it is not a regular file", "{other:?}");
        }
        for (mode, by_others) in [(0o600, false), (0o644, false), (0o620, true), (0o602, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(is_writable_by_others(&read(&file, 5).unwrap().1), by_others, "{mode:o}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
