//! The claims about wharf, and whether the measurements support them.

use std::fmt;

use crate::arguments::Comparison;
use crate::comparison::Measurements;
use crate::report::{COLD_OPENED, COLD_TIME, CPU, Metric, P99, THROUGHPUT};
use crate::statistics::median;
use crate::subjects::Kind;

/// How much worse than the floor wharf may be.
const TOLERANCE: f64 = 0.05;

/// A claim about a figure, the measured figure, and whether the claim holds.
pub struct Claim {
    text: String,
    found: String,
    /// `None` if it was not measured.
    pub holds: Option<bool>,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "was not measured",
        };
        write!(f, "{verdict:<17} {} {}", self.text, self.found)
    }
}

/// The bound for a ratio.
#[derive(Clone, Copy)]
pub enum Limit {
    Below(f64),
    AtMost(f64),
    AtLeast(f64),
}

/// Judges the claims by the medians.
pub fn judge(arguments: &Comparison, measurements: &Measurements) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (Metric { name, value }, limit) in [
        (CPU, Limit::AtMost(1.0 + TOLERANCE)),
        (THROUGHPUT, Limit::AtLeast(1.0 - TOLERANCE)),
        (P99, Limit::AtMost(1.0 + TOLERANCE)),
    ] {
        let name = name.split(',').next().unwrap_or(name);
        for &tasks in &arguments.tasks {
            let ratio = median(&measurements.cells.ratios(tasks, value, Kind::Wharf, Kind::Floor));
            claims.push(limit.judge(format!("{name} with {tasks} tasks: wharf's is {limit} times the floor's"), ratio));
        }
    }
    if arguments.cold_tasks > 0 {
        for (text, value, limit) in [
            ("wharf's time until all are done is", COLD_TIME, Limit::Below(1.0)),
            ("the connections that wharf opens are", COLD_OPENED, Limit::AtMost(1.0)),
        ] {
            let ratios = measurements.cold_starts.ratios(arguments.cold_tasks, value, Kind::Wharf, Kind::Official);
            claims.push(limit.judge(
                format!("cold start on shared cores: {text} {limit} times the official driver's"),
                median(&ratios),
            ));
        }
    }
    claims
}

impl Limit {
    pub fn judge(self, text: String, ratio: Option<f64>) -> Claim {
        let holds = ratio.map(|ratio| match self {
            Self::Below(limit) => ratio < limit,
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
        });
        Claim { text, found: ratio.map_or_else(String::new, |ratio| format!("({ratio:.3})")), holds }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Below(limit) => write!(f, "below {limit}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}
