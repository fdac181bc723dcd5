//! Counts and durations of commands by name, taken from their events.

use std::fmt;
use std::iter::once;
use std::sync::{Arc, OnceLock};

use super::command_events::{CommandEvent, CommandSubscriber};
use crate::pool::metrics::{Histogram, Recorder};
use crate::telemetry::{MetricKind, ReadingValue, write_metric};

/// The maximum number of command names that are timed separately.
const NAMES: usize = 64;

/// The name under which all other commands are counted.
const OTHER: &str = "other";

const METRIC: &str = "wharf_command_seconds";
const HELP: &str = "The duration of commands, from sending a command to its reply or its failure. Each attempt is timed. \
                    Outcome: succeeded, failed.";

/// Counts and times a client's commands by name and outcome.
///
/// This is a [`CommandSubscriber`] for [`ClientBuilder::command_subscriber`](crate::ClientBuilder::command_subscriber),
/// and also the handle from which the counts are read. Clones share their counts, and one value can serve several
/// clients.
///
/// ```no_run
/// use wharf::client::CommandMetrics;
/// use wharf::telemetry::prometheus_text;
/// use wharf::{Client, Options};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let commands = CommandMetrics::new();
/// let client = Client::builder(Options::parse("mongodb://localhost")?).command_subscriber(commands.clone()).build()?;
/// // At each scrape:
/// let text = prometheus_text(&client.metrics()) + &commands.prometheus_text();
/// # Ok(())
/// # }
/// ```
///
/// Every command that has [`CommandEvent`]s is counted. Each attempt of an operation counts separately, and a command
/// that its caller dropped counts as failed. A reply that reports errors for individual writes counts as a success.
///
/// Only the first 64 names are timed separately, because an application may run commands with any name. All other
/// commands are counted under the name `other`.
///
/// # Cost
///
/// A command with a known name is counted without a lock, in a few atomic operations. Its events are built without
/// copies of the command and the reply, unless another subscriber or a log reads them
/// ([`CommandSubscriber::reads_documents`]). The histograms take memory only for outcomes that have occurred.
#[derive(Clone, Default)]
pub struct CommandMetrics(Arc<Counted>);

/// The times of the commands with one name, as returned by [`CommandMetrics::snapshot`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandTimes {
    /// The command's name, or `other`.
    pub name: Arc<str>,
    /// The times of the commands that the server executed ([`CommandEvent::Succeeded`]).
    pub succeeded: Histogram,
    /// The times of the commands that failed ([`CommandEvent::Failed`]).
    pub failed: Histogram,
}

struct Counted {
    /// Places are taken in order and are never released. Each name therefore has at most one place, and all free places
    /// come last.
    places: [OnceLock<Named>; NAMES],
    other: Named,
}

struct Named {
    name: Arc<str>,
    succeeded: Recorder,
    failed: Recorder,
}

impl CommandMetrics {
    /// Creates metrics that have not yet counted any commands.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the times of all commands that have finished so far, sorted by name.
    #[must_use]
    pub fn snapshot(&self) -> Vec<CommandTimes> {
        let named = self.0.places.iter().map_while(OnceLock::get).chain(once(&self.0.other));
        let times = named.map(|named| CommandTimes {
            name: named.name.clone(),
            succeeded: named.succeeded.snapshot(),
            failed: named.failed.snapshot(),
        });
        let mut times: Vec<_> = times.filter(|times| times.succeeded.count() + times.failed.count() > 0).collect();
        times.sort_unstable_by(|one, another| one.name.cmp(&another.name));
        times
    }

    /// Returns the metric `wharf_command_seconds` in the Prometheus text format (version 0.0.4): a histogram with the
    /// labels `command` and `outcome`, in the buckets of [`prometheus_text`](crate::telemetry::prometheus_text).
    #[must_use]
    pub fn prometheus_text(&self) -> String {
        let snapshot = self.snapshot();
        let readings = snapshot.iter().flat_map(|CommandTimes { name, succeeded, failed }| {
            [("succeeded", succeeded), ("failed", failed)]
                .map(|(outcome, times)| (vec![("command", &**name), ("outcome", outcome)], ReadingValue::Times(times)))
        });
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = write_metric(&mut text, METRIC, MetricKind::Histogram, HELP, readings);
        text
    }
}

impl Counted {
    /// Returns the place of a name. A new name takes the first free place.
    fn of(&self, name: &str) -> &Named {
        let places = self.places.iter().map(|place| place.get_or_init(|| Named::new(name)));
        once(&self.other).chain(places).find(|named| *named.name == *name).unwrap_or(&self.other)
    }
}

impl Default for Counted {
    fn default() -> Self {
        Self { places: [const { OnceLock::new() }; NAMES], other: Named::new(OTHER) }
    }
}

impl Named {
    fn new(name: &str) -> Self {
        Self { name: name.into(), succeeded: Recorder::default(), failed: Recorder::default() }
    }
}

impl CommandSubscriber for CommandMetrics {
    fn on_event(&self, event: &CommandEvent) {
        let named = || self.0.of(&event.source().command_name);
        let (recorder, duration) = match event {
            CommandEvent::Started(_) => return,
            CommandEvent::Succeeded(event) => (&named().succeeded, event.duration),
            CommandEvent::Failed(event) => (&named().failed, event.duration),
        };
        recorder.record(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    fn reads_documents(&self) -> bool {
        false
    }
}

impl fmt::Debug for CommandMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CommandMetrics").field(&self.snapshot()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bson::RawDocumentBuf;

    use super::*;
    use crate::client::{CommandFailed, CommandFailure, CommandSource, CommandStarted, CommandSucceeded};

    /// The events of one command.
    fn events(name: &str, succeeds: bool, duration: Duration) -> [CommandEvent; 2] {
        let source = Arc::new(CommandSource {
            command_name: name.to_owned(),
            database_name: "shop".to_owned(),
            request_id: 1,
            operation_id: 1,
            address: "here:1".into(),
            connection_id: 1,
            server_connection_id: None,
            service_id: None,
            is_sensitive: false,
        });
        let end = match (source.clone(), succeeds) {
            (source, true) => {
                CommandEvent::Succeeded(CommandSucceeded { source, duration, reply: RawDocumentBuf::new() })
            }
            (source, false) => {
                CommandEvent::Failed(CommandFailed { source, duration, failure: CommandFailure::Cancelled })
            }
        };
        [CommandEvent::Started(CommandStarted { source, command: RawDocumentBuf::new() }), end]
    }

    fn count(metrics: &CommandMetrics, name: &str, succeeds: bool, micros: u64) {
        events(name, succeeds, Duration::from_micros(micros)).iter().for_each(|event| metrics.on_event(event));
    }

    fn counts(metrics: &CommandMetrics) -> Vec<(String, u64, u64)> {
        let snapshot = metrics.snapshot().into_iter();
        snapshot.map(|of| (of.name.to_string(), of.succeeded.count(), of.failed.count())).collect()
    }

    #[test]
    fn ended_commands_are_counted_and_timed_by_name_and_outcome() {
        let metrics = CommandMetrics::new();
        assert_eq!((metrics.snapshot(), metrics.0.places[0].get().is_none()), (Vec::new(), true));
        metrics.on_event(&events("ping", true, Duration::ZERO)[0]);
        for (name, succeeds, micros) in
            [("find", true, 10), ("find", true, 30), ("find", false, 7), ("delete", true, 5)]
        {
            count(&metrics.clone(), name, succeeds, micros);
        }
        assert_eq!(counts(&metrics), [("delete".to_owned(), 1, 0), ("find".to_owned(), 2, 1)]);
        let [_, find] = &metrics.snapshot()[..] else { panic!() };
        assert_eq!((find.succeeded.sum(), find.failed.sum()), (Duration::from_micros(40), Duration::from_micros(7)));
    }

    #[test]
    fn commands_beyond_the_last_place_are_counted_together() {
        let metrics = CommandMetrics::new();
        count(&metrics, OTHER, true, 1);
        (0..NAMES + 3).for_each(|number| count(&metrics, &format!("command{number:02}"), true, 1));
        count(&metrics, "command00", false, 1);
        let counts = counts(&metrics);
        assert_eq!(counts.len(), NAMES + 1);
        assert_eq!(counts[0], ("command00".to_owned(), 1, 1));
        assert_eq!(counts[NAMES - 1], (format!("command{}", NAMES - 1), 1, 0));
        assert_eq!(counts[NAMES], (OTHER.to_owned(), 4, 0), "one command has that name, three have no place");
    }

    #[test]
    fn text_has_each_outcome_in_the_buckets_of_pools_with_its_name_escaped() {
        let metrics = CommandMetrics::new();
        count(&metrics, "a\\b\"c\nd", true, 80);
        count(&metrics, "a\\b\"c\nd", true, 2_000_000);
        let labels = |outcome| format!(r#"command="a\\b\"c\nd",outcome="{outcome}""#);
        let mut expected = format!("# HELP {METRIC} {HELP}\n# TYPE {METRIC} histogram\n");
        for (outcome, [first, later, all], sum) in [("succeeded", [0, 1, 2], "2.00008"), ("failed", [0; 3], "0")] {
            let labels = labels(outcome);
            let bounds =
                ["5e-5", "0.0001", "0.00025", "0.0005", "0.001", "0.005", "0.01", "0.05", "0.1", "0.5", "1.0", "+Inf"];
            for bound in bounds {
                let count = [(first, "5e-5"), (all, "+Inf")].into_iter().find(|(_, of)| *of == bound);
                let count = count.map_or(later, |(count, _)| count);
                expected += &format!("{METRIC}_bucket{{{labels},le=\"{bound}\"}} {count}\n");
            }
            expected += &format!("{METRIC}_sum{{{labels}}} {sum}\n{METRIC}_count{{{labels}}} {all}\n");
        }
        assert_eq!(metrics.prometheus_text(), expected);
    }

    #[test]
    fn threads_lose_no_command_and_give_each_name_one_place() {
        const THREADS: usize = 8;
        const ROUNDS: u64 = 50;
        let metrics = CommandMetrics::new();
        let started = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (metrics, started) = (&metrics, &started);
                scope.spawn(move || {
                    started.wait();
                    for number in 0..NAMES * ROUNDS as usize {
                        count(metrics, &format!("command{:02}", (number + thread) % NAMES), number % 2 == 0, 1);
                    }
                });
            }
        });
        let counts = counts(&metrics);
        assert_eq!(counts.len(), NAMES, "{counts:?}");
        let each = THREADS as u64 * ROUNDS;
        for (number, (name, succeeded, failed)) in counts.iter().enumerate() {
            assert_eq!((name, succeeded + failed), (&format!("command{number:02}"), each));
        }
    }

    #[test]
    fn guide_lists_the_metric() {
        let row = format!("| `{METRIC}` | histogram | seconds | `command`, `outcome` | {HELP} |");
        assert!(include_str!("../guide/metrics_and_traces.md").contains(&row), "the guide lacks\n{row}");
    }
}
