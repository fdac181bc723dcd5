//! Tries mutations for a given time; see the crate's documentation.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use wharf_fuzz::campaign::{self, Bound};
use wharf_fuzz::{TARGETS, Target};

const USAGE: &str = "wharf-fuzz [--seconds N] [--seed N] [--write-seeds FOLDER] [TARGET...]";

/// How many inputs are tried on a target before the next target's turn.
const TURN: u64 = 10_000;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(mistake) => {
            eprintln!("{mistake}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(folder) = &arguments.write_seeds {
        return match write_seeds(Path::new(folder), &arguments.targets) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{folder}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    try_mutations(&arguments)
}

fn try_mutations(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let deadline = started + arguments.time;
    let mut tried = vec![(0, 0); arguments.targets.len()];
    println!("seed {}", arguments.seed);
    let mut turn = 0;
    while Instant::now() < deadline {
        for (target, tried) in arguments.targets.iter().zip(&mut tried) {
            match campaign::run(target, arguments.seed.wrapping_add(turn), Bound { inputs: TURN, deadline }) {
                Ok(tally) => *tried = (tried.0 + tally.accepted, tried.1 + tally.refused),
                Err(finding) => {
                    println!("{}: {}", target.name, finding.message);
                    match campaign::keep(target, &finding.input) {
                        Ok(path) => println!("kept in {}", path.display()),
                        Err(error) => println!("cannot be kept ({error}): {:x?}", finding.input),
                    }
                    return ExitCode::FAILURE;
                }
            }
        }
        turn += 1;
    }
    for (target, (accepted, refused)) in arguments.targets.iter().zip(tried) {
        println!("{:<16} {accepted:>12} accepted {refused:>12} refused", target.name);
    }
    ExitCode::SUCCESS
}

fn write_seeds(folder: &Path, targets: &[&Target]) -> std::io::Result<()> {
    for target in targets {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(format!("{number}.bin")), seed)?;
        }
    }
    Ok(())
}

struct Arguments {
    time: Duration,
    seed: u64,
    write_seeds: Option<String>,
    targets: Vec<&'static Target>,
}

impl Arguments {
    fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A century means no limit.
        let century = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        let mut arguments = Self { time: century, seed: now.as_nanos() as u64, write_seeds: None, targets: Vec::new() };
        while let Some(argument) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{argument} needs a value"));
            let number = |text: String| text.parse().map_err(|_| format!("{text} is not a number"));
            match argument.as_str() {
                "--seconds" => arguments.time = Duration::from_secs(number(value()?)?),
                "--seed" => arguments.seed = number(value()?)?,
                "--write-seeds" => arguments.write_seeds = Some(value()?),
                name => {
                    let names = || TARGETS.map(|target| target.name).join(", ");
                    let target = Target::named(name);
                    arguments
                        .targets
                        .push(target.ok_or_else(|| format!("unknown target {name}, expected one of {}", names()))?);
                }
            }
        }
        if arguments.targets.is_empty() {
            arguments.targets = TARGETS.iter().collect();
        }
        Ok(arguments)
    }
}
