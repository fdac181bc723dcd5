//! Runs a target on one mutation after another.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use crate::Target;
use crate::mutation::{Random, mutate};

/// The limits of a campaign, which stops at the first limit that it reaches.
#[derive(Debug, Clone, Copy)]
pub struct Bound {
    /// The maximum number of inputs.
    pub inputs: u64,
    /// The latest time at which the campaign stops.
    pub deadline: Instant,
}

/// The counts of inputs in a campaign without a finding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of accepted inputs.
    pub accepted: u64,
    /// The number of refused inputs.
    pub refused: u64,
}

/// An input that violates a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The input.
    pub input: Vec<u8>,
    /// The panic's message.
    pub message: String,
}

/// Runs the target on one input.
///
/// # Errors
///
/// Returns a [`Finding`] if the target panics.
pub fn try_input(target: &Target, input: &[u8]) -> Result<bool, Finding> {
    panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)))
        .map_err(|panic| Finding { input: input.to_vec(), message: message(&*panic) })
}

/// Runs the target on mutations of its seeds. `seed` determines the mutations.
///
/// # Errors
///
/// Returns the first [`Finding`].
pub fn run(target: &Target, seed: u64, bound: Bound) -> Result<Tally, Finding> {
    let seeds = (target.seeds)();
    let mut random = Random::new(seed);
    let mut tally = Tally::default();
    for _ in 0..bound.inputs {
        if Instant::now() >= bound.deadline {
            break;
        }
        let mut input = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        // Most inputs get only a few changes, but some get up to eight.
        let most = 1 << random.below(4);
        let changes = 1 + random.below(most);
        for _ in 0..changes {
            mutate(&mut input, other, target.words, &mut random);
        }
        if random.below(4) > 0 {
            (target.mend)(&mut input);
        }
        match try_input(target, &input)? {
            true => tally.accepted += 1,
            false => tally.refused += 1,
        }
    }
    Ok(tally)
}

/// Returns the inputs in `regressions/<target>/`, with their files.
///
/// # Errors
///
/// Returns the operating system's error if reading fails.
pub fn regressions(target: &Target) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = folder(target);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let input = fs::read(&path)?;
        found.push((path, input));
    }
    Ok(found)
}

/// Writes an input to `regressions/<target>/` and returns its file.
///
/// # Errors
///
/// Returns the operating system's error if writing fails.
pub fn keep(target: &Target, input: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(folder(target))?;
    // The file is named after the input's hash (FNV-1a), so that the same input is not kept twice.
    let hash = input
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let path = folder(target).join(format!("{hash:016x}.bin"));
    fs::write(&path, input)?;
    Ok(path)
}

fn folder(target: &Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}
