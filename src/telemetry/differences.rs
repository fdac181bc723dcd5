//! The times recorded between two readings of a histogram, for exporters whose histograms take single values.

use std::time::Duration;

use crate::pool::metrics::Histogram;

/// The counts of a histogram at the last reading.
#[derive(Debug, Default)]
pub(super) struct LastRead(Vec<(Duration, u64)>);

impl LastRead {
    /// For each bucket that has counted something since the last call, calls `record` with a time in seconds and the
    /// number of times to record it.
    ///
    /// The time is about the middle of the bucket, within 3.2 % of each time that the bucket counted. If more than
    /// `most` times are new, each bucket gets its share of `most`.
    pub(super) fn take(&mut self, now: &Histogram, most: u64, mut record: impl FnMut(f64, u64)) {
        let now: Vec<_> = now.buckets().collect();
        let mut before = std::mem::take(&mut self.0).into_iter().peekable();
        let new: Vec<_> = now
            .iter()
            .map(|(bound, count)| {
                while before.next_if(|(earlier, _)| earlier < bound).is_some() {}
                let counted = before.next_if(|(same, _)| same == bound).map_or(0, |(_, counted)| counted);
                (*bound, count.saturating_sub(counted))
            })
            .collect();
        self.0 = now;
        let total: u64 = new.iter().map(|(_, count)| count).sum();
        let (mut seen, mut given) = (0, 0);
        for (bound, count) in new {
            seen += count;
            // The running sum is rounded rather than each share, so that the shares of all buckets add up to exactly
            // `most`.
            let due = share(seen, total.min(most), total);
            if due > given {
                record(representative(bound), due - given);
            }
            given = due;
        }
    }
}

/// Returns `part · of / total`, rounded down, or 0 if the total is 0.
fn share(part: u64, of: u64, total: u64) -> u64 {
    let scaled = (u128::from(part) * u128::from(of)).checked_div(total.into()).unwrap_or(0);
    u64::try_from(scaled).expect("a share is at most the whole")
}

/// Returns the time in seconds that represents a bucket. A bucket's lower bound is 1/32 to 1/16 below its upper bound.
fn representative(bound: Duration) -> f64 {
    let nanos = bound.as_nanos() as f64;
    // Below 32 ns, each time has its own bucket.
    if nanos < 32.0 { nanos / 1e9 } else { nanos * (1.0 - 1.0 / 32.0) / 1e9 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::metrics::Recorder;

    fn taken(last: &mut LastRead, now: &Histogram, most: u64) -> Vec<(f64, u64)> {
        let mut taken = Vec::new();
        last.take(now, most, |seconds, times| taken.push((seconds, times)));
        taken
    }

    #[test]
    fn each_time_is_taken_once_and_nearly_as_it_was() {
        let (recorder, mut last) = (Recorder::default(), LastRead::default());
        assert!(taken(&mut last, &recorder.snapshot(), 100).is_empty());
        for nanos in [7, 31, 32, 1_000, 65_535, 65_536, 98_765_432_101] {
            recorder.record(nanos);
            recorder.record(nanos);
            let new = taken(&mut last, &recorder.snapshot(), 100);
            assert_eq!(new.iter().map(|(_, times)| times).sum::<u64>(), 2, "{nanos}");
            let error = new[0].0 / (nanos as f64 / 1e9) - 1.0;
            assert!(error.abs() <= 0.032, "{nanos} became {new:?}");
            assert!(taken(&mut last, &recorder.snapshot(), 100).is_empty());
        }
    }

    #[test]
    fn too_many_times_are_thinned_out_in_proportion() {
        let (recorder, mut last) = (Recorder::default(), LastRead::default());
        for _ in 0..3_000 {
            recorder.record(1_000);
            recorder.record(1_000);
            recorder.record(1_000_000);
        }
        let new = taken(&mut last, &recorder.snapshot(), 100);
        assert_eq!(new.iter().map(|(_, times)| *times).collect::<Vec<_>>(), [66, 34]);
        recorder.record(5);
        assert_eq!(taken(&mut last, &recorder.snapshot(), 100), [(5e-9, 1)]);
    }
}
