//! The cases that fail, each with the reason. They are run all the same, and the test fails if one of them passes.

/// Cases of a file that fail.
pub struct Entry {
    /// The path without its ending.
    file: &'static str,
    /// The descriptions of the cases.
    cases: &'static [&'static str],
    pub reason: &'static str,
    /// Whether the cases pass at times, by chance.
    pub sometimes: bool,
}

/// Returns the entry of a case, if it has one.
pub fn entry(file: &str, case: &str) -> Option<&'static Entry> {
    LEDGER.iter().find(|entry| entry.file == file && entry.cases.contains(&case))
}

pub const LEDGER: &[Entry] = &[
    Entry {
        file: "csot/command-execution",
        cases: &[
            "command is not sent if RTT is greater than timeoutMS",
            "short-circuit is not enabled with only 1 RTT measurement",
        ],
        reason: "the handshake of a minPoolSize connection takes longer than timeoutMS, to which the text limits it",
        sometimes: false,
    },
    Entry {
        file: "csot/runCursorCommand",
        cases: &[
            "Non-tailable cursor iteration timeoutMS is refreshed for getMore if timeoutMode is iteration - failure",
            "Tailable cursor awaitData iteration timeoutMS is refreshed for getMore - failure",
            "Tailable cursor iteration timeoutMS is refreshed for getMore - failure",
        ],
        reason: "the case expects a timeout, but delays getMore by less than its timeoutMS, or has no timeoutMS at all",
        sometimes: true,
    },
    Entry {
        file: "transactions/unified/mongos-recovery-token",
        cases: &["commitTransaction explicit retries include recoveryToken"],
        reason: "the server behind the runner's load balancer is no mongos, and gives no recoveryToken",
        sometimes: false,
    },
];
