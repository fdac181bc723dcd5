//! The temporary folder of one server.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// The prefix of every folder's name.
const PREFIX: &str = "wharf-testbed-mongod-";
/// The lock file, which the folder's owner keeps locked.
const OWNER: &str = "owner";
const DATA: &str = "data";

/// A folder for a server's data and log, removed on drop.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    /// Kept open, because closing the file would release its lock.
    _owner: File,
}

impl Scratch {
    /// Creates a folder, and removes the folders of dead processes.
    pub(super) fn create() -> io::Result<Scratch> {
        remove_abandoned(&std::env::temp_dir());
        loop {
            let path = std::env::temp_dir().join(unique_name());
            match private_folder(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            }
            if let Some(owner) = own(&path)? {
                let scratch = Scratch { path, _owner: owner };
                fs::create_dir(scratch.data())?;
                return Ok(scratch);
            }
        }
    }

    /// Returns the folder for the server's data.
    pub(super) fn data(&self) -> PathBuf {
        self.path.join(DATA)
    }

    /// Returns the file for the server's output.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("mongod.log")
    }

    /// Reads the log so far. Replaces a character that has not been written completely.
    pub(super) fn read_log(&self) -> io::Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log())?).into_owned())
    }

    /// Writes a key file. The server refuses a file that other users can read.
    pub(super) fn write_key(&self, key: &str) -> io::Result<PathBuf> {
        let path = self.path.join("key");
        fs::write(&path, key)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        }
        Ok(path)
    }

    /// Removes the folder. A later drop does nothing.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The next start removes whatever is left.
        let _ = self.remove();
    }
}

/// Locks a new folder's lock file. Returns `None` if another process has mistaken the folder for an abandoned one and
/// removed it.
fn own(path: &Path) -> io::Result<Option<File>> {
    let lock = path.join(OWNER);
    let owner = match File::create_new(&lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        created => created?,
    };
    owner.lock()?;
    Ok(lock.exists().then_some(owner))
}

/// Removes the folders whose owners are dead. The lock of such a folder can be taken.
///
/// Leaves a folder without a lock file alone, because its owner may be about to create the file. Ignores errors: other
/// users' folders cannot be opened, and if several processes find the same folder, only one of them removes it.
fn remove_abandoned(temporary: &Path) {
    // On other systems, a server may outlive its owner and still use the folder.
    if !cfg!(target_os = "linux") {
        return;
    }
    let Ok(entries) = fs::read_dir(temporary) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // Opens the file for writing without creating it; the folder's owner has the same file open.
        let Ok(owner) = File::options().write(true).open(entry.path().join(OWNER)) else { continue };
        match owner.try_lock() {
            // Removes the lock file last: if a server that is being killed is still writing, the next start retries.
            Ok(()) => {
                let data = entry.path().join(DATA);
                if !data.exists() || fs::remove_dir_all(data).is_ok() {
                    let _ = fs::remove_dir_all(entry.path());
                }
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

fn unique_name() -> String {
    // ORD: Relaxed; the number only has to be unique, and publishes nothing.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{PREFIX}{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn private_folder(path: &Path) -> io::Result<()> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "only unix has a mode to set"))]
    let mut builder = DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
