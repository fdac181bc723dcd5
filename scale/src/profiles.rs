//! Real machines: their costs, and measurements on them.
//!
//! # How the costs were found
//!
//! | cost | `epyc-2` | `xeon-16` |
//! | --- | --- | --- |
//! | `transfer` | measured by the probe that perf/README.md describes | fitted to connections that two cores return elsewhere |
//! | `update`, `spin` | measured by the same probe | usual values |
//! | `window` | derived from the instructions in flight, see below | none, see below |
//! | `driver`, `batch` | measured, see below | usual values |
//! | `call`, `awake` | measured: a system call, and half of a round trip between two threads that sleep | usual values |
//! | `clock` | a reading of the time stamp counter, as in the probe | estimated, see below |
//! | `step` | fitted to the hits of one core | the same |
//! | `poll` | fitted to the yields of one core; agrees with tasks that only yield, without a pool | fitted to the same |
//! | `second`, `third`, `load`, `store`, `memory` | usual values of such processors | the same |
//! | `across` | does not occur: one socket | a usual value |
//!
//! The `window` of `epyc-2` is the time for the 448 instructions that the core can have in flight, at the rate of 18
//! per nanosecond that the probe measured. On `xeon-16`, the case that `transfer` is fitted to also fits without a
//! window, because a load waits for an earlier locked instruction on that machine. This was not measured.
//!
//! On tokio, a task that only yields takes 370 ns longer when it is alone than when it is one of 64. Of this time,
//! `driver` is the part spent on the system call and the clock, and `batch` is the rest.
//!
//! The `clock` of `xeon-16` is estimated: a subscriber, which makes the pool read the clock, costs about three times as
//! much on that machine.
//!
//! One of the runtime's constants is also a cost: how many cache lines a poll of the driver moves. This number is
//! fitted to the `yield` case on two cores of `epyc-2`, and is used for both machines.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cases::Case;
use crate::costs::Costs;

/// A real machine.
#[derive(Debug)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// Its description.
    pub what: &'static str,
    /// Its costs.
    pub costs: Costs,
    /// The measurements: for each case, millions of operations a second on 1, 2, 4 … cores.
    measured: &'static [(Case, &'static [f64])],
}

/// The machines. A simulation that does not name a machine uses the costs of the first machine.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "xeon-16",
        what: "a virtual machine with 16 cores of an Intel Xeon, 2026-11-22",
        costs: Costs::XEON,
        // The saturated cases are left out, because they were measured with an earlier wait list.
        measured: &[
            (Case::Hit, &[25.2, 52.9, 101.0, 198.0, 379.0]),
            (Case::Yield, &[6.4, 9.9, 18.9, 37.2, 56.2]),
            (Case::Elsewhere, &[21.1, 11.1, 18.1, 37.1, 46.7]),
        ],
    },
    Profile {
        name: "epyc-2",
        what: "a virtual machine with 2 cores of an AMD EPYC (Zen 5), on its quick level, 2026-11-24",
        costs: Costs::EPYC,
        measured: &[
            (Case::Hit, &[65.1, 127.9]),
            (Case::Yield, &[14.8, 26.4]),
            (Case::Saturated10, &[5.2, 6.7]),
            (Case::Saturated100, &[6.1, 8.5]),
            (Case::Elsewhere, &[57.9, 47.2]),
        ],
    },
];

/// Measured throughputs: for each case, millions of operations a second by the number of cores.
pub type Measured = Vec<(Case, BTreeMap<usize, f64>)>;

impl Profile {
    /// Returns the machine with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// Returns the measurements.
    pub fn measured(&self) -> Measured {
        let by_cores =
            |figures: &[f64]| figures.iter().enumerate().map(|(power, &figure)| (1 << power, figure)).collect();
        self.measured.iter().map(|&(case, figures)| (case, by_cores(figures))).collect()
    }
}

/// Reads the measurements for wharf from the file that the benchmark's `cores` series writes.
///
/// # Errors
///
/// Returns a description of the error.
pub fn read(text: &str) -> Result<Measured, String> {
    let file: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let rows = file["rows"].as_array().ok_or("there are no rows")?;
    let mut measured = Measured::new();
    for row in rows.iter().filter(|row| row["what"] == "million per second") {
        let place = row["case"].as_str().and_then(|name| name.rsplit_once('/'));
        let (name, cores) = place.ok_or("a row has no case with a number of cores")?;
        let (Some(case), Ok(cores)) = (Case::ALL.iter().find(|case| case.name() == name), cores.parse()) else {
            continue;
        };
        let Some(figure) = row["median"]["wharf"].as_f64() else { continue };
        match measured.iter_mut().find(|(of, _)| of == case) {
            Some((_, figures)) => drop(figures.insert(cores, figure)),
            None => measured.push((*case, BTreeMap::from([(cores, figure)]))),
        }
    }
    if measured.is_empty() { Err("it has no figures of wharf".to_owned()) } else { Ok(measured) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_the_benchmark_is_read() {
        let row = |case: &str, what: &str, median: f64| serde_json::json!({ "case": case, "what": what, "median": { "wharf": median, "floor": 1.0 } });
        let rows = [
            row("saturated/1000-on-10/1", "ns per operation", 200.0),
            row("saturated/1000-on-10/1", "million per second", 5.0),
            row("saturated/1000-on-10/2", "million per second", 6.0),
            row("hit/1", "million per second", 60.0),
            row("of another benchmark/1", "million per second", 7.0),
        ];
        let measured = read(&serde_json::json!({ "rows": rows }).to_string()).unwrap();
        let expected =
            [(Case::Saturated10, BTreeMap::from([(1, 5.0), (2, 6.0)])), (Case::Hit, BTreeMap::from([(1, 60.0)]))];
        assert_eq!(measured, expected);
        assert!(read("{\"rows\": []}").unwrap_err().contains("no figures"));
        assert!(read("[]").is_err() && read("no JSON").is_err());
    }
}
