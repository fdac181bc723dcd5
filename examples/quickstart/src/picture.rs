//! The picture of a running load. These functions depend only on the load's numbers and the terminal's width.

use std::time::Duration;

use serde_json::{Value, json};
use wharf::client::ServerStatus;

use crate::report::{gap, grouped, time};

/// A load at one moment.
#[derive(Default)]
pub struct Moment {
    pub elapsed: Duration,
    /// The planned length of the load.
    pub whole: Duration,
    /// The operations per second between successive moments, the latest last.
    pub rates: Vec<u64>,
    /// The times of the operations since the last moment, in nanoseconds: the median, the 99th percentile and the
    /// longest.
    pub latencies: [Option<u64>; 3],
    pub errors: u64,
    /// The longest time without a success so far.
    pub gap: Duration,
    pub servers: Vec<Server>,
    /// The servers' events since the last moment.
    pub happened: Vec<String>,
}

/// A server and its pool.
#[derive(Default)]
pub struct Server {
    pub address: String,
    pub kind: &'static str,
    pub in_use: u32,
    pub idle: u32,
    pub pending: u32,
    pub waiting: u32,
    /// `maxPoolSize`, or 0 for no limit.
    pub most: u32,
}

impl Server {
    pub fn of(status: &ServerStatus, most: u32) -> Self {
        let server = Self { address: status.address.to_string(), kind: status.server_type, most, ..Self::default() };
        match &status.pool {
            None => server,
            Some(pool) => Self {
                in_use: pool.in_use,
                idle: pool.available,
                pending: pool.pending,
                waiting: pool.waiting,
                ..server
            },
        }
    }

    fn pool(&self) -> String {
        let Self { in_use, idle, pending, waiting, .. } = self;
        format!("{in_use} in use, {idle} idle, {pending} pending, {} waiting", grouped((*waiting).into()))
    }
}

/// How many of the latest events the picture shows.
const EVENTS: usize = 6;

/// Draws a moment and the latest of `events`, in lines of at most `width` columns.
pub fn draw(moment: &Moment, events: &[String], width: usize, colours: bool) -> Vec<String> {
    let paint = |code: u8, text: String| if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text };
    let [p50, p99, longest] = moment.latencies.map(|nanos| nanos.map_or("-".to_owned(), time));
    let highest = moment.rates.iter().max().copied().unwrap_or(0);
    let gap = format!("longest time without a success {}", gap(moment.gap));
    let mut lines = vec![
        paint(1, cut(&format!("{:>14} operations/s   {}", grouped(rate(moment)), clock(moment)), width)),
        paint(36, sparkline(&moment.rates, highest, width)),
        cut(&format!("p50 {p50:<10} p99 {p99:<10} longest {longest}"), width),
        paint(
            if moment.errors == 0 { 32 } else { 31 },
            cut(&format!("{} errors   {gap}", grouped(moment.errors)), width),
        ),
    ];
    for server in &moment.servers {
        let colour = if server.kind == "Unknown" { 31 } else { 1 };
        lines.push(paint(colour, cut(&format!("{} {}", server.address, server.kind), width)));
        // The bar fills the space that remains beside four numbers of three or four digits.
        lines.push(cut(&format!("  {} {}", bar(server, width.saturating_sub(51).clamp(4, 40)), server.pool()), width));
    }
    let latest = &events[events.len().saturating_sub(EVENTS)..];
    lines.extend(latest.iter().map(|event| paint(33, cut(event, width))));
    lines
}

/// Describes a moment in plain lines, for output that is not a terminal.
pub fn describe(moment: &Moment) -> Vec<String> {
    let p99 = moment.latencies[1].map_or("-".to_owned(), time);
    let mut lines = vec![format!("{:.1} s {:>9}/s, p99 {p99}", moment.elapsed.as_secs_f64(), grouped(rate(moment)))];
    let servers = moment.servers.iter();
    lines.extend(servers.map(|server| format!("  {:<21} {:<11} {}", server.address, server.kind, server.pool())));
    lines.extend(moment.happened.iter().cloned());
    lines
}

/// Returns a moment as JSON. Times are in microseconds.
pub fn json(moment: &Moment) -> Value {
    let [p50, p99, longest] = moment.latencies.map(|nanos| nanos.map(|nanos| nanos as f64 / 1e3));
    let server = |server: &Server| {
        json!({
            "address": server.address, "type": server.kind, "in_use": server.in_use, "idle": server.idle,
            "pending": server.pending, "waiting": server.waiting,
        })
    };
    json!({
        "seconds": moment.elapsed.as_secs_f64(),
        "operations_per_second": rate(moment),
        "p50": p50, "p99": p99, "longest": longest,
        "errors": moment.errors,
        "longest_gap": moment.gap.as_micros() as u64,
        "servers": moment.servers.iter().map(server).collect::<Vec<_>>(),
        "events": moment.happened,
    })
}

fn rate(moment: &Moment) -> u64 {
    moment.rates.last().copied().unwrap_or(0)
}

fn clock(moment: &Moment) -> String {
    format!("{:.1} of {} s", moment.elapsed.as_secs_f64(), moment.whole.as_secs())
}

/// Draws the latest of these rates, one per column. A rate of zero leaves its column empty.
fn sparkline(rates: &[u64], highest: u64, width: usize) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let level = |rate: &u64| match *rate {
        0 => ' ',
        rate => LEVELS[usize::try_from((rate * 8).div_ceil(highest.max(1))).map_or(7, |level| level.clamp(1, 8) - 1)],
    };
    rates[rates.len().saturating_sub(width)..].iter().map(level).collect()
}

/// Draws the connections in use and the idle connections as shares of the pool's maximum.
fn bar(server: &Server, cells: usize) -> String {
    let most = if server.most == 0 { server.in_use + server.idle } else { server.most };
    let share = |connections: u32| (connections as usize * cells).div_ceil(most.max(1) as usize).min(cells);
    let used = share(server.in_use);
    let open = share(server.in_use + server.idle);
    (0..cells)
        .map(|cell| {
            if cell < used {
                '█'
            } else if cell < open {
                '▒'
            } else {
                '·'
            }
        })
        .collect()
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A moment after a failover, with long numbers.
    fn moment() -> Moment {
        let server = |port: u16, kind| Server {
            address: format!("127.0.0.1:{port}"),
            kind,
            in_use: 75,
            idle: 25,
            pending: 2,
            waiting: 3_900,
            most: 100,
        };
        Moment {
            elapsed: Duration::from_millis(12_340),
            whole: Duration::from_secs(60),
            rates: (0..200).map(|turn| turn * 1_000).chain([0, 0, 123_456]).collect(),
            latencies: [Some(85_300), Some(1_200_000), None],
            errors: 1,
            gap: Duration::from_millis(3_210),
            servers: vec![server(27_017, "Unknown"), server(27_018, "RSPrimary")],
            happened: vec!["  3.2 s  127.0.0.1:27018 is RSPrimary, was RSSecondary".to_owned()],
        }
    }

    fn drawn(width: usize, colours: bool) -> Vec<String> {
        let events: Vec<_> = (0..9).map(|n| format!("event {n} {}", "x".repeat(120))).collect();
        draw(&moment(), &events, width, colours)
    }

    #[test]
    fn picture_fits_60_and_100_columns_and_shows_all_numbers() {
        for width in [60, 100] {
            let lines = drawn(width, false);
            assert!(lines.iter().all(|line| line.chars().count() <= width), "{lines:#?}");
            let text = lines.join("\n");
            for part in [
                "123,456 operations/s   12.3 of 60 s",
                "p50 85.3 µs    p99 1.2 ms     longest -",
                "1 errors   longest time without a success 3.2 s",
                "127.0.0.1:27018 RSPrimary",
                "75 in use, 25 idle, 2 pending, 3,900 waiting",
                "event 8",
            ] {
                assert!(text.contains(part), "no {part:?} in\n{text}");
            }
            assert!(!text.contains("event 2"), "{text}");
            // The latest rate is in the last column, and the two before it were zero.
            assert!(lines[1].ends_with("█  ▅") && lines[1].chars().count() == width, "{:?}", lines[1]);
        }
    }

    #[test]
    fn narrow_picture_is_cut() {
        for width in [0, 1, 20, 40] {
            assert!(drawn(width, false).iter().all(|line| line.chars().count() <= width), "{width}");
        }
    }

    #[test]
    fn colours_are_all_that_colours_add() {
        assert!(!drawn(60, false).concat().contains('\x1b'));
        let mut plain = drawn(60, true).concat();
        for code in [0, 1, 31, 32, 33, 36] {
            plain = plain.replace(&format!("\x1b[{code}m"), "");
        }
        assert_eq!(plain, drawn(60, false).concat());
    }

    #[test]
    fn bar_shows_use_and_idle_of_the_maximum() {
        let server = |in_use, idle, most| Server { in_use, idle, most, ..Server::default() };
        assert_eq!(bar(&server(50, 25, 100), 8), "████▒▒··");
        assert_eq!(bar(&server(1, 0, 100), 8), "█·······");
        assert_eq!(bar(&server(3, 1, 0), 8), "██████▒▒");
        assert_eq!(bar(&server(0, 0, 0), 4), "····");
    }

    #[test]
    fn moment_is_described_without_escapes_and_as_json() {
        let text = describe(&moment()).join("\n");
        assert!(text.starts_with("12.3 s   123,456/s, p99 1.2 ms\n"), "{text}");
        assert!(text.contains("\n  127.0.0.1:27018       RSPrimary   75 in use, 25 idle, 2 pending, 3,900 waiting\n"));
        assert!(text.ends_with("was RSSecondary") && !text.contains('\x1b'), "{text}");
        let json = json(&moment());
        assert_eq!(
            (&json["operations_per_second"], &json["p50"], &json["longest"]),
            (&123_456.into(), &85.3.into(), &Value::Null)
        );
        assert_eq!((&json["servers"][1]["type"], &json["longest_gap"]), (&"RSPrimary".into(), &3_210_000.into()));
    }
}
