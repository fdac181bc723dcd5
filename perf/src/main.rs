//! The cost of a round trip through wharf on a real `mongod`, beside a hand-written loop over bare streams (the floor)
//! and the official driver.
//!
//! In the comparison each subject is a child process, so that the process's CPU time is the subject's alone. The server
//! runs on some cores and the clients on the others, except for the cold starts that are compared.

mod affinity;
mod arguments;
mod child;
mod claims;
mod cold_start;
mod comparison;
mod cores;
mod load;
mod observer;
mod report;
mod server;
mod statistics;
mod subjects;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Mode};

/// An error that ends the program early, printed for the user.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.mode {
        None => comparison::run(&arguments.comparison),
        Some(Mode::Profile(profile)) => child::profile(profile).map(|()| true),
        Some(Mode::Serve(serve)) => server::serve(serve, io::stdin()).map(|()| true),
        Some(Mode::Cores(machine)) => cores::run(machine).map(|()| true),
        Some(Mode::Cell(cell)) => child::cell(cell).map(|()| true),
        Some(Mode::ColdStart(cold)) => child::cold_start(cold).map(|()| true),
    };
    match outcome {
        Ok(all_hold) if all_hold || !arguments.comparison.check => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("roundtrips: {failure}");
            ExitCode::from(2)
        }
    }
}
