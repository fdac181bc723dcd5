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
        reason: "the case delays hello by more than timeoutMS, and the text limits the handshake of a minPoolSize connection to that",
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

/// What wharf or the runner lacks, by the words of `Stop::Lacks`, with the reason why.
const LACKS: &[(&str, &str)] = &[
    ("GridFS", "wharf has commands, cursors and sessions, and no interface of files above them"),
    ("client-side encryption", "it needs libmongocrypt"),
    (
        "a bulkWrite of a client, which needs a server of version 8.0",
        "bulk writes of wharf use the commands insert, update and delete",
    ),
    ("a comment of getMore that differs from the one of the command", "getMore repeats the comment of its command"),
    (
        "timeoutMS of a transaction's operations",
        "the client takes the time limit of commits and aborts from the session",
    ),
    ("public view of whether a session is dirty", "it is no part of the public interface"),
    ("public view of what a session is pinned to", "it is no part of the public interface"),
];

/// Returns what is lacking, with the reason.
pub fn lack(what: &str) -> Option<String> {
    let (_, reason) = LACKS.iter().find(|(listed, _)| *listed == what)?;
    Some(format!("needs {what}: {reason}"))
}
