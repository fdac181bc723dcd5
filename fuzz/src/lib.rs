//! Fuzz targets for everything in wharf that reads what others wrote: servers, people, the DNS.
//!
//! A [`Target`] is a plain function of bytes that panics where a property is violated, with seeds to start from. The
//! seeds are what a real server answered (`corpus/`) and what the targets make of wharf's own types; inputs that once
//! violated a property stay in `regressions/<target>/` and are replayed.
//!
//! # Three ways to run them
//!
//! The tests of this crate, and so `cargo test --workspace`, replay the seeds and the regressions and try some thousand
//! mutations for each target, on stable Rust with nothing else. The mutations follow from a number that is printed:
//!
//! ```sh
//! WHARF_FUZZ_SEED=7 cargo test -p wharf-fuzz
//! ```
//!
//! The same without an end, or with one in seconds, of all targets in turn or of those that are named. What violates a
//! property is written to `regressions/<target>/`:
//!
//! ```sh
//! cargo run --release -p wharf-fuzz -- --seconds 600 op_msg compressed
//! ```
//!
//! Guided by coverage, with libFuzzer, which needs a C++ compiler. Stable Rust can do this too; only the address
//! sanitizer needs nightly (`cargo +nightly fuzz run --features libfuzzer coverage`), and wharf has next to no unsafe
//! code for it to look at. The target is named by a variable; the arguments are libFuzzer's:
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

/// Something that reads what others wrote.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, on the command line and in `regressions/`.
    pub name: &'static str,
    /// Reads the bytes, and says whether they were accepted. Panics where a property is violated.
    pub run: fn(&[u8]) -> bool,
    /// What mutations start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Puts right what a mutation has most probably broken, such as a length before everything else, so that not all
    /// mutations end there.
    pub mend: fn(&mut Vec<u8>),
    /// What mutations put in: names and numbers that mean something to this target.
    pub words: &'static [&'static [u8]],
}

impl Target {
    /// The target of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}
