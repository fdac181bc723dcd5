//! Files with certificates, keys and tokens: regular files of a bounded length.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek};
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
    Ok((read_bytes(file, metadata.len(), most)?, metadata))
}

/// Reads a file whose length was `length`. If it has become longer, or if its length is not known in advance, as under
/// `/proc`, the file is read again with room for as much as it may contain.
fn read_bytes(mut file: impl Read + Seek, length: u64, most: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    for room in [length.min(most), most] {
        // Allocated in full, because growing would leave behind copies that are not wiped. The last byte shows whether
        // there is more. With less than 32 bytes, `read_to_end` would first read into a buffer of its own.
        let mut bytes = Zeroizing::new(Vec::with_capacity((room as usize + 1).max(64)));
        file.rewind()?;
        file.by_ref().take(room + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= room {
            return Ok(bytes);
        }
    }
    Err(io::Error::other(format!("it is longer than {most} bytes")))
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
    use std::io::Cursor;
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

    #[test]
    fn buffer_has_room_for_the_file_and_never_grows() {
        let read = |length, most| read_bytes(Cursor::new(b"12345"), length, most);
        for (length, most, room) in [(5, 100, 64), (80, 100, 81), (5, 5, 64), (0, 100, 101), (4, 100, 101)] {
            let bytes = read(length, most).unwrap();
            assert_eq!((&bytes[..], bytes.capacity()), (&b"12345"[..], room), "{length} of {most}");
        }
        for length in [0, 4, 5] {
            assert_eq!(read(length, 4).unwrap_err().to_string(), "it is longer than 4 bytes", "{length}");
        }
    }
}
