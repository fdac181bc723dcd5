//! Runs the pool on simulated machines with up to 256 cores. The simulator is the `scale` package in this repository.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use crate::Failure;
use crate::cores::{REPOSITORY, built, succeeded};

/// Builds the simulator, whose pool uses the simulated machine's memory, and runs it with the arguments.
pub fn run(arguments: &[OsString]) -> Result<(), Failure> {
    let target = fs::canonicalize(REPOSITORY)?.join("target/simulated");
    let simulator = built(&["build", "--release", "--package", "wharf-scale"], "--cfg simulated", &target)?;
    succeeded("the simulation", Command::new(&simulator).args(arguments).status()?)
}
