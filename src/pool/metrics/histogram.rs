//! Histograms of times: snapshots for readers, and recorders for the pool.

use crate::pool::sync::statistics::{AtomicU64, Ordering, fence};
use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use histogram::Config;

/// The buckets: 16 between successive powers of two, up to 2^44 nanoseconds (4.9 hours).
///
/// From 32 ns upwards, the width of a bucket is at most a sixteenth of its lower bound. There are 656 buckets of 8
/// bytes each.
const BUCKETS: Config = match Config::new(4, 44) {
    Ok(config) => config,
    Err(_) => panic!("BUG: the buckets of the histograms are invalid"),
};

/// The longest time that has a bucket, in nanoseconds. Longer times are counted as this time.
const LONGEST: u64 = (1 << 44) - 1;

/// A snapshot of recorded times.
///
/// Each time is counted in a bucket. The width of a bucket is at most a sixteenth of its lower bound, so [`quantile`]
/// exceeds the true value by at most 6.25 %. Times below 32 ns are exact to the nanosecond, and times of more than 4.9
/// hours are counted as 4.9 hours. [`count`], [`sum`] and [`max`] are exact.
///
/// Histograms from several pools, or of several kinds of time, can be [merged](Self::merge), because all histograms
/// have the same buckets.
///
/// ```
/// use wharf::metrics::Histogram;
///
/// fn report(waits: &Histogram) -> String {
///     match (waits.quantile(0.5), waits.quantile(0.99), waits.max()) {
///         (Some(p50), Some(p99), Some(max)) => format!("{} waits: {p50:?} {p99:?} {max:?}", waits.count()),
///         _ => "no check-out waited".to_owned(),
///     }
/// }
/// assert_eq!(report(&Histogram::default()), "no check-out waited");
/// ```
///
/// [`quantile`]: Self::quantile
/// [`count`]: Self::count
/// [`sum`]: Self::sum
/// [`max`]: Self::max
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "super::stored::Stored", try_from = "super::stored::Stored")
)]
pub struct Histogram {
    /// `None` if nothing has been recorded.
    buckets: Option<histogram::Histogram>,
    count: u64,
    /// In nanoseconds.
    sum: u64,
    /// In nanoseconds.
    max: u64,
}

impl Histogram {
    /// Returns the number of recorded times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of the recorded times, exact to the nanosecond. If times are recorded while the snapshot is
    /// taken, the sum may include a few that [`count`](Self::count) does not.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// Returns the longest recorded time, exact to the nanosecond, or `None` if there is none.
    #[must_use]
    pub fn max(&self) -> Option<Duration> {
        (self.count > 0).then(|| Duration::from_nanos(self.max))
    }

    /// Returns the mean of the recorded times, or `None` if nothing has been recorded.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        self.sum.checked_div(self.count).map(Duration::from_nanos)
    }

    /// Returns a quantile of the recorded times: for example, 0.5 gives the median, and 0.99 the 99th percentile.
    /// Returns `None` if nothing has been recorded.
    ///
    /// The result is at least the true value, and exceeds it by at most 6.25 %. A `quantile` outside the range 0 to 1
    /// is replaced by the nearer bound, and NaN by 1.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let quantile = if quantile.is_nan() { 1.0 } else { quantile.clamp(0.0, 1.0) };
        let bucket = self.buckets.as_ref()?.quantile_bucket(quantile).ok()??;
        // In the last bucket, the longest recorded time is more precise than the end of the bucket.
        Some(Duration::from_nanos(if bucket.end() >= self.max || bucket.end() == LONGEST {
            self.max
        } else {
            bucket.end()
        }))
    }

    /// Returns the histogram with this sum in place of its own. The caller has computed the sum separately, in
    /// nanoseconds.
    pub(crate) fn with_sum(self, sum: u64) -> Self {
        Self { sum, ..self }
    }

    /// Adds the times from another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
        match (&mut self.buckets, &other.buckets) {
            (_, None) => {}
            (None, Some(others)) => self.buckets = Some(others.clone()),
            (Some(buckets), Some(others)) => {
                buckets.checked_add_assign(others).expect("BUG: histograms with different buckets");
            }
        }
    }

    /// Returns the buckets that are not empty, shortest times first. Each item holds the longest time that a bucket
    /// covers, and how many recorded times the bucket contains.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let counted = self.buckets.iter().flat_map(histogram::Histogram::iter).filter(|bucket| bucket.count() > 0);
        counted.map(|bucket| (Duration::from_nanos(bucket.end()), bucket.count()))
    }
}

#[cfg(feature = "serde")]
impl Histogram {
    /// Returns the histogram with these totals. Each pair holds a time and the count of the bucket that contains this
    /// time.
    pub(super) fn of_parts(count: u64, sum: u64, max: u64, buckets: &[(u64, u64)]) -> Result<Self, &'static str> {
        let total = buckets.iter().try_fold(0_u64, |total, (_, times)| total.checked_add(*times));
        if total != Some(count) {
            return Err("a histogram whose buckets do not add up to its count");
        }
        // Leaves headroom for merging thousands of histograms.
        if count > 1 << 48 {
            return Err("a histogram with too many times");
        }
        if count == 0 {
            return Ok(Self::default());
        }
        let mut counted = histogram::Histogram::with_config(&BUCKETS);
        for (nanos, times) in buckets {
            counted.add((*nanos).min(LONGEST), *times).map_err(|_| "a histogram with too many times")?;
        }
        Ok(Self { buckets: Some(counted), count, sum, max })
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram")
            .field("count", &self.count)
            .field("mean", &self.mean())
            .field("p50", &self.quantile(0.5))
            .field("p99", &self.quantile(0.99))
            .field("max", &self.max())
            .finish()
    }
}

/// How many buckets are allocated together. They cover a range that spans a factor of sixteen.
const CHUNK: usize = 64;

/// Records times from any thread.
///
/// The default recorder is for times that are recorded rarely. It allocates about 200 bytes on first use, and 512 bytes
/// for each range of times that is in use. A range spans a factor of sixteen. All ranges together take 6 KiB. A
/// [frequent](Self::frequent) recorder allocates all ranges at its first use.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    recorded: OnceLock<Box<Recorded>>,
    is_frequent: bool,
}

/// The recorded times, on cache lines that are not shared with unrelated data.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Recorded {
    /// The buckets of [`BUCKETS`], in order. The end of the last chunk is unused.
    chunks: [OnceLock<Box<Chunk>>; BUCKETS.total_buckets().div_ceil(CHUNK)],
    sum: AtomicU64,
    max: AtomicU64,
}

#[derive(Debug)]
#[repr(align(64))]
struct Chunk([AtomicU64; CHUNK]);

impl Default for Chunk {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; CHUNK])
    }
}

impl Recorded {
    #[cold]
    fn whole() -> Box<Self> {
        Box::new(Self { chunks: std::array::from_fn(|_| OnceLock::from(Box::default())), ..Self::default() })
    }

    fn bucket(&self, nanos: u64) -> &AtomicU64 {
        let index = index_of(nanos.min(LONGEST));
        let chunk = self.chunks[index / CHUNK].get_or_init(Box::default);
        &chunk.0[index % CHUNK]
    }

    fn buckets(&self) -> histogram::Histogram {
        let mut counts = vec![0; BUCKETS.total_buckets()];
        for (counts, chunk) in counts.chunks_mut(CHUNK).zip(&self.chunks) {
            let Some(chunk) = chunk.get() else { continue };
            // Relaxed: the caller executes a fence afterwards.
            counts.iter_mut().zip(&chunk.0).for_each(|(count, bucket)| *count = bucket.load(Ordering::Relaxed));
        }
        let (grouping, range) = (BUCKETS.grouping_power(), BUCKETS.max_value_power());
        histogram::Histogram::from_buckets(grouping, range, counts).expect("BUG: the number of buckets")
    }
}

/// Returns the index of a time's bucket in [`BUCKETS`].
fn index_of(nanos: u64) -> usize {
    const GROUPING: u32 = BUCKETS.grouping_power() as u32;
    let power = nanos.checked_ilog2().unwrap_or(0);
    let index = match power.checked_sub(GROUPING) {
        // The shifted value consists of the highest bit and the four bits below it. Each additional shift adds sixteen
        // buckets.
        Some(shift) => (nanos >> shift) + (u64::from(shift) << GROUPING),
        None => nanos,
    };
    index as usize
}

impl Recorder {
    /// Returns a recorder for the times of check-outs that find a connection at once. It allocates at its first use,
    /// and never again.
    pub(crate) fn frequent() -> Self {
        Self { recorded: OnceLock::new(), is_frequent: true }
    }

    /// Records a time in nanoseconds.
    ///
    /// A reader that finds the time in a snapshot also sees everything that the calling thread did before.
    pub(crate) fn record(&self, nanos: u64) {
        // Relaxed: a statistic. The fence in `count` publishes the sum together with the bucket.
        self.recorded().sum.fetch_add(nanos, Ordering::Relaxed);
        self.count(nanos);
    }

    fn recorded(&self) -> &Recorded {
        self.recorded.get_or_init(|| if self.is_frequent { Recorded::whole() } else { Box::default() })
    }

    /// Like [`record`](Self::record), but the caller adds to the sum itself, before this call.
    pub(crate) fn count(&self, nanos: u64) {
        let recorded = self.recorded();
        let bucket = recorded.bucket(nanos);
        // Relaxed: a statistic. The fence below publishes the maximum together with the bucket.
        if nanos > recorded.max.load(Ordering::Relaxed) {
            recorded.max.fetch_max(nanos, Ordering::Relaxed);
        }
        // ORD: Release; pairs with the fence in `add_to`, through the bucket; publishes everything that came before.
        fence(Ordering::Release);
        // Relaxed: see the fence.
        bucket.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the recorded times to a snapshot. Afterwards the caller sees everything that happened before each of these
    /// times was recorded.
    pub(crate) fn add_to(&self, snapshot: &mut Histogram) {
        let Some(recorded) = self.recorded.get() else { return };
        let buckets = recorded.buckets();
        // ORD: Acquire; pairs with the fence in `record`.
        fence(Ordering::Acquire);
        let count = buckets.as_slice().iter().sum();
        // Relaxed: the fence covers these loads too. The sum and the maximum cover at least the times in the buckets.
        let (sum, max) = (recorded.sum.load(Ordering::Relaxed), recorded.max.load(Ordering::Relaxed));
        snapshot.merge(&Histogram { buckets: Some(buckets), count, sum, max });
    }

    /// Returns a snapshot; see [`add_to`](Self::add_to).
    pub(crate) fn snapshot(&self) -> Histogram {
        let mut snapshot = Histogram::default();
        self.add_to(&mut snapshot);
        snapshot
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(nanos: &[u64]) -> Histogram {
        let recorder = Recorder::default();
        nanos.iter().for_each(|nanos| recorder.record(*nanos));
        recorder.snapshot()
    }

    proptest! {
        #[test]
        fn quantile_exceeds_the_true_value_by_a_sixteenth_at_most(
            mut nanos in prop::collection::vec((0_u32..44).prop_flat_map(|power| 0..1_u64 << power), 1..200),
            quantile in 0.0_f64..=1.0,
        ) {
            let snapshot = of(&nanos);
            nanos.sort_unstable();
            let rank = ((quantile * nanos.len() as f64).ceil() as usize).clamp(1, nanos.len());
            let truth = nanos[rank - 1];
            let found = snapshot.quantile(quantile).unwrap().as_nanos() as u64;
            prop_assert!(truth <= found && found <= truth + truth / 16, "{truth} {found}");
        }

        #[test]
        fn count_sum_and_max_are_exact_and_survive_a_merge(
            here in prop::collection::vec(0..1_u64 << 50, 0..50),
            there in prop::collection::vec(0..1_u64 << 50, 0..50),
        ) {
            let mut merged = of(&here);
            merged.merge(&of(&there));
            let all: Vec<_> = here.into_iter().chain(there).collect();
            prop_assert_eq!(merged.count(), all.len() as u64);
            prop_assert_eq!(merged.sum(), Duration::from_nanos(all.iter().sum()));
            prop_assert_eq!(merged.max(), all.iter().max().map(|most| Duration::from_nanos(*most)));
            prop_assert_eq!(merged.buckets().map(|(_, count)| count).sum::<u64>(), merged.count());
            prop_assert!(merged.buckets().map(|(bound, _)| bound).is_sorted());
            prop_assert_eq!(&merged, &of(&all));
        }
    }

    #[test]
    fn each_time_counts_in_the_bucket_that_readers_expect() {
        let around = |power: u32| [(1_u64 << power) - 1, 1 << power, (1 << power) + 1, (1 << power) + (1 << power) / 3];
        for nanos in (0..44).flat_map(around).chain(0..600).filter(|nanos| *nanos <= LONGEST) {
            let mut expected = histogram::Histogram::with_config(&BUCKETS);
            expected.increment(nanos).unwrap();
            assert_eq!(of(&[nanos]).buckets, Some(expected), "{nanos}");
        }
    }

    #[test]
    fn frequent_recorder_allocates_with_its_first_time_alone() {
        let chunks = |recorder: &Recorder| {
            let recorded = recorder.recorded.get().unwrap();
            recorded.chunks.iter().filter(|chunk| chunk.get().is_some()).count()
        };
        let (rare, frequent) = (Recorder::default(), Recorder::frequent());
        assert!(frequent.recorded.get().is_none(), "nothing was recorded");
        [&rare, &frequent].into_iter().for_each(|recorder| recorder.record(1_000));
        assert_eq!((chunks(&rare), chunks(&frequent)), (1, BUCKETS.total_buckets().div_ceil(CHUNK)));
        assert_eq!(rare.snapshot(), frequent.snapshot());
    }

    #[test]
    fn empty_histogram_has_no_quantile() {
        let empty = of(&[]);
        assert_eq!((empty.count(), empty.quantile(0.5), empty.max(), empty.mean()), (0, None, None, None));
        assert_eq!(empty.buckets().count(), 0);
        assert_eq!(empty, Histogram::default());
    }

    #[test]
    fn times_of_any_length_are_counted() {
        let snapshot = of(&[0, 1, LONGEST, LONGEST + 1, u64::MAX / 8]);
        assert_eq!(snapshot.count(), 5);
        assert_eq!(snapshot.buckets().last(), Some((Duration::from_nanos(LONGEST), 3)));
        assert_eq!(snapshot.quantile(1.0), snapshot.max());
        assert_eq!(snapshot.max(), Some(Duration::from_nanos(u64::MAX / 8)));
    }

    #[test]
    fn odd_fractions_count_as_the_nearest_one() {
        let snapshot = of(&[10, 20, 30]);
        assert_eq!(snapshot.quantile(-1.0), Some(Duration::from_nanos(10)));
        assert_eq!(snapshot.quantile(7.0), Some(Duration::from_nanos(30)));
        assert_eq!(snapshot.quantile(f64::NAN), Some(Duration::from_nanos(30)));
        assert_eq!(snapshot.mean(), Some(Duration::from_nanos(20)));
    }

    #[test]
    fn threads_lose_no_time() {
        const EACH: u64 = 10_000;
        let recorder = Recorder::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || (0..EACH).for_each(|nanos| recorder.record(thread * EACH + nanos)));
            }
        });
        let snapshot = recorder.snapshot();
        assert_eq!(snapshot.count(), 4 * EACH);
        assert_eq!(snapshot.sum(), Duration::from_nanos((0..4 * EACH).sum()));
        assert_eq!(snapshot.max(), Some(Duration::from_nanos(4 * EACH - 1)));
    }

    #[test]
    fn recorder_takes_memory_only_for_the_ranges_in_which_there_are_times() {
        let recorder = Recorder::default();
        assert!(recorder.recorded.get().is_none());
        let chunks = || recorder.recorded.get().unwrap().chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        for (nanos, expected) in [(1_000_000, 1), (1_500_000, 1), (90_000_000, 2), (LONGEST, 3), (0, 4)] {
            recorder.record(nanos);
            assert_eq!(chunks(), expected, "{nanos}");
        }
        assert_eq!(BUCKETS.total_buckets(), 656, "the documentation says so");
        assert_eq!(size_of::<Recorded>(), 192);
    }
}
