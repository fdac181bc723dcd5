//! What the package for a registry carries, and where the links of its documentation lead.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::process::Command;

use wharf_system_tests::root;

/// The files of the package, as cargo lists them.
fn packaged() -> BTreeSet<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["package", "--list", "--allow-dirty", "--offline", "--package", "wharf"]).current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.replace('\\', "/")).collect()
}

/// The files below a folder, as paths from the root.
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
fn the_package_carries_the_library_its_examples_and_no_tests() {
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
    // Only where the sources are in a repository.
    packaged.insert(".cargo_vcs_info.json".to_owned());
    assert_eq!(packaged, expected);
}

#[test]
fn the_packages_examples_need_nothing_that_is_not_in_it() {
    for path in packaged().iter().filter(|path| path.starts_with("examples/")) {
        assert!(!read(path).contains("wharf_testbed"), "{path} needs the testbed, which is not published");
    }
}

/// The targets of the links in a text of Markdown, of both kinds: `[text](target)` and `[name]: target`.
fn links(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    inline.chain(definitions(text).map(|(_, target)| target)).collect()
}

fn definitions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
}

/// The anchor of a heading, as the usual viewers make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn the_links_of_the_readme_and_the_guide_lead_to_files_and_headings_of_the_package() {
    let packaged = packaged();
    for (path, folder) in [("README.md", ""), ("src/guide.md", "src/")] {
        for link in links(&read(path)).into_iter().filter(|link| !link.contains("://")) {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let file = match (file, file.strip_prefix("../")) {
                ("", _) => path.to_owned(),
                (_, Some(above)) => above.to_owned(),
                (_, None) => format!("{folder}{file}"),
            };
            assert!(packaged.contains(&file), "{path} links to {link}, which is not in the package");
            let headings: Vec<_> = read(&file)
                .lines()
                .filter_map(|line| Some(line.strip_prefix('#')?.trim_start_matches('#').to_owned()))
                .collect();
            let found = heading.is_empty() || headings.iter().any(|line| anchor(line) == heading);
            assert!(found, "{path} links to {link}, which is no heading of {file}");
        }
    }
}

/// Paths in code font are no links, but they go stale as links do.
#[test]
fn the_files_that_the_readme_and_the_guide_name_exist() {
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

/// In the documentation that rustdoc makes there are no files, so the library defines these links itself.
#[test]
fn the_guides_links_to_files_have_other_targets_in_rustdoc() {
    let (guide, library) = (read("src/guide.md"), read("src/lib.rs"));
    let (before, _) = library.split_once("#[doc = include_str!(\"guide.md\")]").expect("the guide is a module");
    assert_ne!(definitions(&guide).count(), 0);
    for (name, _) in definitions(&guide) {
        assert!(before.contains(&format!("/// [{name}]: ")), "rustdoc would link {name} to a file");
    }
    let inline = guide.split("](").skip(1).any(|rest| !rest.starts_with('#'));
    assert!(!inline, "the guide is also read as a file: name items in code font, and give links to files a definition");
}
