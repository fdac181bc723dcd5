//! Fuzz targets for everything in wharf that reads external input: from servers, users and DNS.
//!
//! A [`Target`] has a plain function of bytes, which panics if a property is violated, and seeds to start from. The
//! seeds are replies from a real server (`corpus/`) and values that the targets build from wharf's own types. Inputs
//! that once violated a property stay in `regressions/<target>/` and are replayed.
//!
//! # Three ways to run the targets
//!
//! This crate's tests, and therefore `cargo test --workspace`, replay the seeds and the regressions and try a few
//! thousand mutations for each target, on stable Rust without other tools. A seed number determines the mutations. A
//! run that fails prints this number, and `.ci/tests` derives it from the commit:
//!
//! ```sh
//! WHARF_FUZZ_SEED=7 cargo test -p wharf-fuzz
//! ```
//!
//! The binary runs the same campaign endlessly or for a number of seconds, for all targets in turn or only for the
//! named targets. It writes an input that violates a property to `regressions/<target>/`:
//!
//! ```sh
//! cargo run --release -p wharf-fuzz -- --seconds 600 op_msg compressed
//! ```
//!
//! The third way adds libFuzzer's coverage guidance, which needs a C++ compiler but only stable Rust. Only the address
//! sanitizer needs nightly (`cargo +nightly fuzz run --features libfuzzer coverage`), and wharf has next to no unsafe
//! code for it to check. An environment variable names the target, and the arguments are passed to libFuzzer:
//!
//! ```sh
//! cargo run --release -p wharf-fuzz -- --write-seeds target/corpus op_msg
//! export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
//!   -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
//!   -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1"
//! WHARF_FUZZ_TARGET=op_msg cargo run --release --target x86_64-unknown-linux-gnu --target-dir target/fuzz \
//!   -p wharf-fuzz --features libfuzzer --bin coverage -- target/corpus/op_msg -max_total_time=600
//! ```

pub mod campaign;
pub mod mutation;
pub mod seeds;
mod targets;

pub use targets::TARGETS;

/// A function in wharf that reads external input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The target's name, on the command line and in `regressions/`.
    pub name: &'static str,
    /// Reads the bytes and returns whether they were accepted. Panics if a property is violated.
    pub run: fn(&[u8]) -> bool,
    /// The inputs that mutations start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Repairs the part that a mutation most likely broke, such as a length at the start, so that not every mutated
    /// input is refused for that reason.
    pub mend: fn(&mut Vec<u8>),
    /// The words that mutations insert: names and numbers that mean something to this target.
    pub words: &'static [&'static [u8]],
}

impl Target {
    /// Returns the target with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}
