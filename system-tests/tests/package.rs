//! What the published package contains, and where the links of its documentation lead.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::process::Command;

use wharf_system_tests::root;

/// Returns the files of the package, as cargo lists them.
fn packaged() -> BTreeSet<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["package", "--list", "--allow-dirty", "--offline", "--package", "wharf"]).current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.replace('\\', "/")).collect()
}

/// Returns the files below a folder, as paths from the root.
fn files_below(folder: &str) -> Vec<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_str().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

#[test]
fn package_contains_the_library_and_its_examples_but_no_tests() {
    let mut expected: BTreeSet<String> = [
        ".cargo_vcs_info.json",
        "ARCHITECTURE.md",
        "BENCHMARKS.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "Cargo.lock",
        "Cargo.toml",
        "Cargo.toml.orig",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
        "SECURITY.md",
        "examples/monitor/main.rs",
        "examples/monitor/monitor.rs",
        "examples/own_connections.rs",
        "examples/ping.rs",
    ]
    .map(str::to_owned)
    .into();
    expected.extend(files_below("src").into_iter().filter(|path| !path.ends_with("tests.rs")));
    let mut packaged = packaged();
    // Cargo adds this file only if the sources are in a repository.
    packaged.insert(".cargo_vcs_info.json".to_owned());
    assert_eq!(packaged, expected);
}

#[test]
fn packaged_examples_need_nothing_outside_the_package() {
    for path in packaged().iter().filter(|path| path.starts_with("examples/")) {
        assert!(!read(path).contains("wharf_testbed"), "{path} needs the testbed, which is not published");
    }
}

/// Returns the targets of all links in Markdown text, of both kinds: `[text](target)` and `[name]: target`.
fn links(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    inline.chain(definitions(text).map(|(_, target)| target)).collect()
}

fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
}

/// Returns the anchor of a heading, as common viewers generate it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_of_the_readme_and_the_guide_lead_into_the_package() {
    let packaged = packaged();
    for (path, folder) in [("README.md", ""), ("src/guide.md", "src/")] {
        for link in links(&read(path)).into_iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = match (file, file.strip_prefix("../")) {
                ("", _) => path.to_owned(),
                (_, Some(above)) => above.to_owned(),
                (_, None) => format!("{folder}{file}"),
            };
            assert!(packaged.contains(&file), "{path} links to {link}, which the package does not contain");
            let headings: Vec<_> = read(&file)
                .lines()
                .filter_map(|line| Some(line.strip_prefix('#')?.trim_start_matches('#').to_owned()))
                .collect();
            let found = heading.is_empty() || headings.iter().any(|line| anchor(line) == heading);
            assert!(found, "{path} links to {link}, but {file} has no such heading");
        }
    }
}

/// Paths in code font are not links, but they go stale the same way.
#[test]
fn files_named_by_the_readme_and_the_guide_exist() {
    for text in ["README.md", "src/guide.md"].map(read) {
        let quoted = text.split('`').skip(1).step_by(2);
        let is_path = |name: &&str| {
            ["src/", "examples/", "spec-tests/", "system-tests/", "loom-tests/", "benches/"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        let missing: Vec<_> = quoted.filter(is_path).filter(|name| !root().join(name).exists()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

/// The documentation that rustdoc generates contains no files, so the library defines these links itself.
#[test]
fn guides_links_to_files_have_other_targets_in_rustdoc() {
    let (guide, library) = (read("src/guide.md"), read("src/lib.rs"));
    let (before, _) =
        library.split_once("#[doc = include_str!(\"guide.md\")]").expect("the guide is not a module of the library");
    assert_ne!(definitions(&guide).count(), 0);
    for (name, _) in definitions(&guide) {
        assert!(before.contains(&format!("/// [{name}]: ")), "rustdoc would link {name} to a file");
    }
    let inline = guide.split("](").skip(1).any(|rest| !rest.starts_with('#'));
    assert!(!inline, "the guide is also read as a file: write items in code font, and define links to files by name");
}
