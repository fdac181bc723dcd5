//! The command line and the environment.

use std::env;
use std::fmt;
use std::path::PathBuf;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use wharf::{Endpoint, PoolOptions};

/// Puts a wharf connection pool under load, and reports how it did.
///
/// Many tasks share the pool. Each checks a connection out, runs one command on it (`ping`; every tenth time `find` by
/// _id) and checks it in again, over and over until the time is up.
///
/// The server is one that runs inside this process; with the environment variable MONGODB_URI set, the one at that
/// address (so far only mongodb://host:port, without users, TLS or options; nothing is written to it); with --mongod, a
/// real mongod that is started for the occasion and stopped afterwards (x86-64 Linux; it is downloaded the first time,
/// through python3 -m pip, and kept in .cache; WHARF_MONGOD names another).
///
/// Ctrl-C ends the run early and still reports.
#[derive(Debug, Parser)]
#[command(name = "quickstart")]
pub struct Arguments {
    /// How long to run, in seconds (1 to 86400)
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    pub seconds: u64,
    /// How many tasks use the pool at a time (1 to 1000000)
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1_000_000))]
    pub tasks: u32,
    /// maxPoolSize: how many connections may exist at a time (0: no limit; at most 1048575)
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_pool_size: u32,
    /// minPoolSize: how many connections are kept open at least (0 to maxPoolSize)
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_pool_size: u32,
    /// maxConnecting: how many connections may be in establishment at a time (1 to 1048575)
    #[arg(long, value_name = "N", default_value_t = 2)]
    max_connecting: u32,
    /// Write every pool event to this file, one JSON object a line; the file is overwritten
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Start a real mongod and use that, whatever MONGODB_URI says; the first time, it is downloaded
    #[arg(long)]
    mongod: bool,
}

/// Which server to use.
#[derive(Debug, PartialEq)]
pub enum Place {
    /// One in this process.
    Embedded,
    /// A mongod of its own.
    Mongod,
    /// The one at this address.
    Given(String),
}

impl Arguments {
    /// The pool's options, if they can work.
    pub fn pool_options(&self) -> Result<PoolOptions, Mistake> {
        let options = PoolOptions::default()
            .max_pool_size(self.max_pool_size)
            .min_pool_size(self.min_pool_size)
            .max_connecting(self.max_connecting);
        match options.validate() {
            Ok(()) => Ok(options),
            Err(invalid) => {
                let argument = match invalid.option {
                    "maxPoolSize" => "--max-pool-size",
                    "minPoolSize" => "--min-pool-size",
                    "maxConnecting" => "--max-connecting",
                    other => other,
                };
                Err(Mistake(format!("{argument}: {invalid}")))
            }
        }
    }

    /// Which server to use.
    pub fn place(&self) -> Result<Place, Mistake> {
        match env::var("MONGODB_URI") {
            _ if self.mongod => Ok(Place::Mongod),
            Ok(uri) if !uri.is_empty() => address(&uri).map(Place::Given),
            Ok(_) | Err(env::VarError::NotPresent) => Ok(Place::Embedded),
            Err(env::VarError::NotUnicode(_)) => Err(Mistake("MONGODB_URI is not Unicode".to_owned())),
        }
    }
}

/// The address in a connection string, which is all that may be in it so far.
///
/// What is refused is not repeated, as there may be a password in it.
fn address(uri: &str) -> Result<String, Mistake> {
    let refuse = |problem: &str| {
        Err(Mistake(format!("MONGODB_URI {problem}; so far this example supports mongodb://host:port and no more")))
    };
    let Some(rest) = uri.strip_prefix("mongodb://") else {
        return refuse("does not begin with mongodb://");
    };
    if rest.contains('@') {
        return refuse("has a user name");
    }
    if rest.contains('?') {
        return refuse("has options");
    }
    let address = rest.strip_suffix('/').unwrap_or(rest);
    if address.contains('/') {
        return refuse("has a database name, or the path of a socket");
    }
    if address.contains(',') {
        return refuse("has several hosts");
    }
    match Endpoint::new(address) {
        Ok(endpoint) => Ok(endpoint.address().to_owned()),
        Err(error) => refuse(&format!("cannot be used: {error}")),
    }
}

/// What the user can put right: an argument or a variable.
#[derive(Debug)]
pub struct Mistake(pub String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}
