//! Floors: a module uses only its own floor and the floors below it. A wing is a group of consecutive floors, and uses
//! only the wings before it.
#![cfg(not(any(loom, shuttle)))]

mod imports;

use std::collections::BTreeSet;
use std::fs;

use imports::{circles, uses};
use wharf_system_tests::{root, rust_files};

/// The floors from the lowest to the highest, each with its rooms. A room is a module with all modules inside it,
/// except modules that are separate rooms.
const FLOORS: &[&[&str]] = &[
    &["text"],
    // The `pool` wing.
    &["pool::sync"],
    &["pool::condition", "pool::options", "pool::service_id"],
    &["pool::holder"],
    &["pool::by_stage", "pool::error", "pool::event"],
    &["pool::delivery"],
    &["pool::core", "pool::metrics"],
    &["pool::runtime"],
    &["pool"],
    // Outside the wings: the modules that present a pool to people and programs.
    &["telemetry"],
    // The `endpoint` wing.
    &["endpoint::options"],
    &["endpoint::wire"],
    &["endpoint"],
    // The `client` wing.
    &["client::object_id"],
    &["client::topology"],
    &["client::selection"],
    &["client::session"],
    &["client::deployment"],
    &["client"],
    &["client::single"],
    &["client::blocking"],
    // Documentation without code.
    &["guide"],
];

/// The groups of modules that use each other: the module that contains the group, its maximum size, and the reason.
const CIRCLES: &[(&str, usize, &str)] = &[
    ("pool", 21, "The core is one type, and each file has the steps of one concern. The metrics contain its status."),
    ("pool::core::waitlist", 3, "A segment has cells, a cell knows its segment's size, and so does the lane's word."),
    ("pool::metrics", 2, "A histogram is stored in a form of its own, and made from it."),
    (
        "pool::runtime",
        19,
        "A pool and its environment hold each other: the environment's tasks and sinks work for the pool.",
    ),
    ("telemetry", 2, "The log writes sentences, and a sentence has the log's words."),
    ("endpoint", 2, "A channel hands a long reply to a thread that decompresses it, and gets it back."),
    ("endpoint::options", 4, "A credential has the options of its mechanism, whose methods are the credential's."),
    ("endpoint::options::uri", 2, "A draft reads values, and a value that is rejected says why in the draft's words."),
    ("endpoint::wire::compressed", 4, "The codec has each compressor, and each takes its pauses as the codec says."),
    ("client::session", 2, "The identifier of a server session is one of a command's elements."),
    ("client::deployment", 12, "The deployment's state, its monitors, scans and selections act on each other."),
    (
        "client::collection",
        2,
        "A list of collections names the index of `_id`, and a list of indexes is read as that one is.",
    ),
    (
        "client",
        26,
        "A session's commit is an operation that runs in it. The error has what writes had done before they failed.",
    ),
];

fn floor_of(module: &str) -> usize {
    let contains = |room: &str| module.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
    let rooms = FLOORS.iter().enumerate().flat_map(|(floor, rooms)| rooms.iter().map(move |room| (*room, floor)));
    let found = rooms.filter(|(room, _)| contains(room)).max_by_key(|(room, _)| room.len());
    found.unwrap_or_else(|| panic!("module {module} has no floor: add it to FLOORS")).1
}

#[test]
fn every_module_uses_only_its_floor_and_those_below() {
    let mut checked = 0;
    for (module, used) in uses().iter().filter(|(module, _)| !module.is_empty()) {
        for used in used.iter().filter(|used| !used.is_empty()) {
            checked += 1;
            assert!(floor_of(used) <= floor_of(module), "{module} uses {used}, which is on a higher floor");
        }
    }
    assert!(checked > 1_000, "only {checked} imports found: does the test read the right files?");
}

#[test]
fn modules_that_use_each_other_are_listed_with_the_reason() {
    let found: Vec<(String, BTreeSet<String>)> =
        circles(&uses()).into_iter().map(|circle| (common(&circle), circle)).collect();
    for (place, circle) in &found {
        let listed = CIRCLES.iter().find(|(listed, ..)| listed == place);
        let most = listed.map_or(0, |(_, most, _)| *most);
        assert!(circle.len() <= most, "{} modules use each other in {place}, not {most}: {circle:#?}", circle.len());
    }
    let gone: Vec<&str> = CIRCLES
        .iter()
        .map(|(place, ..)| *place)
        .filter(|place| found.iter().all(|(found, _)| found != place))
        .collect();
    assert_eq!(gone, [""; 0], "listed, but no modules there use each other");
}

/// Returns the innermost module that contains all these modules.
fn common(modules: &BTreeSet<String>) -> String {
    let parts = |module: &String| module.split("::").map(str::to_owned).collect::<Vec<_>>();
    let all: Vec<_> = modules.iter().map(parts).collect();
    let is_shared = |place: usize| all.iter().all(|parts| parts.len() > place + 1 && parts[place] == all[0][place]);
    all[0]
        .iter()
        .enumerate()
        .take_while(|(place, _)| is_shared(*place))
        .map(|(_, part)| &**part)
        .collect::<Vec<_>>()
        .join("::")
}

#[test]
fn core_does_no_io_and_reads_no_clock() {
    let core = root().join("src/pool/core");
    for file in rust_files(&core) {
        let text = fs::read_to_string(&file).unwrap();
        let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for forbidden in ["tokio", "std::net", "std::thread", "Instant::now", "SystemTime", "rand::"] {
            assert!(!code.iter().any(|line| line.contains(forbidden)), "{} uses {forbidden}", file.display());
        }
    }
}
