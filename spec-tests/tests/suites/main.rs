//! Each official suite that the testbed provides is either run, or listed with the reason why not.

#![cfg(not(any(loom, shuttle)))]

mod connection_logging;
mod prose;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The test of the suites in the unified test format. It prints which of their cases it skips, with the reasons.
const UNIFIED: &str = "tests/unified/main.rs";

/// The suites that are run, each with the file of its test.
const RUN: &[(&str, &str)] = &[
    ("auth", "tests/uri/suites.rs"),
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
    ("load_balancer", UNIFIED),
    ("max_staleness", "tests/topology/selecting.rs"),
    ("read_write_concern", UNIFIED),
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

/// The suites, or parts of suites, that are not run, with the reason. Each needs a part of a driver that wharf lacks.
const NOT_RUN: &[(&str, &str)] = &[
    ("auth/unified", "reauthenticates with a token during operations; the servers of the tests have no such mechanism"),
    ("handshake/unified", "appends metadata to an existing client"),
];

#[test]
fn every_suite_is_run_or_listed_with_a_reason() {
    let one = wharf_testbed::provision::suite("connection_logging").expect("the official test suite");
    let root = one.parent().expect("a suite is in a folder");
    let provided: BTreeSet<String> = folders(root).collect();
    let run: BTreeSet<&str> = RUN.iter().map(|(suite, _)| *suite).collect();
    let not_run = |suite: &str| NOT_RUN.iter().filter(move |(of, _)| of.split('/').next() == Some(suite)).count();
    for suite in &provided {
        assert!(run.contains(suite.as_str()) || not_run(suite) > 0, "{suite} is neither run nor listed");
    }
    for (suite, _) in RUN.iter().chain(NOT_RUN) {
        assert!(root.join(suite).is_dir(), "the testbed does not provide a suite {suite}");
    }
    let whole = NOT_RUN.iter().filter(|(of, _)| !of.contains('/'));
    assert_eq!(whole.filter(|(of, _)| run.contains(of)).count(), 0, "a suite is both run and listed as not run");
    // Each unified part must be listed itself: the test of its suite may run only the other part.
    for suite in provided.iter().filter(|suite| root.join(suite).join("unified").is_dir()) {
        let part = format!("{suite}/unified");
        let is_run = RUN.contains(&(suite.as_str(), UNIFIED));
        assert!(is_run || NOT_RUN.iter().any(|(of, _)| *of == part || of == suite), "{part} is neither run nor listed");
    }
    for (suite, file) in RUN {
        let test = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        assert!(test.contains(&format!("\"{suite}\"")), "{file} does not mention {suite}");
    }
}

fn folders(root: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(root).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().is_dir());
    folders.map(|entry| entry.file_name().into_string().unwrap())
}
