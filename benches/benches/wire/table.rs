//! The table of all cases.

use std::time::{Duration, Instant};

use super::Case;
use super::counting::allocations;

/// The number of turns in which each case is measured. The result is the median. The turns of a case are far apart in
/// time, so a disturbance on the machine affects only a few of them.
const TURNS: usize = 7;

/// Measures each case for `slice` in every turn, and prints the costs of all cases.
pub fn print(cases: &mut [Case], slice: Duration) {
    let mut nanoseconds = vec![Vec::new(); cases.len()];
    let mut allocated = Vec::new();
    for turn in 0..TURNS {
        for (case, nanoseconds) in cases.iter_mut().zip(&mut nanoseconds) {
            if turn == 0 {
                allocated.push(allocations_of_one(case));
            }
            nanoseconds.push(measure(case, slice));
        }
    }
    println!("\n{:<26} {:>9} {:>12} {:>9} {:>6} {:>12}", "case", "bytes", "ns", "bytes/ns", "left", "allocations");
    for ((case, nanoseconds), allocated) in cases.iter().zip(&mut nanoseconds).zip(allocated) {
        nanoseconds.sort_by(f64::total_cmp);
        let median = nanoseconds[TURNS / 2];
        let rate = case.bytes as f64 / median;
        let left = case.left.map_or(String::new(), |left| format!("{:.0} %", 100.0 * left as f64 / case.bytes as f64));
        println!("{:<26} {:>9} {median:>12.1} {rate:>9.3} {left:>6} {allocated:>12.2}", case.name, case.bytes);
    }
}

/// Returns the number of allocations in one run, once the buffers have grown.
fn allocations_of_one(case: &mut Case) -> f64 {
    const RUNS: usize = 10;
    (case.run)();
    let (count, ()) = allocations(|| (0..RUNS).for_each(|_| (case.run)()));
    count as f64 / RUNS as f64
}

/// Returns the nanoseconds that one run takes.
fn measure(case: &mut Case, slice: Duration) -> f64 {
    // Each batch has enough runs to make the cost of reading the clock negligible.
    let started = Instant::now();
    (case.run)();
    let batch = (Duration::from_micros(50).as_nanos() / started.elapsed().as_nanos().max(1)).clamp(1, 10_000) as u32;
    let started = Instant::now();
    let mut runs = 0;
    while started.elapsed() < slice {
        (0..batch).for_each(|_| (case.run)());
        runs += batch;
    }
    started.elapsed().as_nanos() as f64 / f64::from(runs)
}
