//! Tests that the comparison under overload runs and prints its table and claims. The values depend on the machine.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn every_subject_is_measured_under_overload() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("overload.json");
    let _ = fs::remove_file(&file);
    let output = Command::new(env!("CARGO_BIN_EXE_roundtrips"))
        .args(["overload", "--rounds", "1", "--seconds", "0.4", "--connections", "4", "--deadline", "3", "--json"])
        .arg(&file)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let recorded = fs::read_to_string(&file).unwrap();
    let lines: Vec<serde_json::Value> = recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let subjects: Vec<&str> = lines.iter().map(|line| line["subject"].as_str().unwrap()).collect();
    assert_eq!(
        subjects,
        [
            "wharf",
            "wharf-refusing",
            "wharf-shorter",
            "deadpool",
            "bb8",
            "newest-first",
            "client",
            "client-refusing",
            "official"
        ]
    );
    for line in &lines {
        let [capacity, useful, in_vain] = ["capacity", "useful", "in_vain"].map(|value| line[value].as_f64().unwrap());
        assert!(capacity > 0.0 && useful + in_vain > 0.1, "{line}");
    }
    assert_eq!(printed.matches("the useful work is at least 0.95 of the capacity").count(), 2, "{printed}");
}
