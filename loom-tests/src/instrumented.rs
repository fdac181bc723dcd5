//! The instrumented build: the models, on a copy of the pool that contains all mutants in the catalogue.
//!
//! The models themselves run on the unchanged sources. The negative controls run on the instrumented build, and create
//! it themselves. They copy the workspace's sources, with the mutants inserted, to `instrumented` in the target
//! directory, and run cargo there with the profile and the flags of the current run. They do not rewrite unchanged
//! files, so cargo does not compile those again.
//!
//! Both builds share a target directory, so the dependencies are compiled only once. Cargo identifies packages by their
//! versions and their paths in the workspace, so the packages of the copy have another version. Otherwise, the models
//! would run with the mutants in the pool.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mutants::{catalogue, instrument};

/// The root of the workspace, from which the sources are copied.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The extensions of the files that a build reads.
const READ: [&str; 4] = ["rs", "toml", "lock", "md"];

/// Builds the test `test` with the mutants in the pool, and returns its binary.
///
/// # Errors
///
/// Returns an error that names the fragments in the catalogue that do not occur exactly once in the sources, or that
/// says why the copy does not compile.
pub fn build(test: &str) -> Result<PathBuf, String> {
    let binary = std::env::current_exe().map_err(|error| error.to_string())?;
    // The path is TARGET/PROFILE/deps/NAME.
    let [_, _, profile, target] = binary.ancestors().take(4).collect::<Vec<_>>()[..] else {
        return Err(format!("{} is not in a target directory", binary.display()));
    };
    let copy = target.join("instrumented");
    copy_sources(Path::new(ROOT), &copy)?;
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()))
        .args(["test", "--no-run", "--offline", "--message-format", "json", "--test", test])
        .args(["-p", env!("CARGO_PKG_NAME")])
        .args(cfg!(feature = "event-listener-queue").then_some("--features=event-listener-queue"))
        .arg("--profile")
        .arg(profile.file_name().filter(|name| *name != "debug").unwrap_or_else(|| "dev".as_ref()))
        .arg("--target-dir")
        .arg(target)
        .current_dir(&copy)
        .env("RUSTFLAGS", flags())
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{}\n{}", rendered(&messages), String::from_utf8_lossy(&output.stderr)));
    }
    let built = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let built = built.filter(|message| message["target"]["name"] == test);
    let binaries: Vec<String> = built.filter_map(|message| Some(message["executable"].as_str()?.to_owned())).collect();
    match &binaries[..] {
        [binary] => Ok(binary.into()),
        others => Err(format!("expected one binary for {test}, but cargo built {others:?}")),
    }
}

/// Returns the compiler errors among cargo's messages.
fn rendered(messages: &str) -> String {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let errors = messages.filter(|message| message["message"]["level"] == "error");
    errors.filter_map(|message| Some(message["message"]["rendered"].as_str()?.to_owned())).collect()
}

/// Returns the run's compiler flags. A binary that was started without cargo derives them from its own `cfg`.
fn flags() -> OsString {
    std::env::var_os("RUSTFLAGS").unwrap_or_else(|| if cfg!(loom) { "--cfg loom" } else { "--cfg shuttle" }.into())
}

/// Copies the files that a build reads, with the mutants inserted, and removes files that are no longer in `from`.
fn copy_sources(from: &Path, to: &Path) -> Result<(), String> {
    let mut files = BTreeSet::new();
    list(from, from, &mut files)?;
    let mut present = BTreeSet::new();
    fs::create_dir_all(to).map_err(|error| explain(to, &error))?;
    list(to, to, &mut present)?;
    // If a module has moved, its old file must not remain as a second definition.
    for file in present.difference(&files) {
        fs::remove_file(to.join(file)).map_err(|error| explain(&to.join(file), &error))?;
    }
    if let Some(mutant) = catalogue().find(|mutant| !files.contains(&Path::new("src").join(mutant.file))) {
        return Err(format!("mutant {} names src/{}, which does not exist", mutant.name, mutant.file));
    }
    for file in &files {
        let mut text = fs::read_to_string(from.join(file)).map_err(|error| explain(&from.join(file), &error))?;
        if let Ok(file) = file.strip_prefix("src") {
            text = instrument(file, &text)?;
        } else if file == "Cargo.toml" {
            text = with_separate_version(&text)?;
        }
        let copy = to.join(file);
        if fs::read_to_string(&copy).is_ok_and(|present| present == text) {
            continue;
        }
        fs::create_dir_all(copy.parent().expect("a file is in a folder")).map_err(|error| explain(&copy, &error))?;
        fs::write(&copy, text).map_err(|error| explain(&copy, &error))?;
    }
    Ok(())
}

/// Returns the workspace's manifest with a version that distinguishes the packages of the copy.
fn with_separate_version(manifest: &str) -> Result<String, String> {
    let version = concat!("[workspace.package]\nversion = \"", env!("CARGO_PKG_VERSION"));
    if !manifest.contains(version) {
        return Err(format!("Cargo.toml does not contain {version:?}"));
    }
    Ok(manifest.replace(version, &format!("{version}+mutants")))
}

/// Lists the files in a folder that a build may read, relative to `root`. Skips hidden folders and target directories.
fn list(root: &Path, folder: &Path, files: &mut BTreeSet<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| explain(folder, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| explain(folder, &error))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(|error| explain(folder, &error))?);
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        let is_target = path.join("CACHEDIR.TAG").exists() || entry.file_name() == "target";
        if kind.is_dir() && !is_hidden && !is_target {
            list(root, &path, files)?;
        }
        if kind.is_file() && path.extension().is_some_and(|extension| READ.iter().any(|read| extension == *read)) {
            files.insert(path.strip_prefix(root).expect("a file below the root").to_owned());
        }
    }
    Ok(())
}

fn explain(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
