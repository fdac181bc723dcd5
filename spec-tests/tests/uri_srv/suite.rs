//! The official suite.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use wharf::Options;
use wharf_testbed::dns::Zone;

use super::values::value_of;
use super::{hosts, resolve, start};

/// The records that the suite's README lists, and additional records that newer cases need.
pub(super) fn zone() -> Zone {
    const HERE: &str = "localhost.test.build.10gen.cc";
    let service = |number: u8| format!("_mongodb._tcp.test{number}.test.build.10gen.cc");
    let name = |number: u8| format!("test{number}.test.build.10gen.cc");
    let mut zone = Zone::default();
    for (number, port) in [(1, 27017), (1, 27018), (2, 27018), (2, 27019), (3, 27017), (5, 27017), (6, 27017)] {
        zone = zone.srv(&service(number), port, HERE);
    }
    for number in [7, 8, 10, 11, 20, 21] {
        zone = zone.srv(&service(number), 27017, HERE);
    }
    let targets = [
        (12, "localhost.build.10gen.cc"),
        (13, "test.build.10gen.cc"),
        (14, "localhost.not-test.build.10gen.cc"),
        (15, "localhost.test.not-build.10gen.cc"),
        (16, "localhost.test.build.not-10gen.cc"),
        (17, "localhost.test.build.10gen.not-cc"),
        (18, "localhost.sub.test.build.10gen.cc"),
        (19, "localhost.evil.build.10gen.cc"),
        (19, HERE),
    ];
    for (number, target) in targets {
        zone = zone.srv(&service(number), 27017, target);
    }
    for number in [23, 24] {
        zone = zone.srv(&service(number), 8000, HERE);
    }
    // The README lists one record for this service, but its case needs two servers.
    for port in [27017, 27018] {
        zone = zone.srv("_customname._tcp.test22.test.build.10gen.cc", port, HERE);
    }
    // The README does not list these names, but the cases `identical-hostnames-valid-` use them.
    for name in ["build.10gen.cc", "test.build.10gen.cc"] {
        zone = zone.srv(&format!("_mongodb._tcp.{name}"), 27017, name);
    }
    let texts: [(u8, &[&str]); 10] = [
        (5, &["replicaSet=repl0&authSource=thisDB"]),
        (6, &["replicaSet=repl0"]),
        (6, &["authSource=otherDB"]),
        (7, &["ssl=false"]),
        (8, &["authSource"]),
        (10, &["socketTimeoutMS=500"]),
        (11, &["replicaS", "et=rep", "l0"]),
        (20, &["loadBalanced=true"]),
        (21, &["loadBalanced=false"]),
        (24, &["loadBalanced=true"]),
    ];
    texts.into_iter().fold(zone, |zone, (number, strings)| zone.txt(&name(number), strings))
}

pub(super) fn files() -> Vec<PathBuf> {
    let suite = wharf_testbed::provision::suite("srv_seedlist").expect("the official test suite");
    let list = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = list(suite).filter(|path| path.is_dir()).flat_map(list).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    // PyMongo's copy has 13 more cases, about `srvAllowedHostsSuffix`, which the specification does not include as of
    // 2026-08-13.
    assert!(matches!(files.len(), 53 | 66), "{} files", files.len());
    files
}

pub(super) fn read(file: &Path) -> Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

fn check(file: &str, case: &Value, options: &Options) {
    let found: BTreeSet<_> = hosts(options).into_iter().map(str::to_owned).collect();
    if let Some(seeds) = case["seeds"].as_array() {
        let seeds: BTreeSet<_> = seeds.iter().map(|seed| seed.as_str().unwrap().to_owned()).collect();
        assert_eq!(found, seeds, "{file}");
    }
    if let Some(number) = case["numSeeds"].as_u64() {
        assert_eq!(found.len() as u64, number, "{file}");
    }
    for (name, expected) in case["options"].as_object().into_iter().flatten() {
        assert_eq!(value_of(options, name).as_ref(), Some(expected), "{file}: {name}");
    }
    for (name, expected) in case["parsed_options"].as_object().into_iter().flatten() {
        let credential = options.credential.as_ref();
        let found = match name.as_str() {
            "user" => credential.and_then(|credential| credential.username.as_deref()),
            "password" => credential.and_then(|credential| Some(credential.password.as_ref()?.reveal())),
            "auth_database" | "db" | "defaultDatabase" => options.default_database.as_deref(),
            unknown => panic!("{file}: {unknown}"),
        };
        assert_eq!(found, expected.as_str(), "{file}: {name}");
    }
}

#[tokio::test]
async fn every_case_passes() {
    let server = start(zone()).await;
    let files = files();
    let fields =
        ["uri", "seeds", "numSeeds", "hosts", "numHosts", "options", "parsed_options", "error", "comment", "ping"];
    for file in files {
        let (case, file) = (read(&file), file.display().to_string());
        assert!(case.as_object().unwrap().keys().all(|field| fields.contains(&field.as_str())), "{file}");
        let outcome = resolve(&server, case["uri"].as_str().unwrap()).await;
        match (outcome, case["error"].as_bool().unwrap_or(false)) {
            (Ok(options), false) => check(&file, &case, &options),
            (Err(_), true) => {}
            (Ok(options), true) => panic!("{file} is resolved: {options:?}"),
            (Err(error), false) => panic!("{file}: {error}"),
        }
    }
}
