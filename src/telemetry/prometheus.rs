//! Pool metrics in the Prometheus text format.

use std::fmt::{self, Write};
use std::iter::once;

use super::readings::{METRICS, MetricKind, ReadingValue, readings};
use crate::pool::metrics::PoolMetrics;

/// The upper bounds of the buckets, in seconds.
const BOUNDS: [f64; 11] = [5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0];

/// Returns the metrics of pools, such as the result of [`Client::metrics`](crate::Client::metrics), in the Prometheus
/// text format (version 0.0.4). The `pool` label holds the pool's address.
///
/// The histograms are passed on as they are, in buckets from 50 microseconds to a second, so nothing is lost between
/// two scrapes.
#[must_use]
pub fn prometheus_text(pools: &[PoolMetrics]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(pools, &mut text);
    text
}

fn write(pools: &[PoolMetrics], text: &mut String) -> fmt::Result {
    METRICS.iter().try_for_each(|metric| {
        let all = pools.iter().flat_map(|pool| readings(pool).map(move |reading| (pool, reading)));
        let of_metric = all.filter(|(_, reading)| reading.metric == metric).map(|(pool, reading)| {
            let labels = once(("pool", &*pool.address)).chain(reading.label);
            (labels.collect(), reading.value)
        });
        write_metric(text, metric.name, metric.kind, metric.help, of_metric)
    })
}

/// Writes the description of a metric, and its readings with their labels.
pub(crate) fn write_metric<'r>(
    text: &mut String,
    name: &str,
    kind: MetricKind,
    help: &str,
    readings: impl Iterator<Item = (Vec<Label<'r>>, ReadingValue<'r>)>,
) -> fmt::Result {
    let kind = format!("{kind:?}").to_lowercase();
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")?;
    for (labels, value) in readings {
        let labels: Vec<_> = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", Escaped(value))).collect();
        let labels = labels.join(",");
        let times = match value {
            ReadingValue::Number(number) => {
                writeln!(text, "{name}{{{labels}}} {number}")?;
                continue;
            }
            ReadingValue::Times(times) => times,
        };
        for bound in BOUNDS {
            let count: u64 = times.buckets().filter(|(most, _)| most.as_secs_f64() <= bound).map(|(_, n)| n).sum();
            writeln!(text, "{name}_bucket{{{labels},le=\"{bound:?}\"}} {count}")?;
        }
        let (count, sum) = (times.count(), times.sum().as_secs_f64());
        writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}\n{name}_sum{{{labels}}} {sum}")?;
        writeln!(text, "{name}_count{{{labels}}} {count}")?;
    }
    Ok(())
}

/// The name and the value of a label.
type Label<'r> = (&'r str, &'r str);

/// Displays the value of a label, with special characters escaped.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|character| match character {
            '\\' => f.write_str("\\\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str("\\n"),
            other => f.write_char(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_a_label_is_escaped() {
        assert_eq!(Escaped("a\\b\"c\nd").to_string(), r#"a\\b\"c\nd"#);
    }
}
