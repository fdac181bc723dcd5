//! The cases that fail, each with the reason. They still run, and the test fails if one of them passes. A case that times
//! out by chance must pass, with or without the timeout.

use wharf_testbed::edition::Edition;

use crate::clients::Which;

/// Failing cases in a file.
pub struct Entry {
    /// The path without its extension.
    file: &'static str,
    /// The descriptions of the cases.
    cases: &'static [&'static str],
    pub reason: &'static str,
    /// The clients with which the cases fail.
    clients: &'static [Which],
    /// Whether the timeout that the cases expect occurs only by chance. Such cases must pass apart from that timeout.
    pub timeout_by_chance: bool,
    /// The editions of the suites in which the cases fail.
    editions: &'static [Edition],
}

const EITHER: &[Edition] = &[Edition::Fetched, Edition::Newest];
const FETCHED: &[Edition] = &[Edition::Fetched];
const NEWEST: &[Edition] = &[Edition::Newest];

/// Returns the entries for the current edition.
fn ledger() -> impl Iterator<Item = &'static Entry> {
    let edition = Edition::present();
    LEDGER.iter().filter(move |entry| entry.editions.contains(&edition))
}

/// Returns the entry for a case, if any.
pub fn entry(which: Which, file: &str, case: &str) -> Option<&'static Entry> {
    let is_of = |entry: &&Entry| entry.clients.contains(&which) && entry.file == file && entry.cases.contains(&case);
    ledger().find(is_of)
}

/// Returns all cases in the ledger: the client, the file and the description.
pub fn cases() -> impl Iterator<Item = (Which, &'static str, &'static str)> {
    ledger().flat_map(|entry| {
        let cases = move |&which: &Which| entry.cases.iter().map(move |&case| (which, entry.file, case));
        entry.clients.iter().flat_map(cases)
    })
}

const BOTH: &[Which] = &[Which::Pooled, Which::Single];

/// Returns an entry for the single client.
const fn single(file: &'static str, cases: &'static [&'static str], reason: &'static str) -> Entry {
    Entry { file, cases, reason, clients: &[Which::Single], timeout_by_chance: false, editions: EITHER }
}

/// Returns an entry for the single client and a file that only the newest edition has.
const fn newer(file: &'static str, cases: &'static [&'static str], reason: &'static str) -> Entry {
    Entry { editions: NEWEST, ..single(file, cases, reason) }
}

// The reasons why cases fail on the single client; all of these failures are by design.
const MONITORS: &str = "the single client has no task that monitors servers or fills pools between calls";
const CHECKS: &str = "connections of the single client serve the checks, too, and these have events of the pool";
const OPENED_BY_A_CHECK: &str = "the single client runs the operation on the connection on which it has checked the server, so \
                                 that it opens none after the case has set its fail point";
const FAILED_IN_A_CHECK: &str = "the single client opens the connection in a check, whose hello was answered, and closes it; its pool is \
                                 cleared when an operation selects the server, and before that check-out's connection is closed";
const TRY_ONCE: &str =
    "the single client fails after one scan instead of waiting, and asks a server again only after 5 s";
const ONE_BY_ONE: &str = "the calls of a single client run one after the other, and the case needs two at a time";

const FILTER_BY_EQ: &str =
    "PyMongo's copy expects the filter of GridFS to compare `_id` by `$eq`, which means the same";

/// The descriptions of the two cases that a file contains for each operation.
macro_rules! handshakes {
    ($($operation:literal),* $(,)?) => {
        &[$(
            concat!($operation, " succeeds after retryable handshake network error"),
            concat!($operation, " succeeds after retryable handshake server error (ShutdownInProgress)"),
        )*]
    };
}

pub const LEDGER: &[Entry] = &[
    Entry {
        file: "csot/command-execution",
        cases: &[
            "command is not sent if RTT is greater than timeoutMS",
            "short-circuit is not enabled with only 1 RTT measurement",
        ],
        reason: "the case delays hello by more than timeoutMS, and the text limits the handshake of a minPoolSize connection to that",
        clients: &[Which::Pooled],
        timeout_by_chance: false,
        editions: EITHER,
    },
    Entry {
        file: "csot/runCursorCommand",
        cases: &[
            "Non-tailable cursor iteration timeoutMS is refreshed for getMore if timeoutMode is iteration - failure",
            "Tailable cursor iteration timeoutMS is refreshed for getMore - failure",
        ],
        reason: "the case expects a timeout, but delays getMore by less than its timeoutMS",
        clients: BOTH,
        timeout_by_chance: true,
        editions: EITHER,
    },
    Entry {
        file: "read_write_concern/write-concern-errors/mapReduce",
        cases: &["mapReduce with an output collection reports a writeConcernError"],
        reason: "`mapReduce` is deprecated and has no method, and `run_command` returns the reply as it is",
        clients: BOTH,
        timeout_by_chance: false,
        editions: FETCHED,
    },
    Entry {
        file: "csot/runCursorCommand",
        cases: &["Tailable cursor awaitData iteration timeoutMS is refreshed for getMore - failure"],
        reason: "the case expects a timeout, but has no timeoutMS",
        clients: BOTH,
        timeout_by_chance: false,
        editions: EITHER,
    },
    Entry {
        file: "retryable_reads/unified/gridfs-download",
        cases: &[
            "Download fails on first attempt",
            "Download fails on second attempt",
            "Download succeeds on first attempt",
            "Download succeeds on second attempt",
        ],
        reason: FILTER_BY_EQ,
        clients: BOTH,
        timeout_by_chance: false,
        editions: FETCHED,
    },
    Entry {
        file: "retryable_reads/unified/gridfs-download-serverErrors",
        cases: &[
            "Download fails after NotWritablePrimary when retryReads is false",
            "Download fails after two NotWritablePrimary errors",
            "Download succeeds after HostNotFound",
            "Download succeeds after HostUnreachable",
            "Download succeeds after InterruptedAtShutdown",
            "Download succeeds after InterruptedDueToReplStateChange",
            "Download succeeds after NetworkTimeout",
            "Download succeeds after NotPrimaryNoSecondaryOk",
            "Download succeeds after NotPrimaryOrSecondary",
            "Download succeeds after NotWritablePrimary",
            "Download succeeds after PrimarySteppedDown",
            "Download succeeds after ShutdownInProgress",
            "Download succeeds after SocketException",
        ],
        reason: FILTER_BY_EQ,
        clients: BOTH,
        timeout_by_chance: false,
        editions: FETCHED,
    },
    Entry {
        file: "transactions/unified/mongos-recovery-token",
        cases: &["commitTransaction explicit retries include recoveryToken"],
        reason: "the server behind the runner's load balancer is not a mongos, and gives no recoveryToken",
        clients: BOTH,
        timeout_by_chance: false,
        editions: EITHER,
    },
    single(
        "client-backpressure/backpressure-connection-checkin",
        &["overload error retry attempts return connections to the pool"],
        CHECKS,
    ),
    newer(
        "discovery_and_monitoring/unified/backpressure-network-error-fail-replicaset",
        &["apply backpressure on network connection errors during connection establishment"],
        OPENED_BY_A_CHECK,
    ),
    newer(
        "discovery_and_monitoring/unified/backpressure-network-error-fail-single",
        &["apply backpressure on network connection errors during connection establishment"],
        OPENED_BY_A_CHECK,
    ),
    newer(
        "discovery_and_monitoring/unified/backpressure-network-timeout-fail-replicaset",
        &["apply backpressure on network timeout error during connection establishment"],
        OPENED_BY_A_CHECK,
    ),
    newer(
        "discovery_and_monitoring/unified/backpressure-network-timeout-fail-single",
        &["apply backpressure on network timeout error during connection establishment"],
        OPENED_BY_A_CHECK,
    ),
    newer(
        "discovery_and_monitoring/unified/backpressure-server-description-unchanged-on-min-pool-size-population-error",
        &["the server description is not changed on handshake error during minPoolSize population"],
        MONITORS,
    ),
    newer(
        "discovery_and_monitoring/unified/pool-clear-application-error",
        &["Pool is cleared before application connection is checked into the pool"],
        CHECKS,
    ),
    newer(
        "discovery_and_monitoring/unified/pool-clear-checkout-error",
        &["Pool is cleared before connection is closed (authentication error)"],
        FAILED_IN_A_CHECK,
    ),
    newer(
        "discovery_and_monitoring/unified/pool-clear-min-pool-size-error",
        &[
            "Pool is cleared on authentication error during minPoolSize population",
            "Pool is not cleared on handshake error during minPoolSize population",
        ],
        MONITORS,
    ),
    single("discovery_and_monitoring/unified/find-shutdown-error", &["Concurrent shutdown error on find"], ONE_BY_ONE),
    single(
        "discovery_and_monitoring/unified/insert-shutdown-error",
        &["Concurrent shutdown error on insert"],
        ONE_BY_ONE,
    ),
    single("discovery_and_monitoring/unified/hello-command-error", &["Command error on Monitor handshake"], TRY_ONCE),
    single("discovery_and_monitoring/unified/hello-command-error", &["Command error on Monitor check"], MONITORS),
    single("discovery_and_monitoring/unified/hello-network-error", &["Network error on Monitor handshake"], TRY_ONCE),
    single("discovery_and_monitoring/unified/hello-network-error", &["Network error on Monitor check"], MONITORS),
    single("discovery_and_monitoring/unified/hello-timeout", &["Network timeout on Monitor handshake"], TRY_ONCE),
    single("discovery_and_monitoring/unified/hello-timeout", &["Network timeout on Monitor check"], MONITORS),
    single(
        "discovery_and_monitoring/unified/interruptInUse-pool-clear",
        &[
            "Connection pool clear uses interruptInUseConnections=true after monitor timeout",
            "Error returned from connection pool clear with interruptInUseConnections=true is retryable",
            "Error returned from connection pool clear with interruptInUseConnections=true is retryable for write",
        ],
        MONITORS,
    ),
    single(
        "discovery_and_monitoring/unified/minPoolSize-error",
        &["Server error on minPoolSize background creation"],
        MONITORS,
    ),
    single(
        "discovery_and_monitoring/unified/serverMonitoringMode",
        &[
            "connect with serverMonitoringMode=auto >=4.4",
            "connect with serverMonitoringMode=stream >=4.4",
            "connect with serverMonitoringMode=poll",
        ],
        MONITORS,
    ),
    Entry {
        file: "load_balancer/cursors",
        cases: &[
            "pinned connections are returned after an network error during getMore",
            "pinned connections are returned to the pool after a non-network error on getMore",
        ],
        reason: "PyMongo's copy has the opposite of the specification, which keeps the connection until the cursor is closed",
        clients: BOTH,
        timeout_by_chance: false,
        editions: &[Edition::Fetched],
    },
    single(
        "retryable_reads/unified/handshakeError",
        handshakes![
            "client.listDatabases",
            "client.listDatabaseNames",
            "client.createChangeStream",
            "database.aggregate",
            "database.listCollections",
            "database.listCollectionNames",
            "database.createChangeStream",
            "collection.aggregate",
            "collection.countDocuments",
            "collection.estimatedDocumentCount",
            "collection.distinct",
            "collection.find",
            "collection.findOne",
            "collection.listIndexes",
            "collection.listIndexNames",
            "collection.createChangeStream",
        ],
        CHECKS,
    ),
    single(
        "retryable_writes/unified/handshakeError",
        handshakes![
            "collection.insertOne",
            "collection.insertMany",
            "collection.deleteOne",
            "collection.replaceOne",
            "collection.updateOne",
            "collection.findOneAndDelete",
            "collection.findOneAndReplace",
            "collection.findOneAndUpdate",
            "collection.bulkWrite",
        ],
        CHECKS,
    ),
    single(
        "server_selection_logging/operation-id",
        &["Failed bulkWrite operation: log messages have operationIds"],
        MONITORS,
    ),
    single("server_selection_logging/standalone", &["Failure due to unreachable server"], TRY_ONCE),
    single(
        "unified-test-format/valid-pass/entity-client-cmap-events",
        &["events are captured during an operation"],
        CHECKS,
    ),
    single(
        "unified-test-format/valid-pass/expectedEventsForClient-eventType",
        &["eventType can be set to command and cmap", "eventType defaults to command if unset"],
        CHECKS,
    ),
];

/// The features that wharf or the runner lacks, in the words of `Stop::Lacks`, with the reasons.
const LACKS: &[(&str, &str)] = &[("a monitor, which learns of another primary without an operation", MONITORS)];

/// Describes a missing feature and why it is missing. Returns `None` if the feature is not listed.
pub fn lack(what: &str) -> Option<String> {
    let (_, reason) = LACKS.iter().find(|(listed, _)| *listed == what)?;
    Some(format!("needs {what}: {reason}"))
}

/// Returns all features that are listed as missing.
pub fn lacks() -> impl Iterator<Item = &'static str> {
    LACKS.iter().map(|(what, _)| *what)
}
