//! Checks that a test runs each official suite, and that the editions of the suites differ as listed.

#![cfg(not(any(loom, shuttle)))]

mod concerns;
mod connection_logging;
mod corpus;
mod prose;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use wharf_testbed::edition::{DIFFERENCES, Difference, Edition, Kind, root};
use wharf_testbed::provision;

/// The test that runs the suites in the unified test format. It prints the cases that it skips, with the reasons.
const UNIFIED: &str = "tests/unified/main.rs";

/// The suites that are run, each with the file of its test.
const RUN: &[(&str, &str)] = &[
    ("auth", "tests/uri/suites.rs"),
    ("auth/unified", UNIFIED),
    ("change_streams", UNIFIED),
    ("client-backpressure", UNIFIED),
    ("collection_management", UNIFIED),
    ("command_logging", UNIFIED),
    ("command_monitoring", UNIFIED),
    ("connection_logging", "tests/suites/connection_logging.rs"),
    ("connection_monitoring", "tests/cmap/main.rs"),
    ("connection_string", "tests/uri/suites.rs"),
    ("crud", UNIFIED),
    ("csot", UNIFIED),
    ("discovery_and_monitoring", "tests/topology/discovery.rs"),
    ("discovery_and_monitoring", UNIFIED),
    ("handshake/unified", UNIFIED),
    ("load_balancer", UNIFIED),
    ("max_staleness", "tests/topology/selecting.rs"),
    ("read_write_concern", UNIFIED),
    ("read_write_concern/connection-string", "tests/suites/concerns.rs"),
    ("read_write_concern/document", "tests/suites/concerns.rs"),
    ("retryable_reads", UNIFIED),
    ("retryable_writes", UNIFIED),
    ("run_command", UNIFIED),
    ("sdam_monitoring", "tests/topology/monitoring.rs"),
    ("server_selection", "tests/topology/selecting.rs"),
    ("server_selection_logging", UNIFIED),
    ("sessions", UNIFIED),
    ("srv_seedlist", "tests/uri_srv/suite.rs"),
    ("transactions", UNIFIED),
    ("transactions-convenient-api", UNIFIED),
    ("unified-test-format", UNIFIED),
    ("uri_options", "tests/uri/suites.rs"),
    ("versioned-api", UNIFIED),
];

/// The suites of the newest edition that the fetched edition lacks, each with the file of its test.
const NEWER: &[(&str, &str)] = &[
    ("bson_corpus", "tests/suites/corpus.rs"),
    ("causal_consistency", UNIFIED),
    ("gridfs", UNIFIED),
    ("index_management", UNIFIED),
    ("open_telemetry", UNIFIED),
];

#[test]
fn every_suite_is_run() {
    let root = root();
    let run: Vec<_> = RUN.iter().chain(Edition::present().pick(&[][..], NEWER)).collect();
    for suite in folders(root) {
        let is_of = |(of, _): &&&(&str, &str)| of.split('/').next() == Some(&suite);
        assert!(run.iter().any(|entry| is_of(&entry)), "{suite} is not run");
        // A suite's own test does not need to run the files in `unified`.
        let part = format!("{suite}/unified");
        let is_run = root.join(&part).is_dir() && !run.contains(&&(&*suite, UNIFIED));
        assert!(!is_run || run.contains(&&(&*part, UNIFIED)), "{part} is not run");
    }
    for (suite, file) in run {
        assert!(root.join(suite).is_dir(), "the testbed does not provide a suite {suite}");
        let test = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let mentions = [format!("\"{suite}\""), format!("\"{suite}/")];
        assert!(mentions.iter().any(|text| test.contains(text)), "{file} does not mention {suite}");
    }
}

/// This test needs both editions, so it does nothing if only the fetched edition exists.
#[test]
fn editions_differ_as_listed() {
    if Edition::present() == Edition::Fetched {
        return;
    }
    let (fetched, newest) = (files(&provision::fetched_suites().expect("the fetched suites")), files(root()));
    let difference = |name: &String| match (fetched.get(name), newest.get(name)) {
        (Some(old), Some(new)) => (old != new).then_some(Kind::Changed),
        (Some(_), None) => Some(Kind::OnlyFetched),
        (None, _) => Some(Kind::OnlyNewest),
    };
    let names: BTreeSet<_> = fetched.keys().chain(newest.keys()).collect();
    let found: Vec<_> = names.into_iter().filter_map(|name| Some((difference(name)?, name))).collect();
    let is_of =
        |listed: &Difference, (kind, name): &(Kind, &String)| listed.kind == *kind && name.starts_with(listed.path);
    let unlisted: Vec<_> = found.iter().filter(|one| !DIFFERENCES.iter().any(|listed| is_of(listed, one))).collect();
    assert!(unlisted.is_empty(), "{unlisted:#?}");
    let unused: Vec<_> = DIFFERENCES.iter().filter(|listed| !found.iter().any(|one| is_of(listed, one))).collect();
    assert!(unused.is_empty(), "the editions do not differ in this way: {unused:#?}");
}

/// Returns the JSON files below a folder, keyed by path without the extension.
fn files(root: &Path) -> BTreeMap<String, Value> {
    let (mut folders, mut found) = (vec![root.to_owned()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "json") {
                let name = path.strip_prefix(root).unwrap().with_extension("").to_str().unwrap().replace('\\', "/");
                found.insert(name, serde_json::from_slice(&fs::read(&path).unwrap()).unwrap());
            }
        }
    }
    found
}

fn folders(root: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(root).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.file_name().into_string().unwrap())
}
