//! Runs the pool's benchmark on 1, 2, 4 … all cores of this machine, from a binary that does not depend on the machine.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use serde_json::Value;

use crate::Failure;
use crate::arguments::Cores;

/// The repository whose programs are built.
pub const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The file that the benchmark writes to its target directory.
const RESULT: &str = "bench-cores.json";

/// Builds the benchmark, and then runs its `cores` series or copies the binary to the file that the command line names.
pub fn run(arguments: &Cores) -> Result<(), Failure> {
    let target = fs::canonicalize(REPOSITORY)?.join("target/static");
    let benchmark = build(arguments, &target)?;
    if let Some(file) = &arguments.build_only {
        fs::copy(&benchmark, file).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        println!("On the other machine: WHARF_BENCH_SECONDS=240 CARGO_TARGET_DIR=. {} --bench cores", file.display());
        return Ok(());
    }
    let status = Command::new(&benchmark)
        .args(["--bench", "cores"])
        .env("WHARF_BENCH_SECONDS", arguments.seconds.as_secs_f64().to_string())
        .env("CARGO_TARGET_DIR", &target)
        .status()?;
    succeeded("the benchmark", status)?;
    if let Some(file) = &arguments.json {
        fs::copy(target.join(RESULT), file).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    Ok(())
}

/// Builds the benchmark and returns its path. On Linux, it is linked statically.
fn build(arguments: &Cores, target: &Path) -> Result<PathBuf, Failure> {
    let mut options = vec!["bench", "--package", "wharf-benches", "--bench", "pool", "--no-run"];
    if arguments.event_listener_queue {
        options.extend(["--features", "event-listener-queue"]);
    }
    let flags = if cfg!(target_os = "linux") { "-C target-feature=+crt-static" } else { "" };
    built(&options, flags, target)
}

/// Builds one of the repository's executables for this machine's target, and returns its path.
pub fn built(options: &[&str], flags: &str, target: &Path) -> Result<PathBuf, Failure> {
    let mut cargo = Command::new(tool("CARGO", "cargo"));
    cargo.args(options).args(["--message-format", "json"]);
    // With an explicit target, the flags apply only to the executable, not to build scripts or macros.
    cargo.args(["--target", &host()?, "--target-dir"]).arg(target);
    if !flags.is_empty() {
        cargo.env("RUSTFLAGS", flags);
    }
    let built = cargo
        .current_dir(REPOSITORY)
        .env("CARGO_PROFILE_BENCH_STRIP", "symbols")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    succeeded("the build", built.status)?;
    executable(&String::from_utf8_lossy(&built.stdout)).ok_or_else(|| "cargo names no executable".into())
}

/// Returns rustc's name for the target of this machine.
fn host() -> Result<String, Failure> {
    let version = Command::new(tool("RUSTC", "rustc"))
        .arg("-vV")
        .output()
        .map_err(|error| format!("cannot start rustc: {error}"))?;
    let text = String::from_utf8_lossy(&version.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc -vV names no host")?.to_owned())
}

/// Returns the tool named by an environment variable that cargo sets, or the usual tool if the variable is unset.
fn tool(variable: &str, usual: &str) -> OsString {
    std::env::var_os(variable).unwrap_or_else(|| usual.into())
}

/// Returns the executable that cargo's messages name, one JSON object per line.
fn executable(messages: &str) -> Option<PathBuf> {
    let parsed = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    parsed.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

pub fn succeeded(what: &str, status: ExitStatus) -> Result<(), Failure> {
    if status.success() { Ok(()) } else { Err(format!("{what} failed: {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_the_one_that_cargo_names() {
        let messages = r#"{"reason":"compiler-artifact","executable":null}
            {"reason":"compiler-artifact","executable":"/target/deps/pool-1"}
            {"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some(PathBuf::from("/target/deps/pool-1")));
        assert_eq!(executable("no JSON\n{}"), None);
    }

    #[test]
    fn host_is_a_target() {
        let host = host().unwrap();
        assert!(host.starts_with(std::env::consts::ARCH), "{host}");
    }
}
