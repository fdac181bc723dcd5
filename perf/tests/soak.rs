//! Runs a short form of the soak test, which must find no faults.

use std::process::Command;

#[test]
fn short_soak_loses_nothing_and_leaves_nothing_behind() {
    let output = Command::new(env!("CARGO_BIN_EXE_roundtrips")).args(["soak", "--seconds", "4"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(printed.matches("  holds ").count(), 2 * 9, "{printed}");
}
