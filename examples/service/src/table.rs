//! The table that `top` shows. It depends only on the data and on the terminal's width.

use std::time::Duration;

use serde_json::{Value, json};

use crate::pools::PoolRow;

/// What happened in a pool between two moments.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Line {
    /// The pool at the later moment.
    pub now: PoolRow,
    /// Check-outs per second, including hits.
    pub check_outs: f64,
    /// The share of check-outs that found a connection at once, from 0 to 1. `None` if there were no check-outs.
    pub hits: Option<f64>,
    /// The median of the waits, in nanoseconds. `None` if there were no waits.
    pub p50: Option<u64>,
    /// The 99th percentile of the waits, in nanoseconds. `None` if there were no waits.
    pub p99: Option<u64>,
    /// Check-outs that reached a time limit.
    pub timeouts: u64,
}

/// Compares the pools at two moments, `elapsed` apart. A pool that did not exist at the earlier moment is compared with
/// an unused pool.
#[must_use]
pub fn lines(before: &[PoolRow], now: &[PoolRow], elapsed: Duration) -> Vec<Line> {
    let compare = |now: &PoolRow| {
        let unused = PoolRow::default();
        // A smaller counter means that the service has restarted.
        let earlier = before.iter().find(|row| row.address == now.address && row.hits <= now.hits).unwrap_or(&unused);
        let hits = now.hits.saturating_sub(earlier.hits);
        let all = hits + now.others.saturating_sub(earlier.others);
        let counted =
            |longest| earlier.waits.iter().find(|(bound, _)| *bound == longest).map_or(0, |(_, count)| *count);
        let waits: Vec<_> =
            now.waits.iter().map(|(longest, count)| (*longest, count.saturating_sub(counted(*longest)))).collect();
        Line {
            now: now.clone(),
            check_outs: all as f64 / elapsed.as_secs_f64().max(1e-3),
            hits: (all > 0).then(|| hits as f64 / all as f64),
            p50: quantile(&waits, 0.5),
            p99: quantile(&waits, 0.99),
            timeouts: now.timeouts.saturating_sub(earlier.timeouts),
        }
    };
    now.iter().map(compare).collect()
}

/// Returns the upper bound of the bucket that covers this fraction of all times.
fn quantile(buckets: &[(u64, u64)], fraction: f64) -> Option<u64> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    let rank = ((total as f64 * fraction).ceil() as u64).max(1);
    let mut seen = 0;
    buckets.iter().find_map(|(longest, count)| {
        seen += count;
        (seen >= rank).then_some(*longest)
    })
}

/// A column. A narrow table leaves out columns, starting with the largest rank.
struct Column {
    title: &'static str,
    width: usize,
    rank: u8,
    cell: fn(&Line) -> String,
}

/// All columns except the address, from left to right.
const COLUMNS: [Column; 11] = [
    Column { title: "PHASE", width: 6, rank: 7, cell: |line| line.now.phase.clone() },
    Column { title: "IN USE", width: 6, rank: 0, cell: |line| line.now.in_use.to_string() },
    Column { title: "IDLE", width: 5, rank: 3, cell: |line| line.now.idle.to_string() },
    Column { title: "PEND", width: 5, rank: 8, cell: |line| line.now.pending.to_string() },
    Column { title: "WAIT", width: 6, rank: 1, cell: |line| line.now.waiting.to_string() },
    Column {
        title: "MAX",
        width: 7,
        rank: 4,
        cell: |line| if line.now.max == 0 { "-".to_owned() } else { line.now.max.to_string() },
    },
    Column { title: "OUT/S", width: 7, rank: 2, cell: |line| short(line.check_outs) },
    Column {
        title: "HIT%",
        width: 5,
        rank: 6,
        cell: |line| line.hits.map_or("-".to_owned(), |hits| format!("{:.1}", hits * 100.0)),
    },
    Column { title: "P50", width: 6, rank: 9, cell: |line| line.p50.map_or("-".to_owned(), time) },
    Column { title: "P99", width: 6, rank: 5, cell: |line| line.p99.map_or("-".to_owned(), time) },
    Column { title: "T/O", width: 6, rank: 10, cell: |line| short(line.timeouts as f64) },
];

/// The minimum width of the address when only the most important columns are shown.
const ADDRESS: usize = 8;
/// The largest rank among the most important columns.
const IMPORTANT: u8 = 2;
/// The minimum width of the address when other columns are shown: the width of `127.0.0.1:27017`.
const WHOLE_ADDRESS: usize = 15;

/// Renders the table for a terminal of `width` columns. The first line contains the titles. No line is wider than the
/// terminal: columns that do not fit are left out, the least important first, and a long address is cut in the middle
/// to keep its port. The holders that have held a connection the longest follow below the pools, one per line.
#[must_use]
pub fn render(lines: &[Line], width: usize) -> Vec<String> {
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    let longest = lines.iter().map(|line| line.now.address.chars().count()).max().unwrap_or(0).max(ADDRESS);
    let taken = |columns: &[&Column]| columns.iter().map(|column| 1 + column.width).sum::<usize>();
    while let Some(least) = columns.iter().map(|column| column.rank).max() {
        let address = if least > IMPORTANT { longest.min(WHOLE_ADDRESS) } else { ADDRESS };
        if address + taken(&columns) <= width {
            break;
        }
        columns.retain(|column| column.rank != least);
    }
    let room = width.saturating_sub(taken(&columns)).min(longest);
    let render = |address: &str, cells: &mut dyn Iterator<Item = String>| {
        let mut text = format!("{:<room$}", shortened(address, room));
        for (cell, column) in cells.zip(&columns) {
            text.push(' ');
            text.push_str(&fitted(&cell, column.width));
        }
        text.chars().take(width).collect::<String>().trim_end().to_owned()
    };
    let titles = render("POOL", &mut columns.iter().map(|column| column.title.to_owned()));
    let rows =
        lines.iter().map(|line| render(&line.now.address, &mut columns.iter().map(|column| (column.cell)(line))));
    let holders =
        lines.iter().flat_map(|line| line.now.holders.iter().map(|holder| format!("{}: {holder}", line.now.address)));
    let holders = holders.map(|holder| shortened(&holder, width).trim_end().to_owned());
    std::iter::once(titles).chain(rows).chain(holders).collect()
}

/// Returns the pools as JSON, for one line of output. Times are in microseconds.
#[must_use]
pub fn json(lines: &[Line], elapsed: Duration) -> Value {
    let micros = |nanos: Option<u64>| nanos.map(|nanos| nanos as f64 / 1e3);
    let pool = |line: &Line| {
        let now = &line.now;
        json!({
            "address": now.address, "phase": now.phase,
            "in_use": now.in_use, "idle": now.idle, "pending": now.pending, "waiting": now.waiting, "max": now.max,
            "check_outs_per_second": line.check_outs as u64, "hits": line.hits,
            "p50": micros(line.p50), "p99": micros(line.p99), "timeouts": line.timeouts,
            "holders": now.holders,
        })
    };
    json!({ "seconds": elapsed.as_secs_f64(), "pools": lines.iter().map(pool).collect::<Vec<_>>() })
}

/// Fits a number into a width: pads it with spaces on the left, or cuts it and marks the cut with `~`.
fn fitted(text: &str, width: usize) -> String {
    let mut letters = letters(text);
    if letters.len() > width {
        letters.truncate(width);
        if let Some(last) = letters.last_mut() {
            *last = '~';
        }
    }
    format!("{:>width$}", letters.into_iter().collect::<String>())
}

/// Fits text into a width: `~` replaces the part cut from its middle.
fn shortened(text: &str, width: usize) -> String {
    let mut letters = letters(text);
    if letters.len() > width {
        let end = letters.split_off(letters.len() - width / 2);
        letters.truncate(width - end.len());
        if let Some(last) = letters.last_mut() {
            *last = '~';
        }
        letters.extend(end);
    }
    letters.into_iter().collect()
}

/// Returns the characters of `text`. Characters that might not be one column wide become `?`. The micro sign becomes
/// `u`, because some terminals lack it.
fn letters(text: &str) -> Vec<char> {
    let letter = |c: char| match c {
        'µ' => 'u',
        _ if c.is_ascii_graphic() || c == ' ' => c,
        _ => '?',
    };
    text.chars().map(letter).collect()
}

/// Formats a number with a unit that keeps the text short.
fn short(number: f64) -> String {
    match number {
        ..1e4 => format!("{number:.0}"),
        ..1e6 => format!("{:.1}k", number / 1e3),
        ..1e9 => format!("{:.1}M", number / 1e6),
        _ => format!("{:.1}G", number / 1e9),
    }
}

/// Formats nanoseconds with a unit that keeps the text short.
fn time(nanos: u64) -> String {
    let nanos = nanos as f64;
    match nanos {
        ..1e3 => format!("{nanos:.0}ns"),
        ..1e6 => format!("{:.0}us", nanos / 1e3),
        ..1e7 => format!("{:.1}ms", nanos / 1e6),
        ..1e9 => format!("{:.0}ms", nanos / 1e6),
        _ => format!("{:.1}s", nanos / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(address: &str) -> PoolRow {
        PoolRow { address: address.to_owned(), phase: "ready".to_owned(), max: 100, ..PoolRow::default() }
    }

    fn extreme() -> Vec<Line> {
        let largest = PoolRow {
            in_use: u32::MAX,
            idle: u32::MAX,
            pending: u32::MAX,
            waiting: u32::MAX,
            max: u32::MAX,
            hits: u64::MAX / 4,
            others: u64::MAX / 4,
            timeouts: u64::MAX,
            waits: vec![(u64::MAX, u64::MAX / 4)],
            holders: vec!["connection 3 for 5.2s, checked out at src/orders.rs:17:33 (task 12)\n".repeat(9)],
            ..row(&"long.".repeat(60))
        };
        let odd = row("a\tb\u{1b}[2J\n");
        lines(&[], &[largest, odd, row("ä"), row("")], Duration::from_nanos(1))
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for data in [extreme(), Vec::new()] {
            for width in 0..=200 {
                let rendered = render(&data, width);
                let holders: usize = data.iter().map(|line| line.now.holders.len()).sum();
                assert_eq!(rendered.len(), 1 + data.len() + holders);
                for line in rendered {
                    assert!(line.chars().count() <= width, "{width}: {line:?}");
                    assert!(!line.chars().any(char::is_control), "{line:?}");
                }
            }
        }
    }

    #[test]
    fn narrow_table_keeps_what_matters_most() {
        let data = lines(&[], &[row("here:27017")], Duration::from_secs(1));
        assert_eq!(render(&data, 20)[0], "POOL       IN USE");
        assert_eq!(render(&data, 22)[0], "POOL     IN USE   WAIT");
        let wide = &render(&data, 200)[0];
        for column in &COLUMNS {
            assert!(wide.contains(column.title), "{wide}");
        }
        assert!(render(&data, 80).iter().all(|line| line.contains("here:27017") || line.contains("HIT%")));
    }

    #[test]
    fn servers_of_one_host_differ_in_any_usual_width() {
        for name in ["127.0.0.1", "cluster0-shard-00.abcde.mongodb.net"] {
            let rows = [30001, 30002].map(|port| row(&format!("{name}:{port}")));
            for width in 30..=200 {
                let [_, one, other] = &render(&lines(&[], &rows, Duration::from_secs(1)), width)[..] else {
                    panic!("a line is missing")
                };
                let room = one.find(" ").unwrap();
                assert_ne!(one[..room], other[..room], "{width}");
                assert!(width < 40 || name.len() > 9 || one.starts_with("127.0.0.1:30001 "), "{width}: {one}");
            }
        }
    }

    #[test]
    fn line_of_a_holder_keeps_its_call_site() {
        let holder = "connection 3 for 5.2µs, checked out at src/orders.rs:17:33 (task 12)".to_owned();
        let data = lines(&[], &[PoolRow { holders: vec![holder], ..row("here:27017") }], Duration::from_secs(1));
        assert!(render(&data, 100)[2].contains("for 5.2us, checked out"));
        assert_eq!(render(&data, 60)[2], "here:27017: connection 3 for ~ src/orders.rs:17:33 (task 12)");
    }

    #[test]
    fn rates_and_quantiles_are_those_of_the_interval() {
        let before = PoolRow { hits: 100, others: 10, timeouts: 1, waits: vec![(1_000, 10)], ..row("here") };
        let waits = vec![(1_000, 10), (2_000_000, 98), (5_000_000_000, 2)];
        let now = PoolRow { hits: 400, others: 110, timeouts: 4, waits, ..row("here") };
        let line = &lines(&[before], &[now], Duration::from_secs(2))[0];
        assert_eq!((line.check_outs, line.hits, line.timeouts), (200.0, Some(0.75), 3));
        assert_eq!((line.p50, line.p99), (Some(2_000_000), Some(5_000_000_000)));
        let json = json(std::slice::from_ref(line), Duration::from_secs(2));
        let pool = &json["pools"][0];
        assert_eq!((&json["seconds"], &pool["check_outs_per_second"]), (&2.0.into(), &200.into()));
        assert_eq!((&pool["hits"], &pool["p50"], &pool["timeouts"]), (&0.75.into(), &2_000.0.into(), &3.into()));
        let text = &render(std::slice::from_ref(line), 100)[1];
        assert!(text.contains("75.0") && text.contains("2.0ms") && text.contains("5.0s"), "{text}");
    }

    #[test]
    fn service_that_started_anew_is_counted_from_zero() {
        let before = PoolRow { hits: 100, ..row("here") };
        let now = PoolRow { hits: 10, ..row("here") };
        assert_eq!(lines(&[before], &[now], Duration::from_secs(1))[0].check_outs, 10.0);
    }
}
