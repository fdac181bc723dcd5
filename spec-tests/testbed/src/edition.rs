//! The two editions of the official suites, and all differences between them.
//!
//! The tests fetch the copy in PyMongo's source package. Its files come from an earlier commit, and some are edited.
//! `WHARF_SUITES` may instead name a folder with the files from the specifications' newest commit, in the same
//! subfolders. [`DIFFERENCES`] lists all differences, with the reasons. The `suites` test compares the list with the
//! files if both editions are available.

use std::path::Path;
use std::sync::LazyLock;

use crate::provision;

/// An edition of the official suites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edition {
    /// The copy in PyMongo's source package.
    Fetched,
    /// The files from the specifications' newest commit.
    Newest,
}

/// Returns the folder with all suites that the tests run.
///
/// # Panics
///
/// Panics if the suites cannot be provided.
#[must_use]
pub fn root() -> &'static Path {
    // Providing the suites checks each of their files.
    static ROOT: LazyLock<&Path> = LazyLock::new(|| {
        let suite = provision::suite("connection_monitoring").expect("the official test suites");
        suite.leak().parent().expect("a suite is in a folder")
    });
    &ROOT
}

impl Edition {
    /// Returns the edition that the tests run.
    ///
    /// # Panics
    ///
    /// Panics if the suites cannot be provided.
    #[must_use]
    pub fn present() -> Self {
        // PyMongo's copy leaves this folder out.
        match root().join("index_management").is_dir() {
            true => Self::Newest,
            false => Self::Fetched,
        }
    }

    /// Returns the value for this edition.
    #[must_use]
    pub fn pick<T>(self, fetched: T, newest: T) -> T {
        match self {
            Self::Fetched => fetched,
            Self::Newest => newest,
        }
    }
}

/// How files differ between the editions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Both editions contain the files, with different contents.
    Changed,
    /// Only the fetched copy contains the files.
    OnlyFetched,
    /// Only the newest commit contains the files.
    OnlyNewest,
}

/// Files that differ between the editions.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// How they differ.
    pub kind: Kind,
    /// The prefix of the files' paths.
    pub path: &'static str,
    /// The difference, its reason, and how the tests handle it.
    pub reason: &'static str,
}

const fn changed(path: &'static str, reason: &'static str) -> Difference {
    Difference { kind: Kind::Changed, path, reason }
}

const fn only_fetched(path: &'static str, reason: &'static str) -> Difference {
    Difference { kind: Kind::OnlyFetched, path, reason }
}

const fn only_newest(path: &'static str, reason: &'static str) -> Difference {
    Difference { kind: Kind::OnlyNewest, path, reason }
}

/// PyMongo's runner closes a cursor after its `getMore` has failed.
const CURSORS: &str = "PyMongo's copy says the opposite in two cases: a cursor whose getMore has failed gives its pinned \
                       connection back before it is closed";
const PYMONGO: &str = "cases of PyMongo, which the newest commit does not have";
const LATER: &str = "a later commit added the files";
const LEFT_OUT: &str = "PyMongo's copy leaves out what PyMongo does not run";
const LEVEL: &str = "PyMongo's copy expects \"Waiting for suitable server\" at the level debug, the specification at info; the \
                     runner expects info in both";
const OBJECT_IDS: &str = "PyMongo's copy compares an identifier by `$eq`, which is the same";
const FAIL_POINT: &str = "PyMongo's copy limits the fail point to the case's client";
const ALLOWED_HOSTS: &str =
    "PyMongo's copy has cases of the option srvAllowedHostsSuffix, which the specification lacks";

/// All differences between the editions.
pub const DIFFERENCES: &[Difference] = &[
    changed(
        "auth/legacy/connection-string",
        "a later commit refuses credentials of MONGODB-AWS in connection strings; `uri/newer.rs` has these cases",
    ),
    changed("command_logging/redacted-commands", FAIL_POINT),
    changed(
        "connection_logging/connection-logging",
        "PyMongo's copy has the clear of the pool after the failed check-out, as an earlier commit; the runner moves it",
    ),
    changed(
        "connection_logging/connection-pool-options",
        "PyMongo's copy leaves out the cases of two deprecated options",
    ),
    changed(
        "connection_monitoring/pool-create-min-size-error",
        "PyMongo's copy closes the connection before it clears the pool, as an earlier commit; the runner swaps the two",
    ),
    changed(
        "discovery_and_monitoring/unified/serverMonitoringMode",
        "PyMongo's copy leaves the topology sharded-replicaset out of a requirement",
    ),
    changed("load_balancer/cursors", CURSORS),
    changed(
        "load_balancer/sdam-error-handling",
        "PyMongo's copy has the clear of the pool after the closed connection, as an earlier commit",
    ),
    changed("retryable_reads/unified/gridfs-download", OBJECT_IDS),
    changed("retryable_reads/unified/handshakeError", FAIL_POINT),
    changed("retryable_writes/unified/handshakeError", FAIL_POINT),
    changed("server_selection_logging/", LEVEL),
    changed("sessions/snapshot-sessions", "a later commit added the cases of snapshotTime"),
    changed(
        "transactions/unified/error-labels-blockConnection",
        "PyMongo's copy sets the fail point through a client without monitored commands",
    ),
    changed("uri_options/srv-options", ALLOWED_HOSTS),
    only_fetched("read_write_concern/write-concern-errors/", PYMONGO),
    only_fetched("srv_seedlist/replica-set/identical-hostnames-valid-", PYMONGO),
    only_fetched("srv_seedlist/replica-set/srvAllowedHostsSuffix-", ALLOWED_HOSTS),
    only_newest("bson_corpus/", LEFT_OUT),
    only_newest("causal_consistency/", LEFT_OUT),
    only_newest("collection_management/", LATER),
    only_newest(
        "connection_monitoring/wait-queue-fairness",
        "PyMongo's copy leaves the file out; `cmap/cases` has an equivalent",
    ),
    only_newest("crud/unified/", LATER),
    only_newest("csot/override-", LEFT_OUT),
    only_newest("discovery_and_monitoring/unified/", LATER),
    only_newest("gridfs/", LEFT_OUT),
    only_newest("index_management/", LEFT_OUT),
    only_newest("open_telemetry/", LATER),
    only_newest("unified-test-format/invalid/", LATER),
    only_newest(
        "uri_options/proxy-options",
        "PyMongo's copy leaves the file out, because PyMongo has no such options; `uri/newer.rs` has these cases",
    ),
];
