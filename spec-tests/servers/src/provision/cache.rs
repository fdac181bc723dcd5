//! The cache folder: downloaded archives, unpacked folders, and the lock that ensures that each is created only once.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::ProvisionError;
use super::artifact::Artifact;
use super::unpack::unpack;

/// Downloads an artifact's file into a folder. It is a parameter so that tests can count downloads and corrupt them.
pub(super) type Download<'a> = &'a dyn Fn(&Artifact, &Path) -> Result<(), ProvisionError>;

const LOCK: &str = "lock";
const DOWNLOADS: &str = "downloads";
/// The folder for files in preparation, which are moved to their destination when they are complete. The next process
/// deletes the leftovers of a killed process.
const STAGING: &str = "staging";
/// The list of all files in an unpacked folder with their sizes, one `size path` per line.
const MANIFEST: &str = ".manifest";

pub(super) struct Cache<'a> {
    root: PathBuf,
    download: Download<'a>,
}

impl<'a> Cache<'a> {
    pub(super) fn new(root: PathBuf, download: Download<'a>) -> Cache<'a> {
        Cache { root, download }
    }

    /// Returns the folder with the artifact's files. Creates it if it is absent or damaged.
    pub(super) fn provide(&self, artifact: &Artifact) -> Result<PathBuf, ProvisionError> {
        let folder = self.root.join(artifact.folder_name());
        // A folder appears only once it is complete, so using an intact folder takes no lock.
        if is_sound(&folder) {
            return Ok(folder);
        }
        fs::create_dir_all(&self.root).map_err(ProvisionError::io("create", &self.root))?;
        let lock = Lock::acquire(&self.root.join(LOCK))?;
        // The previous holder of the lock may have created the folder.
        if !is_sound(&folder) {
            self.install(artifact, &folder, &lock)?;
        }
        Ok(folder)
    }

    fn install(&self, artifact: &Artifact, folder: &Path, lock: &Lock) -> Result<(), ProvisionError> {
        let archive = self.archive(artifact, lock)?;
        let staging = self.empty_staging(lock)?;
        unpack(artifact, &archive, &staging)?;
        write_manifest(&staging)?;
        remove(folder)?;
        rename(&staging, folder)
    }

    /// Returns the artifact's archive with the pinned sha256. Downloads it if the kept archive is absent or differs.
    fn archive(&self, artifact: &Artifact, lock: &Lock) -> Result<PathBuf, ProvisionError> {
        let downloads = self.root.join(DOWNLOADS);
        let archive = downloads.join(artifact.file);
        if archive.is_file() && sha256(&archive)? == artifact.sha256 {
            return Ok(archive);
        }
        let staging = self.empty_staging(lock)?;
        (self.download)(artifact, &staging)?;
        let fresh = staging.join(artifact.file);
        if !fresh.is_file() {
            let found = fs::read_dir(&staging).map_err(ProvisionError::io("list", &staging))?;
            let found = found.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
            return Err(ProvisionError::OtherFile { file: artifact.file, found });
        }
        let actual = sha256(&fresh)?;
        if actual != artifact.sha256 {
            remove(&staging)?;
            return Err(ProvisionError::Checksum { file: artifact.file, expected: artifact.sha256, actual });
        }
        fs::create_dir_all(&downloads).map_err(ProvisionError::io("create", &downloads))?;
        remove(&archive)?;
        rename(&fresh, &archive)?;
        Ok(archive)
    }

    /// Empties the staging folder and returns it. One folder is enough, because only the holder of the lock uses it.
    fn empty_staging(&self, _held: &Lock) -> Result<PathBuf, ProvisionError> {
        let staging = self.root.join(STAGING);
        remove(&staging)?;
        fs::create_dir_all(&staging).map_err(ProvisionError::io("create", &staging))?;
        Ok(staging)
    }
}

/// The right to change the cache folder, which only one thread of one process has at a time.
#[must_use]
struct Lock(File);

impl Lock {
    fn acquire(path: &Path) -> Result<Lock, ProvisionError> {
        // Each call opens its own handle, so the lock also excludes other threads of this process.
        let file = File::create(path).map_err(ProvisionError::io("create", path))?;
        file.lock().map_err(ProvisionError::io("lock", path))?;
        Ok(Lock(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Unlocks explicitly: a child that another thread is starting holds a copy of the handle for a moment. If this
        // fails, closing the handle unlocks the file.
        let _ = self.0.unlock();
    }
}

/// Returns whether every file in the folder's manifest is present with its full size.
fn is_sound(folder: &Path) -> bool {
    let Ok(manifest) = fs::read_to_string(folder.join(MANIFEST)) else { return false };
    !manifest.is_empty()
        && manifest.lines().all(|line| {
            let Some((size, path)) = line.split_once(' ') else { return false };
            fs::metadata(folder.join(path)).is_ok_and(|metadata| size.parse() == Ok(metadata.len()))
        })
}

fn write_manifest(folder: &Path) -> Result<(), ProvisionError> {
    let mut manifest = String::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(current) = pending.pop() {
        let list = || ProvisionError::io("list", &current);
        for entry in fs::read_dir(&current).map_err(list())? {
            let entry = entry.map_err(list())?;
            let metadata = entry.metadata().map_err(list())?;
            if metadata.is_dir() {
                pending.push(entry.path());
                continue;
            }
            let path = entry.path();
            let relative = path.strip_prefix(folder).expect("BUG: a listed path is not below the folder");
            writeln!(manifest, "{} {}", metadata.len(), relative.display()).expect("writing to a string cannot fail");
        }
    }
    let path = folder.join(MANIFEST);
    fs::write(&path, manifest).map_err(ProvisionError::io("write", &path))
}

fn sha256(path: &Path) -> Result<String, ProvisionError> {
    let read = || ProvisionError::io("read", path);
    let mut file = File::open(path).map_err(read())?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer).map_err(read())? {
            0 => return Ok(hexadecimal(&digest.finalize())),
            length => digest.update(&buffer[..length]),
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Removes a file or a folder, if it exists.
fn remove(path: &Path) -> Result<(), ProvisionError> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(ProvisionError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), ProvisionError> {
    fs::rename(from, to).map_err(ProvisionError::io("move into place", to))
}
