//! Temporary folders.

use std::fs::{self, DirBuilder};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder that is removed on drop. Other users cannot read it, and its path is short enough for a Unix domain socket. A
/// killed process leaves its folders behind.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates a folder whose name states its purpose.
    ///
    /// # Errors
    ///
    /// Returns the file system's error.
    pub fn create(purpose: &str) -> io::Result<Self> {
        // ORD: Relaxed; the number only has to be unique, and publishes nothing.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("wharf-{purpose}-{}-{number}", process::id()));
            #[cfg_attr(not(unix), expect(unused_mut, reason = "only unix has a mode to set"))]
            let mut builder = DirBuilder::new();
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            match builder.create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created.map(|()| Self { path }),
            }
        }
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A test that is unwinding has a more important error to report.
        let _ = fs::remove_dir_all(&self.path);
    }
}
