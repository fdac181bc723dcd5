//! What is claimed of wharf, and whether the measurements bear it out.

use std::fmt;

use crate::arguments::Comparison;
use crate::comparison::Measurements;
use crate::report::{COLD_OPENED, COLD_TIME, CPU, Metric, P99, THROUGHPUT};
use crate::statistics::median;
use crate::subjects::Kind;

/// How much worse than the floor wharf may be.
const TOLERANCE: f64 = 0.05;

/// One claim.
pub struct Claim {
    text: String,
    found: String,
    /// `None`: it was not measured.
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

/// A ratio's side of its limit that is as good as claimed.
#[derive(Clone, Copy)]
enum Limit {
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
            let ratio = median(&measurements.ratios(tasks, value, Kind::Wharf, Kind::Floor));
            claims.push(limit.judge(format!("{name} with {tasks} tasks: wharf's is {limit} times the floor's"), ratio));
        }
    }
    if arguments.cold_tasks > 0 {
        let cold = |value| Some((median(&measurements.cold(Kind::Wharf, value))?, official(measurements, value)?));
        let compare = |text: &str, values: Option<(f64, f64)>, holds: fn(f64, f64) -> bool| Claim {
            text: format!("cold start: {text}"),
            found: values.map_or_else(String::new, |(wharf, official)| format!("({wharf:.1} against {official:.1})")),
            holds: values.map(|(wharf, official)| holds(wharf, official)),
        };
        claims.push(compare("wharf is done before the official driver", cold(COLD_TIME), |wharf, other| wharf < other));
        claims.push(compare(
            "wharf opens no more connections than the official driver",
            cold(COLD_OPENED),
            |wharf, other| wharf <= other,
        ));
    }
    claims
}

fn official(measurements: &Measurements, value: fn(&crate::cold_start::ColdResult) -> f64) -> Option<f64> {
    median(&measurements.cold(Kind::Official, value))
}

impl Limit {
    fn judge(self, text: String, ratio: Option<f64>) -> Claim {
        let holds = ratio.map(|ratio| match self {
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
        });
        Claim { text, found: ratio.map_or_else(String::new, |ratio| format!("({ratio:.3})")), holds }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}
