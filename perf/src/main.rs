//! The cost of a round trip through wharf on a real `mongod`, compared with a hand-written loop over bare streams (the
//! floor) and with the official driver.
//!
//! In the comparison, each subject is a child process, so that the process's CPU time belongs only to that subject. The
//! server runs on some cores and the clients on the others, except in the cold starts that the claims are about.

mod affinity;
mod alternation;
mod arguments;
mod charts;
mod child;
mod claims;
mod client;
mod cold_start;
mod comparison;
mod cores;
mod frugal;
mod item;
mod load;
mod observer;
mod overload;
mod report;
mod scale;
mod server;
mod soak;
mod statistics;
mod subjects;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use wharf_testbed::counting::CountingAllocator;

use arguments::{Arguments, Mode};

/// Counts all subjects' allocations alike, at a cost of about a nanosecond each.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// An error that ends the program early, printed for the user.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.mode {
        None => comparison::run(&arguments.comparison),
        Some(Mode::Profile(profile)) => child::profile(profile).map(|()| true),
        Some(Mode::Serve(serve)) => server::serve(serve, io::stdin()).map(|()| true),
        Some(Mode::Cores(machine)) => cores::run(machine).map(|()| true),
        Some(Mode::Scale(scale)) => scale::run(&scale.arguments).map(|()| true),
        Some(Mode::Report(report)) => charts::run(report).map(|()| true),
        Some(Mode::Cell(cell)) => child::cell(cell).map(|()| true),
        Some(Mode::Client(client)) => client::run(client),
        Some(Mode::Documents(documents)) => client::documents(documents).map(|()| true),
        Some(Mode::Failover(failover)) => client::failover(failover).map(|()| true),
        Some(Mode::Memory(memory)) => client::memory(memory).map(|()| true),
        Some(Mode::Overload(overload)) => overload::run(overload),
        Some(Mode::Frugal(frugal)) => frugal::serve(frugal.delay).map(|()| true),
        Some(Mode::Soak(soak)) => soak::run(soak),
        Some(Mode::Allocations(counted)) => child::allocations(counted).map(|()| true),
        Some(Mode::ColdStart(cold)) => child::cold_start(cold).map(|()| true),
    };
    let checks = match &arguments.mode {
        Some(Mode::Client(client)) => client.check,
        Some(Mode::Overload(overload)) => overload.check,
        Some(Mode::Soak(_)) => true,
        _ => arguments.comparison.check,
    };
    match outcome {
        Ok(all_hold) if all_hold || !checks => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("roundtrips: {failure}");
            ExitCode::from(2)
        }
    }
}
