//! Tests that the client's measurements run and print their tables and claims. The values depend on the machine.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs the short form of some sections. Returns the program's output and the lines of the file that it wrote.
fn short(sections: &[&str]) -> (String, Vec<serde_json::Value>) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("client-{}.json", sections.join("-")));
    let _ = fs::remove_file(&file);
    let output = Command::new(env!("CARGO_BIN_EXE_roundtrips"))
        // A machine with one core cannot give each side a separate core.
        .args(["client", "--short", "--no-pin", "--json"])
        .arg(&file)
        .args(sections)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    let recorded = fs::read_to_string(&file).unwrap();
    (printed, recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// Returns how many measurements with this name a subject has.
fn count(lines: &[serde_json::Value], measured: &str, subject: &str) -> usize {
    lines.iter().filter(|line| line["measured"] == measured && line["subject"] == subject).count()
}

#[test]
fn commands_are_measured_on_both_servers() {
    let (printed, lines) = short(&["commands"]);
    for (measured, subjects) in [
        ("client-command", &["pool", "client", "official-raw"][..]),
        ("client-command-frugal", &["client", "client-busy-polling", "pool", "official-raw"]),
    ] {
        for subject in subjects {
            // Two task counts, with two turns each.
            assert_eq!(count(&lines, measured, subject), 4, "{measured} {subject}: {printed}");
        }
    }
    let of_frugal = lines.iter().filter(|line| line["measured"] == "client-command-frugal");
    for line in of_frugal {
        assert!(line["operations"].as_u64().unwrap() > 0, "{line}");
        assert!(line["server_cpu_seconds"].as_f64().unwrap() > 0.0, "the server tells what it costs: {line}");
    }
    assert_eq!(printed.matches("times the pool's").count(), 2, "{printed}");
    // With one task, this claim is made only for busy polling.
    for (subject, claims) in [("client has", 1), ("client-busy-polling has", 2)] {
        let claimed = format!("{subject} at least 1.6 times the official driver's");
        assert_eq!(printed.matches(&claimed).count(), claims, "{subject}: {printed}");
    }
}

#[test]
fn operations_on_one_document_are_measured_and_counted() {
    let (printed, lines) = short(&["typed"]);
    for operation in ["find-one", "insert-one", "update-one"] {
        for subject in ["handle", "raw", "official"] {
            let subject = format!("{subject}-{operation}");
            // Two task counts, with two turns each.
            assert_eq!(count(&lines, &format!("client-{operation}"), &subject), 4, "{subject}: {printed}");
            assert_eq!(count(&lines, &format!("client-{operation}-allocations"), &subject), 1, "{subject}: {printed}");
        }
    }
    let counted: Vec<_> = lines.iter().filter_map(|line| line["allocations"].as_f64()).collect();
    assert_eq!(counted.len(), 9);
    assert!(counted.iter().all(|&allocations| allocations > 1.0), "{counted:?}");
}

#[test]
fn cursors_and_inserts_transfer_all_documents() {
    let (printed, lines) = short(&["cursor", "typed-cursor", "borrowed-cursor", "bulk", "typed-bulk"]);
    for (measured, subjects) in [
        ("client-find-50", &["client", "official", "official-raw"][..]),
        ("client-find-typed-50", &["client", "official"]),
        ("client-find-borrowed-50", &["client", "official"]),
        ("client-insert-200", &["client", "official-raw"]),
        ("client-insert-typed-200", &["client", "official"]),
    ] {
        for subject in subjects {
            assert_eq!(count(&lines, measured, subject), 2, "{measured} {subject}: {printed}");
        }
    }
    assert!(lines.iter().all(|line| line["documents"] == 200), "{lines:?}");
    assert_eq!(printed.matches("CPU per document is at most 0.8 times").count(), 3, "{printed}");
}

#[test]
fn failover_and_memory_are_measured_for_both_clients() {
    let (printed, lines) = short(&["failover", "memory"]);
    for measured in
        ["client-failover-step-down", "client-failover-kill", "client-memory-standalone", "client-memory-replica-set"]
    {
        for subject in ["client", "official-raw"] {
            assert_eq!(count(&lines, measured, subject), 1, "{measured} {subject}: {printed}");
        }
    }
    let kills = lines.iter().filter(|line| line["measured"] == "client-failover-kill");
    for line in kills {
        // The members elect a new primary about two seconds after they last heard from the old primary, sometimes a
        // little sooner.
        assert!(line["stall_seconds"].as_f64().unwrap() > 1.0, "the primary was lost: {line}");
    }
    assert!(printed.contains("each further server"), "{printed}");
}
