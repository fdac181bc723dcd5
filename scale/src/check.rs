//! Compares simulated figures with measured ones.

use std::fmt::Write;

use crate::cases::Case;
use crate::costs::Costs;
use crate::designs::wharf::Wharf;
use crate::machine::Plan;
use crate::profiles::Measured;
use crate::report::Figure;

/// The tolerance for figures on few cores.
pub const TOLERANCE: f64 = 0.25;
/// The largest number of cores that counts as few. On few cores, the throughput is determined by the work of one core
/// and the cost of a transfer. On more cores, it also depends on the placement of tasks and on the machine's
/// interconnect.
const FEW: usize = 2;

/// A simulated figure and the measured figure that it is compared with.
#[derive(Debug, Clone, Copy)]
pub struct Compared {
    /// The case.
    pub case: Case,
    /// The number of cores.
    pub cores: usize,
    /// The simulated throughput, in millions of operations a second.
    pub simulated: f64,
    /// The measured throughput, in the same unit.
    pub measured: f64,
}

impl Compared {
    /// Returns the simulated throughput divided by the measured one.
    pub fn ratio(&self) -> f64 {
        self.simulated / self.measured
    }

    /// Returns whether the ratio is close enough to 1. Always true for more than `FEW` cores.
    pub fn holds(&self) -> bool {
        self.cores > FEW || (1.0 - TOLERANCE..=1.0 + TOLERANCE).contains(&self.ratio())
    }
}

/// Simulates the measured cases.
pub fn compare(costs: Costs, seed: u64, measured: &Measured) -> Vec<Compared> {
    let figure = |case: Case, cores: usize| {
        let plan = Plan { cores, sockets: 1, costs, seed, steals: true, warm_up: 0, measured: 1 };
        let plan = case.timed(&plan, 1.0);
        let outcome = case.simulate::<Wharf>(&plan).expect("wharf takes part in all cases");
        Figure::of("wharf", &plan, &outcome).throughput / 1e6
    };
    let rows = measured.iter().flat_map(|(case, figures)| figures.iter().map(move |figure| (*case, figure)));
    rows.map(|(case, (&cores, &measured))| Compared { case, cores, simulated: figure(case, cores), measured }).collect()
}

/// Returns the table of ratios.
pub fn table(compared: &[Compared]) -> String {
    let mut text = String::from(
        "| case | cores | simulated, million/s | measured | ratio | |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for row in compared {
        let Compared { case, cores, simulated, measured } = row;
        let verdict = match (*cores > FEW, row.holds()) {
            (true, _) => "not held against it",
            (false, true) => "holds",
            (false, false) => "off",
        };
        let _ =
            writeln!(text, "| {case} | {cores} | {simulated:.3} | {measured:.3} | {:.2} | {verdict} |", row.ratio());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_cores_must_be_near_and_many_need_not() {
        let row = |cores, simulated| Compared { case: Case::Hit, cores, simulated, measured: 10.0 };
        assert!(row(1, 12.5).holds() && row(2, 7.5).holds() && row(4, 30.0).holds());
        assert!(!row(1, 12.6).holds() && !row(2, 7.4).holds());
        let text = table(&[row(1, 12.6), row(2, 7.5), row(4, 30.0)]);
        assert!(text.contains("| hit | 1 | 12.600 | 10.000 | 1.26 | off |"), "{text}");
        assert!(text.contains("| 0.75 | holds |") && text.contains("| 3.00 | not held against it |"), "{text}");
    }
}
