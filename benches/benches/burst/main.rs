//! Bursts: the cost of a great many check-outs waiting for one connection, and the memory that remains afterwards.
//!
//! `cargo bench --bench burst` makes 100,000 and 400,000 check-outs wait, on wharf and on deadpool, and prints a table:
//!
//! | column | meaning |
//! | --- | --- |
//! | `poll` | the longest first poll, in microseconds: in CPU time of its thread, and by the clock |
//! | `waiter` | the peak memory, in bytes for each waiter, without its future |
//! | `future` | the bytes of a future |
//! | `step` | the longest step while the burst ends, in microseconds of CPU time of the thread |
//! | `left` | the memory that the pool keeps after the burst, in KiB |
//!
//! The check-outs are polled by hand, by one thread or by two at the same time. They end in several ways ([`End`]), and
//! each burst has a fresh pool. Each round yields its longest time, and the table shows the lowest of these: the pool's
//! own work recurs in each round, but most interference from the rest of the machine does not. In the row `nothing`, a
//! poll does nothing, so its times show only the noise of the machine.
//!
//! A filter such as `-- wharf/100000` selects the rows whose "subject/waiters/threads" contains it.
//! `cargo test --benches` runs a small burst of each kind.

mod burst;
mod subjects;
mod timing;

use std::env;
use std::time::Duration;

use wharf_testbed::counting::TotalAllocator;

use burst::{Burst, End};
use subjects::{Deadpool, Subject, Wharf};
use timing::Longest;

#[global_allocator]
static ALLOCATOR: TotalAllocator = TotalAllocator;

const ROUNDS: usize = 5;
const WAITERS: [usize; 2] = [100_000, 400_000];
const THREADS: [usize; 2] = [1, 2];

/// Runs a burst on a subject.
type Run = fn(usize, usize, End) -> Burst;

fn main() {
    let measures = env::args().any(|argument| argument == "--bench");
    let filter = env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let (waiters, rounds): (&[usize], _) = if measures { (&WAITERS, ROUNDS) } else { (&[1_000], 1) };
    let subjects: [(&str, Run); 2] = [(Wharf::NAME, burst::run::<Wharf>), (Deadpool::NAME, burst::run::<Deadpool>)];
    print_head();
    for &waiters in waiters {
        let nothing = repeated(rounds * End::ALL.len(), || Longest::of((0..waiters).map(|_| ())));
        print_polls(&format!("nothing/{waiters}/1"), &nothing);
        println!();
        for threads in THREADS {
            for (name, run) in subjects {
                let case = format!("{name}/{waiters}/{threads}");
                if filter.as_ref().is_none_or(|filter| case.contains(filter.as_str())) {
                    print_row(&case, waiters, &End::ALL.map(|end| repeated(rounds, || run(waiters, threads, end))));
                }
            }
        }
    }
}

fn repeated<T>(rounds: usize, run: impl Fn() -> T) -> Vec<T> {
    (0..rounds).map(|_| run()).collect()
}

fn print_head() {
    println!("\n{:<20}{:>20}{:>8}{:>8}  step, left:", "subject/waiters/", "poll", "waiter", "future");
    print!("{:<20}{:>10}{:>10}{:>8}{:>8}", "threads", "ran", "passed", "", "");
    ["served", "cancelled", "in reverse", "every second", "refused"].iter().for_each(|end| print!("{end:>18}"));
    println!();
}

fn print_polls(case: &str, longest: &[Longest]) {
    let [ran, passed] = [|longest: &Longest| longest.running, |longest: &Longest| longest.passed];
    print!("{case:<20}{:>10.1}{:>10.1}", lowest(longest.iter().map(ran)), lowest(longest.iter().map(passed)));
}

fn print_row(case: &str, waiters: usize, ends: &[Vec<Burst>]) {
    let bursts = || ends.iter().flatten();
    print_polls(case, &bursts().map(|burst| burst.poll).collect::<Vec<_>>());
    let most = bursts().map(|burst| burst.peak).max().unwrap_or_default() as f64 / waiters as f64;
    print!("{most:>8.1}{:>8}", ends[0][0].future);
    for bursts in ends {
        let step = lowest(bursts.iter().map(|burst| burst.step.running));
        let left = bursts.iter().map(|burst| burst.left).max().unwrap_or_default() as f64 / 1024.0;
        print!("{step:>8.1}{left:>10.1}");
    }
    println!();
}

/// Returns the lowest time in microseconds.
fn lowest(times: impl Iterator<Item = Duration>) -> f64 {
    times.min().map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
}
