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
        file: "client-backpressure/getMore-retried",
        cases: &["getMores are retried", "getMores are retried maxAttempts=2 times"],
        reason: "getMore is not retried when the server is overloaded",
        sometimes: false,
    },
    Entry {
        file: "csot/close-cursors",
        cases: &["timeoutMS is refreshed for close"],
        reason: "killCursors has no time limit of its own",
        sometimes: true,
    },
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
        file: "csot/convenient-transactions",
        cases: &[
            "timeoutMS is not refreshed for each operation in the callback",
            "withTransaction raises a client-side error if timeoutMS is overridden inside the callback",
        ],
        reason: "timeoutMS of a transaction is not a limit of each operation in its callback",
        sometimes: true,
    },
    Entry {
        file: "csot/runCursorCommand",
        cases: &["Tailable cursor awaitData iteration timeoutMS is refreshed for getMore - failure"],
        reason: "tailable cursors do not have a timeoutMS for each iteration",
        sometimes: true,
    },
    Entry {
        file: "csot/sessions-override-timeoutMS",
        cases: &["timeoutMS applied to withTransaction"],
        reason: "timeoutMS of a transaction is not a limit of each operation in its callback",
        sometimes: true,
    },
    Entry {
        file: "csot/tailable-awaitData",
        cases: &[
            "apply remaining timeoutMS if less than maxAwaitTimeMS",
            "error on aggregate if maxAwaitTimeMS is equal to timeoutMS",
            "error on aggregate if maxAwaitTimeMS is greater than timeoutMS",
            "error on find if maxAwaitTimeMS is equal to timeoutMS",
            "error on find if maxAwaitTimeMS is greater than timeoutMS",
            "timeoutMS is refreshed for getMore if maxAwaitTimeMS is not set",
            "timeoutMS is refreshed for getMore if maxAwaitTimeMS is set",
        ],
        reason: "tailable cursors do not have a timeoutMS for each iteration",
        sometimes: true,
    },
    Entry {
        file: "csot/tailable-non-awaitData",
        cases: &[
            "timeoutMS applied to find",
            "timeoutMS is refreshed for getMore - failure",
            "timeoutMS is refreshed for getMore - success",
        ],
        reason: "tailable cursors do not have a timeoutMS for each iteration",
        sometimes: true,
    },
];
