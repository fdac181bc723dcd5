//! The contents of the published package, its requirements, and the targets of the links in its documentation.
#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::process::Command;

use serde_json::Value;
use wharf_system_tests::root;

/// Returns cargo's output.
fn cargo(arguments: &[&str]) -> String {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the files of the package, as cargo lists them.
fn packaged() -> BTreeSet<String> {
    let list = cargo(&["package", "--list", "--allow-dirty", "--offline", "--package", "wharf"]);
    list.lines().map(|line| line.replace('\\', "/")).collect()
}

/// Returns a version's numbers. The text may omit the last number.
fn version(text: &str) -> [u32; 3] {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap());
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

/// The packages are resolved for this platform, with all features. Packages that declare no minimum version are left
/// out.
#[test]
fn locked_dependencies_build_with_the_minimum_rust_version() {
    let host = cargo(&["-vV"]).lines().find_map(|line| line.strip_prefix("host: ").map(str::to_owned)).unwrap();
    let text = cargo(&["metadata", "--format-version", "1", "--locked", "--all-features", "--filter-platform", &host]);
    let metadata: Value = serde_json::from_str(&text).unwrap();
    let list = |value: &'_ Value| value.as_array().unwrap().clone();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (package["id"].to_string(), package)).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (node["id"].to_string(), node)).collect();
    let (wharf, package) = packages.iter().find(|(_, package)| package["name"] == "wharf").unwrap();
    let minimum = version(package["rust_version"].as_str().unwrap());

    let (mut found, mut next) = (BTreeSet::new(), vec![wharf.clone()]);
    while let Some(id) = next.pop() {
        // Test dependencies have the kind "dev".
        let needed = |of: &Value| list(&of["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev");
        if found.insert(id.clone()) {
            next.extend(list(&nodes[&id]["deps"]).iter().filter(|of| needed(of)).map(|of| of["pkg"].to_string()));
        }
    }
    let names: Vec<_> = found.iter().map(|id| packages[id]["name"].as_str().unwrap()).collect();
    for name in ["opentelemetry", "metrics", "serde", "hickory-resolver"] {
        assert!(names.contains(&name), "{name} is not among the dependencies: {names:?}");
    }
    for id in found {
        let package = &packages[&id];
        let needs = package["rust_version"].as_str().map(version);
        assert!(needs <= Some(minimum), "{} {} needs Rust {needs:?}", package["name"], package["version"]);
    }
}

#[test]
fn published_documentation_has_all_features_but_those_without_items_for_users() {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps"])).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let wharf = packages.iter().find(|package| package["name"] == "wharf").unwrap();
    let names = |list: &Value| list.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    let all: BTreeSet<String> = wharf["features"].as_object().unwrap().keys().cloned().collect();
    let on_by_default: BTreeSet<String> = names(&wharf["features"]["default"]);
    assert!(!on_by_default.contains("unstable"));
    let mut shown: BTreeSet<String> = names(&wharf["metadata"]["docs"]["rs"]["features"]);
    shown.extend(on_by_default);
    shown.extend(["default", "event-listener-queue", "unstable"].map(str::to_owned));
    assert_eq!(shown, all);
}

/// Returns the files below a folder, as paths relative to the root.
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
        "docs/compare.md",
        "docs/from-mongodb.md",
        "docs/from-other-pools.md",
        "docs/how-it-became-fast.md",
        "docs/pictures/dashboard.svg",
        "docs/pictures/pools.svg",
        "docs/stability.md",
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

/// Returns the guide's pages: the list of its chapters, and the chapters.
fn guide() -> Vec<String> {
    let chapters = files_below("src/guide").into_iter().filter(|path| path.ends_with(".md"));
    ["src/guide.md".to_owned()].into_iter().chain(chapters).collect()
}

/// Returns the path, relative to the root, of a file that a page links to.
fn resolved(page: &str, link: &str) -> String {
    let mut folders: Vec<&str> = page.split('/').collect();
    folders.pop();
    for part in link.split('/') {
        match part {
            ".." => _ = folders.pop().expect("a link leads out of the repository"),
            name => folders.push(name),
        }
    }
    folders.join("/")
}

/// Calls `check` with each file to which the page links, and fails if a heading does not exist.
fn check_links(page: &str, check: impl Fn(&str) -> bool) {
    for link in links(&read(page)).into_iter().filter(|link| !link.contains("://")) {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        let file = if file.is_empty() { page.to_owned() } else { resolved(page, file) };
        assert!(check(&file), "{page} links to {link}, which is not there");
        let is_heading =
            |line: &str| line.strip_prefix('#').is_some_and(|line| anchor(line.trim_start_matches('#')) == heading);
        let found = heading.is_empty() || read(&file).lines().any(is_heading);
        assert!(found, "{page} links to {link}, but {file} has no such heading");
    }
}

#[test]
fn links_of_the_pages_for_users_lead_into_the_package() {
    let packaged = packaged();
    let docs = files_below("docs").into_iter().filter(|path| path.ends_with(".md"));
    for page in ["README.md".to_owned()].into_iter().chain(docs).chain(guide()) {
        check_links(&page, |file| packaged.contains(file));
    }
}

#[test]
fn links_of_the_pages_for_contributors_lead_to_files() {
    for page in ["ARCHITECTURE.md", "BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "perf/README.md"]
    {
        check_links(page, |file| root().join(file).exists());
    }
}

/// Paths in code font are not links, but they become outdated in the same way.
#[test]
fn files_named_by_the_readme_and_the_guide_exist() {
    for text in guide().iter().map(String::as_str).chain(["README.md"]).map(read) {
        let quoted = text.split('`').skip(1).step_by(2);
        let is_path = |name: &&str| {
            ["src/", "docs/", "examples/", "spec-tests/", "system-tests/", "loom-tests/", "benches/"]
                .iter()
                .any(|start| name.starts_with(start))
        };
        let missing: Vec<_> = quoted.filter(is_path).filter(|name| !root().join(name).exists()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

/// The right-hand columns of the tables name items of the library.
#[test]
fn names_in_the_pages_for_newcomers_exist() {
    let sources: String =
        files_below("src").iter().filter(|path| path.ends_with(".rs")).map(|path| read(path)).collect();
    for page in ["docs/from-mongodb.md", "docs/from-other-pools.md"].map(read) {
        let ours = page.lines().filter(|line| line.starts_with("| ")).filter_map(|row| row.split(" | ").nth(1));
        let names = ours.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let methods = names.filter_map(|name| {
            let (of, method) = name.split('(').next()?.split_once("::")?;
            ["Pool", "PoolBuilder", "PoolOptions", "Connection", "Establish", "Client", "Options"]
                .contains(&of)
                .then_some(method)
        });
        let mut checked = 0;
        for method in methods {
            let exists = ["fn ", "pub ", " "].iter().any(|before| {
                ["(", "<", ":"].iter().any(|after| sources.contains(&format!("{before}{method}{after}")))
            });
            assert!(exists, "there is no {method}");
            checked += 1;
        }
        assert!(checked >= 5, "{checked} methods");
    }
}

/// The option tables name the items that set them in code.
#[test]
fn names_of_options_in_code_are_public() {
    let (guide, public) = (read("src/guide/options.md"), read("public-api.txt"));
    let (tables, _) = guide.split_once("## From files and environment variables").unwrap();
    let names = tables.lines().filter(|row| row.starts_with("| `")).map(|row| row.split('`').nth(3).unwrap());
    let names: Vec<_> = names.collect();
    assert_eq!(names.len(), 50);
    for name in names {
        let ends = ["(", "<", ":", "\n"].map(|end| format!("wharf::{name}{end}"));
        assert!(ends.iter().any(|item| public.contains(item)), "{name} is not public");
    }
}

/// The documentation from rustdoc contains no files, so the library defines these links itself.
#[test]
fn guides_links_to_files_have_other_targets_in_rustdoc() {
    let (links, module) = (read("src/guide/links.txt"), read("src/guide.rs"));
    let includes: Vec<_> = module.lines().filter(|line| line.contains("doc = include_str!(")).collect();
    assert!(includes.iter().step_by(2).take(2).all(|line| line.contains("guide/links.txt")), "{includes:?}");
    let names: BTreeSet<_> = definitions(&links).map(|(name, _)| name).collect();
    for page in guide() {
        let text = read(&page);
        for (name, _) in definitions(&text) {
            assert!(names.contains(name), "rustdoc would link {name} in {page} to a file: name it in links.txt");
        }
        let inline = text.split("](").skip(1).any(|rest| !rest.starts_with('#'));
        assert!(!inline, "{page} is also read as a file: write items in code font, and define links to files by name");
    }
}

#[test]
fn guide_lists_every_chapter() {
    let (list, module) = (read("src/guide.md"), read("src/guide.rs"));
    let declared = module.split_once("\nchapters! {").and_then(|(_, rest)| rest.split_once('}')).unwrap().0;
    for path in guide().iter().filter_map(|path| path.strip_prefix("src/")) {
        let Some(name) = path.strip_prefix("guide/").and_then(|file| file.strip_suffix(".md")) else { continue };
        assert!(list.contains(&format!("[{name}]: {path}")), "src/guide.md does not list {path}");
        assert!(declared.split_whitespace().any(|chapter| chapter == name), "src/guide.rs does not declare {name}");
    }
}
