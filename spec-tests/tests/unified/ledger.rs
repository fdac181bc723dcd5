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
        reason: "minPoolSize connections are not opened while the fail point delays hello beyond connectTimeoutMS",
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
        sometimes: false,
    },
    Entry {
<<<<<<< HEAD
        file: "csot/convenient-transactions",
        cases: &[
            "timeoutMS is not refreshed for each operation in the callback",
            "withTransaction raises a client-side error if timeoutMS is overridden inside the callback",
        ],
        reason: "timeoutMS of a transaction is not a limit of each operation in its callback",
        sometimes: true,
    },
    Entry {
        file: "csot/sessions-override-timeoutMS",
        cases: &["timeoutMS applied to withTransaction"],
        reason: "timeoutMS of a transaction is not a limit of each operation in its callback",
=======
        file: "sessions/driver-sessions-server-support",
        cases: &["Server supports implicit sessions"],
        reason: "a server session is reused by the next command only on the same core",
        sometimes: true,
    },
    Entry {
        file: "unified-test-format/valid-pass/poc-sessions",
        cases: &["Server supports implicit sessions"],
        reason: "a server session is reused by the next command only on the same core",
>>>>>>> dab5be9 (Let the limit of a transaction hold for all its operations)
        sometimes: true,
    },
];
