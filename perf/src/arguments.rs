//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::client;
use crate::overload;
use crate::soak;
use crate::subjects::Kind;

/// Compares the cost of a `ping` through wharf with a hand-written loop and with the official driver, on a real mongod.
///
/// Exits with 0 for any result unless --check is given, and with 2 if it cannot measure.
#[derive(Debug, Parser)]
#[command(name = "roundtrips", args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub mode: Option<Mode>,
    #[command(flatten)]
    pub comparison: Comparison,
}

#[derive(Debug, Subcommand)]
pub enum Mode {
    /// Runs one subject for a long time in this process, for a profiler.
    Profile(Profile),
    /// Starts a server, prints its address, and serves until standard input is closed.
    Serve(Serve),
    /// Builds the pool's benchmark and runs it on 1, 2, 4 … all cores of this machine. Needs no server.
    Cores(Cores),
    /// Simulates the pool on machines with up to 256 cores and 4 sockets. Needs no server. `scale --help` lists the
    /// options.
    #[command(disable_help_flag = true)]
    Scale(Scale),
    /// Compares wharf's client with its pool and with the official driver: commands, operations on one document, cursors,
    /// inserts in bulk, failover and memory.
    Client(client::Client),
    /// Compares pools under more load than they can serve, with and without refusing late check-outs. Needs no mongod.
    Overload(overload::Overload),
    /// Uses pools in every way at once for a long time, with clears, resizes, renewals and restarts, and counts what is
    /// left. Exits with 1 unless all counts are right.
    Soak(soak::Soak),
    /// Draws the pictures in BENCHMARKS.md from the figures in docs/pictures/data. Needs no server.
    Report(Report),
    /// Measures reads or writes of many documents. The comparison runs this.
    #[command(hide = true)]
    Documents(client::Documents),
    /// Keeps a client under load while its replica set loses the primary. The comparison runs this.
    #[command(hide = true)]
    Failover(client::Failover),
    /// Measures the memory that idle clients use. The comparison runs this.
    #[command(hide = true)]
    Memory(client::Memory),
    /// Answers hello and `ping` at the lowest possible cost or after a delay, until standard input is closed. The
    /// comparison runs this.
    #[command(hide = true)]
    Frugal(Delayed),
    /// Measures one subject under load. The comparison runs this.
    #[command(hide = true)]
    Cell(Cell),
    /// Counts the allocations of one subject's operations. The comparison runs this.
    #[command(hide = true)]
    Allocations(Allocations),
    /// Measures one subject's cold starts. The comparison runs this.
    #[command(hide = true)]
    ColdStart(ColdStart),
}

#[derive(Debug, Args)]
pub struct Comparison {
    /// Number of rounds. Every round measures everything, and medians are shown.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// How long each subject is measured in a round, over all of its turns, in seconds.
    #[arg(long, default_value = "2.5", value_parser = seconds)]
    pub seconds: Duration,
    /// How long a turn is measured, in seconds. The subjects take turns until each has had its time.
    #[arg(long, default_value = "0.1", value_parser = seconds)]
    pub turn: Duration,
    /// How long the load must run without opening a connection before the first turn, in seconds.
    #[arg(long, default_value = "0.5", value_parser = seconds)]
    pub warm_up: Duration,
    /// Numbers of tasks that share the connections.
    #[arg(long, value_delimiter = ',', default_value = "1,64,512,4096",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tasks: Vec<u32>,
    /// The subjects to measure.
    #[arg(long, value_delimiter = ',', value_enum, default_value = "floor,wharf,official")]
    pub subjects: Vec<Kind>,
    /// Number of tasks that use a fresh pool in the cold start; 0 skips the cold start.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub cold_tasks: u32,
    /// Number of cold starts for each subject in a round.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub cold_starts: u32,
    /// Appends each measurement to this file, as a line of JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Exits with 1 unless every claim holds.
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub machine: Machine,
}

/// Where server and clients run.
#[derive(Debug, Clone, Args)]
pub struct Machine {
    /// A running server as host:port, without authentication or TLS. By default one is started.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub uri: Option<String>,
    /// Number of cores for the clients; the server gets the others. Defaults to half of them.
    #[arg(long, value_name = "CORES", conflicts_with = "no_pin", value_parser = clap::value_parser!(u32).range(1..))]
    pub client_cores: Option<u32>,
    /// Lets the operating system place server and clients. The numbers then say more about the scheduler than about the
    /// subjects.
    #[arg(long)]
    pub no_pin: bool,
}

#[derive(Debug, Args)]
pub struct Profile {
    /// The subject to run.
    #[arg(long, value_enum, default_value = "wharf")]
    pub subject: Kind,
    /// Number of tasks that share the connections.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub tasks: u32,
    /// Number of connections that they share.
    #[arg(long, default_value_t = CONNECTIONS, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub connections: u32,
    /// How long the subject runs, in seconds.
    #[arg(long, default_value = "20", value_parser = seconds, conflicts_with = "operations")]
    pub seconds: Duration,
    /// Number of operations, instead of a duration; divided evenly among the tasks, at least one each.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    #[command(flatten)]
    pub machine: Machine,
}

#[derive(Debug, Args)]
pub struct Serve {
    #[command(flatten)]
    pub machine: Machine,
}

#[derive(Debug, Args)]
pub struct Cores {
    /// The length of the benchmark in seconds, which is passed on as WHARF_BENCH_SECONDS. With 240, each number of
    /// cores takes about 50 seconds.
    #[arg(long, default_value = "240", value_parser = benchmark_seconds)]
    pub seconds: Duration,
    /// Measures wharf with the wait list on event-listener.
    #[arg(long)]
    pub event_listener_queue: bool,
    /// Also writes the result to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Copies the binary to this file instead of running it, for a machine without Rust.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "json"])]
    pub build_only: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Scale {
    /// The simulator's own arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Report {
    /// Where the pictures go. By default docs/pictures.
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,
    /// Draws the figures in this result file from `cargo bench --bench pool`, such as target/bench-ratios.json, instead
    /// of those in docs/pictures/data.
    #[arg(long, value_name = "FILE", requires = "output")]
    pub measured: Option<PathBuf>,
}

/// The arguments to every child process.
#[derive(Debug, Args)]
pub struct Child {
    #[arg(long, value_enum)]
    pub subject: Kind,
    #[arg(long)]
    pub server: String,
    #[arg(long)]
    pub workers: usize,
    #[arg(long)]
    pub tasks: u32,
    #[arg(long)]
    pub connections: u32,
}

#[derive(Debug, Args)]
pub struct Cell {
    #[command(flatten)]
    pub child: Child,
    #[arg(long, value_parser = seconds)]
    pub turn: Duration,
    #[arg(long, value_parser = seconds)]
    pub warm_up: Duration,
}

#[derive(Debug, Args)]
pub struct ColdStart {
    #[command(flatten)]
    pub child: Child,
}

#[derive(Debug, Args)]
pub struct Allocations {
    #[command(flatten)]
    pub child: Child,
}

#[derive(Debug, Args)]
pub struct Delayed {
    /// How long each `ping` takes, in seconds.
    #[arg(long, value_parser = seconds)]
    pub delay: Option<Duration>,
}

/// The size of the compared pools.
pub const CONNECTIONS: u32 = 100;

/// Parses a duration. An hour is more than enough, and well within the clock's range.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3_600.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("must be a number of seconds above 0 and up to 3600".to_owned()),
    }
}

/// Parses the length of a benchmark. It must be at least a second.
fn benchmark_seconds(text: &str) -> Result<Duration, String> {
    seconds(text)
        .ok()
        .filter(|length| *length >= Duration::from_secs(1))
        .ok_or_else(|| "must be a number of seconds from 1 to 3600".to_owned())
}

/// Parses an address that every subject can use. The floor supports neither credentials nor options.
fn address(text: &str) -> Result<String, String> {
    let refuse = || Err("must be host:port or mongodb://host:port, with nothing else".to_owned());
    let bare = text.strip_prefix("mongodb://").unwrap_or(text);
    let bare = bare.strip_suffix('/').unwrap_or(bare);
    match bare.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !host.contains(['@', '/', ',', '?']) => match port.parse::<u16>() {
            Ok(port) if port != 0 => Ok(bare.to_owned()),
            _ => refuse(),
        },
        _ => refuse(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn address_is_a_host_and_a_port_only() {
        for accepted in ["127.0.0.1:1", "mongodb://127.0.0.1:1", "mongodb://127.0.0.1:1/"] {
            assert_eq!(address(accepted).as_deref(), Ok("127.0.0.1:1"));
        }
        for refused in
            ["", "host", "host:0", "host:65536", "user:password@host:1", "a:1,b:2", "mongodb://a:1/?tls=true"]
        {
            assert!(address(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn time_is_above_zero_and_within_an_hour() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for refused in ["0", "-1", "3601", "NaN", "inf", "soon"] {
            assert!(seconds(refused).is_err(), "{refused}");
            assert!(benchmark_seconds(refused).is_err(), "{refused}");
        }
        assert!(benchmark_seconds("0.5").is_err());
        assert_eq!(benchmark_seconds("1"), Ok(Duration::from_secs(1)));
    }
}
