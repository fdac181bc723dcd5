//! The official suites as a whole: each one that the testbed provides is run, or is listed with the reason why not.

#![cfg(not(any(loom, shuttle)))]

mod connection_logging;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The suites that are run, and the files of the tests that run them.
const RUN: &[(&str, &str)] = &[
    ("auth", "tests/uri/suites.rs"),
    ("connection_logging", "tests/suites/connection_logging.rs"),
    ("connection_monitoring", "tests/cmap/main.rs"),
    ("connection_string", "tests/uri/suites.rs"),
    ("discovery_and_monitoring", "tests/topology/discovery.rs"),
    ("max_staleness", "tests/topology/selecting.rs"),
    ("server_selection", "tests/topology/selecting.rs"),
    ("srv_seedlist", "tests/uri_srv/suite.rs"),
    ("uri_options", "tests/uri/suites.rs"),
];

/// The suites, or parts of suites, that are not run, and why. Each needs a part of a driver that wharf does not have yet.
const NOT_RUN: &[(&str, &str)] = &[
    ("auth/unified", "reauthenticates under operations of a client; wharf has no client and no cursors"),
    ("client-backpressure", "retries operations of a client that an overloaded server has refused"),
    ("csot", "sets timeoutMS for operations, cursors and transactions of a client"),
    ("discovery_and_monitoring/unified", "watches the monitors of a client"),
    ("handshake/unified", "appends metadata to a client that exists"),
    ("load_balancer", "needs cursors, transactions and a load balancer in front of mongos"),
    ("run_command/unified", "runs commands with sessions and cursors of a client"),
    ("sdam_monitoring", "compares the events of monitoring, which wharf does not emit"),
    ("server_selection_logging", "logs the selection of servers by a client"),
    ("unified-test-format", "tests runners of the unified format, and wharf has none"),
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
        assert!(root.join(suite).is_dir(), "{suite} is no suite that is provided");
    }
    let whole = NOT_RUN.iter().filter(|(of, _)| !of.contains('/'));
    assert_eq!(whole.filter(|(of, _)| run.contains(of)).count(), 0, "a suite that is run is not run as well");
    // Each unified part is run or listed, too: the other part of its suite may be all that is run.
    for suite in provided.iter().filter(|suite| root.join(suite).join("unified").is_dir()) {
        let part = format!("{suite}/unified");
        assert!(NOT_RUN.iter().any(|(of, _)| *of == part || of == suite), "{part} is neither run nor listed");
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
