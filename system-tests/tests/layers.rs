//! Layers point one way: a module uses only its own layer and earlier ones.
#![cfg(not(any(loom, shuttle)))]

use std::fs;

use wharf_system_tests::{root, rust_files};

/// The layers from first to last. A module may use its own layer and earlier ones.
const LAYERS: [&[&str]; 12] = [
    &[
        "boxed",
        "by_stage",
        "condition",
        "logged",
        "milliseconds",
        "printable",
        "sentence",
        "sync",
        "delivery",
        "holder",
        "error",
        "event",
        "options",
    ],
    &["metrics", "pool"],
    &["runtime"],
    &["telemetry"],
    &["wire"],
    &["endpoint"],
    &["topology"],
    &["selection"],
    &["session"],
    &["deployment"],
    &["client"],
    &["single"],
];

fn layer_of(module: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("module {module} has no layer: add it to LAYERS"))
}

#[test]
fn every_module_uses_only_the_layers_before_it() {
    let source = root().join("src");
    let mut checked = 0;
    for file in rust_files(&source) {
        let inside = file.strip_prefix(&source).unwrap();
        let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = first.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let code = line.split("//").next().unwrap();
            for used in code.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let is_module = LAYERS.iter().any(|layer| layer.contains(&used.as_str()));
                if !is_module {
                    continue;
                }
                checked += 1;
                assert!(
                    layer_of(&used) <= layer_of(module),
                    "{}:{}: {module} uses {used}, which is a later layer",
                    inside.display(),
                    number + 1
                );
            }
        }
    }
    assert!(checked > 50, "only {checked} imports found: does the test read the right files?");
}

#[test]
fn core_does_no_io_and_reads_no_clock() {
    let core = root().join("src/pool");
    for file in rust_files(&core) {
        let text = fs::read_to_string(&file).unwrap();
        let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for forbidden in ["tokio", "std::net", "std::thread", "Instant::now", "SystemTime", "rand::"] {
            assert!(!code.iter().any(|line| line.contains(forbidden)), "{} uses {forbidden}", file.display());
        }
    }
}
