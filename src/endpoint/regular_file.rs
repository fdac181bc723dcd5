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
/// The file system's error, or an error that says that the file is not regular, is too long, or has grown meanwhile.
pub(super) fn read(path: &Path, most: u64) -> io::Result<(Zeroizing<Vec<u8>>, Metadata)> {
    let file = open(path)?;
    // Query the open file, because the path may name a different file by now.
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok((read_bytes(file, metadata.len(), most)?, metadata))
}

/// Reads a file that says that it has `length` bytes. Files that the kernel makes up say 0.
fn read_bytes(file: impl Read, length: u64, most: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let expected = if length == 0 { most } else { length.min(most) };
    // Allocated in full, because growing would leave behind copies that are not wiped. The last byte shows whether the file
    // has more.
    let mut bytes = Zeroizing::new(Vec::with_capacity(expected as usize + 1));
    file.take(expected + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 <= expected {
        return Ok(bytes);
    }
    Err(io::Error::other(match expected == most {
        true => format!("it is longer than {most} bytes"),
        false => "it has grown while it was read".to_owned(),
    }))
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

    #[test]
    fn buffer_has_room_for_the_file_and_never_grows() {
        let read = |length, most| read_bytes(&b"12345"[..], length, most).map_err(|error| error.to_string());
        for (length, most, room) in [(5, 100, 6), (8, 100, 9), (0, 100, 101), (5, 5, 6)] {
            let bytes = read(length, most).unwrap();
            assert_eq!((&bytes[..], bytes.capacity()), (&b"12345"[..], room), "{length} of {most}");
        }
        assert_eq!(read(4, 100).unwrap_err(), "it has grown while it was read");
        for length in [0, 4, 5] {
            assert_eq!(read(length, 4).unwrap_err(), "it is longer than 4 bytes", "{length}");
        }
    }
}
