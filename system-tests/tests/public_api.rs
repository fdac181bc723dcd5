//! The public API of wharf must match the listing in `public-api.txt`.
//!
//! rustdoc writes the public API as JSON. On a stable toolchain, this requires `RUSTC_BOOTSTRAP`. A wrapper script sets
//! the variable for rustdoc only: if cargo saw it, cargo would rebuild all dependencies.
#![cfg(not(any(loom, shuttle)))]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use wharf_system_tests::root;

/// The version of rustdoc's JSON format that the `public-api` crate in `Cargo.toml` reads.
const FORMAT: u64 = 57;
/// A toolchain that writes that format.
const TOOLCHAIN: &str = "Rust 1.95";
/// The path of the listing, relative to the root.
const LISTING: &str = "public-api.txt";
/// How many error types the public API may contain.
const MOST_ERRORS: usize = 20;
/// The unit test that contains a sample of each public error.
const SAMPLES: &str = "src/client/error_tests.rs";

/// Runs rustdoc on the library, and returns the path of its JSON output.
fn described() -> PathBuf {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let rustdoc = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rustdoc");
    fs::write(&rustdoc, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n").unwrap();
    fs::set_permissions(&rustdoc, fs::Permissions::from_mode(0o755)).unwrap();
    let target = rustdoc.ancestors().nth(2).unwrap();
    let output = Command::new(cargo)
        .args(["rustdoc", "--package", "wharf", "--lib", "--quiet", "--target-dir"])
        .arg(target)
        .args(["--", "-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"])
        .env("RUSTDOC", &rustdoc)
        // If the variable were set, build scripts would see a different toolchain and run again.
        .env_remove("RUSTC_BOOTSTRAP")
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.join("doc/wharf.json")
}

/// Returns the public items, one per line, without blanket and auto trait implementations.
fn surface() -> Vec<String> {
    let json = described();
    let document: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let format = document["format_version"].as_u64();
    assert_eq!(
        format,
        Some(FORMAT),
        "this toolchain's rustdoc writes JSON of another format than {FORMAT}, so the public surface cannot be compared: \
         run the test with {TOOLCHAIN}, or change the version of `public-api` in system-tests/Cargo.toml and the constants \
         of this test"
    );
    let listed =
        public_api::Builder::from_rustdoc_json(json).omit_blanket_impls(true).omit_auto_trait_impls(true).build();
    listed.unwrap().items().map(ToString::to_string).collect()
}

/// Returns the names of the public types that have this implementation.
fn implementing<'s>(surface: &'s [String], implementation: &str) -> BTreeSet<&'s str> {
    let of_type = |line: &'s String| {
        let path = line.split_once(implementation)?.1.split(['<', ' ']).next()?;
        path.rsplit("::").next()
    };
    surface.iter().filter(|line| line.starts_with("impl")).filter_map(of_type).collect()
}

/// Returns the names of the structs and enums in the public API.
fn types(surface: &[String]) -> BTreeSet<&str> {
    let name = |line: &str| {
        let path = line.trim_start_matches("#[non_exhaustive] ");
        let path = path.strip_prefix("pub struct ").or_else(|| path.strip_prefix("pub enum "))?.to_owned();
        let path = path.split(['<', '(', ' ']).next()?.to_owned();
        line.match_indices(&path).next().map(|(start, _)| start..start + path.len())
    };
    let names = surface.iter().filter_map(|line| name(line).map(|range| &line[range]));
    names.filter_map(|path| path.rsplit("::").next()).collect()
}

#[test]
#[ignore = "builds the documentation, which takes half a minute; `.ci/run` runs it"]
fn public_surface_is_as_listed() {
    let surface = surface();
    let text = surface.join("\n") + "\n";
    let path = root().join(LISTING);
    if env::var_os("UPDATE_PUBLIC_API").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let listed = fs::read_to_string(&path).unwrap_or_default();
    if listed != text {
        let (listed, present): (BTreeSet<_>, BTreeSet<_>) = (listed.lines().collect(), text.lines().collect());
        let removed: String = listed.difference(&present).map(|line| format!("- {line}\n")).collect();
        let added: String = present.difference(&listed).map(|line| format!("+ {line}\n")).collect();
        panic!(
            "the public surface is not as {LISTING} has it:\n{removed}{added}If that is meant, run the test again with \
             UPDATE_PUBLIC_API=1 and commit the listing"
        );
    }

    let shown = implementing(&surface, "core::fmt::Debug for ");
    let types = types(&surface);
    assert!(types.contains("Pool") && types.contains("CheckOutError"), "{types:?}");
    assert_eq!(types.difference(&shown).collect::<Vec<_>>(), Vec::<&&str>::new(), "these types have no Debug");

    let samples = fs::read_to_string(root().join(SAMPLES)).unwrap();
    let sampled = |error: &&str| samples.contains(&format!("\n        {error} =>"));
    let errors = implementing(&surface, "core::error::Error for ");
    assert!(errors.contains("CheckOutError") && errors.contains("SessionError"), "{errors:?}");
    assert!(errors.len() <= MOST_ERRORS, "{} public error types: {errors:?}", errors.len());
    let forgotten: Vec<_> = errors.iter().filter(|error| !sampled(error)).collect();
    assert!(forgotten.is_empty(), "{SAMPLES} has no sample of {forgotten:?}");
}
