//! Extracts the needed files from an archive.

use std::fs;
use std::path::Path;

use super::artifact::{Artifact, BelowRoot};
use super::{ProvisionError, python};

/// Unpacks with Python's standard library. The archive comes from pip, so Python is there, and two crates that take four
/// seconds to compile are not needed.
const SCRIPT: &str = include_str!("unpack.py");

/// Unpacks the files that `artifact` needs from `archive` into the existing folder `target`.
pub(super) fn unpack(artifact: &Artifact, archive: &Path, target: &Path) -> Result<(), ProvisionError> {
    let contents = &artifact.contents;
    let (options, entries): (&[&str], _) = match contents.below_root {
        BelowRoot::Files(files) => (&[], files),
        BelowRoot::JsonIn(folders) => (&["--json"], folders),
    };
    let script = target.with_extension("py");
    fs::write(&script, SCRIPT).map_err(ProvisionError::io("write", &script))?;
    let unpacked = python::run(artifact, |command| {
        command.arg(&script).arg(archive).arg(target).arg(contents.root).args(options).args(entries)
    });
    fs::remove_file(&script).map_err(ProvisionError::io("remove", &script))?;
    unpacked?;
    for entry in entries {
        let path = target.join(entry);
        if !path.exists() {
            return Err(ProvisionError::MissingEntry { file: artifact.file, entry });
        }
        if path.is_file() {
            make_executable(&path)?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> Result<(), ProvisionError> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(ProvisionError::io("make executable", path))
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> Result<(), ProvisionError> {
    Ok(())
}
