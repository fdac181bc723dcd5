//! The output while the load runs: a picture, lines of text, or lines of JSON.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use console::Term;
use histogram::Histogram;
use wharf::PoolEvent;
use wharf::client::{ClientStatus, TopologyEvent};

use crate::load::{Load, Results, quantile};
use crate::picture::{self, Moment, Server};

/// The servers' events as text, each with the time at which it happened.
#[derive(Clone, Default)]
pub struct Happenings(Arc<Mutex<Vec<(Instant, String)>>>);

impl Happenings {
    /// Returns a subscriber that records when a server becomes available, changes its role or fails.
    pub fn of_servers(&self) -> impl Fn(&TopologyEvent) + Send + Sync + 'static {
        let this = self.clone();
        move |event| {
            let TopologyEvent::ServerDescriptionChanged { address, previous, new, .. } = event else { return };
            let (before, now) = (previous.server_type().name(), new.server_type().name());
            if before != now {
                let error = new.error().map_or(String::new(), |error| format!(": {error}"));
                this.note(format!("{address} is {now}, was {before}{error}"));
            }
        }
    }

    /// Returns a subscriber that records when a pool is cleared.
    pub fn of_pools(&self) -> impl Fn(&PoolEvent) + Send + Sync + 'static {
        let this = self.clone();
        move |event| {
            if let PoolEvent::PoolCleared { address, .. } = event {
                this.note(format!("the pool of {address} is cleared"));
            }
        }
    }

    fn note(&self, text: String) {
        self.0.lock().unwrap().push((Instant::now(), text));
    }

    /// Returns all events as text.
    pub fn since(&self, begun: Instant) -> Vec<String> {
        let timed = |(at, text): &(Instant, String)| {
            format!("{:5.1} s  {text}", at.saturating_duration_since(begun).as_secs_f64())
        };
        self.0.lock().unwrap().iter().map(timed).collect()
    }
}

/// The current gap is shown only if it is longer than this.
const REST: Duration = Duration::from_millis(50);

/// Where the output goes.
enum Output {
    /// A picture on standard error, which is a terminal.
    Picture(Term),
    /// Lines on standard error.
    Text,
    /// Lines on standard output.
    Json,
}

/// Shows the progress of a load.
pub struct Live {
    output: Output,
    whole: Duration,
    most: u32,
    rates: Vec<u64>,
    last: (Duration, Results),
    /// The number of events that earlier moments have reported.
    told: usize,
    /// How many lines the picture has.
    drawn: usize,
}

impl Live {
    /// Chooses the output. `whole` is the planned length of the load, and `most` is `maxPoolSize`.
    pub fn new(json: bool, whole: Duration, most: u32) -> Self {
        let terminal = Term::stderr();
        let output = match terminal.is_term() {
            _ if json => Output::Json,
            true => Output::Picture(terminal),
            false => Output::Text,
        };
        Self { output, whole, most, rates: Vec::new(), last: (Duration::ZERO, Results::new()), told: 0, drawn: 0 }
    }

    /// Returns the planned length of the load.
    pub fn whole(&self) -> Duration {
        self.whole
    }

    /// Returns the time between two moments that are shown.
    pub fn pace(&self) -> Duration {
        Duration::from_millis(if matches!(self.output, Output::Picture(_)) { 250 } else { 1_000 })
    }

    pub fn show(&mut self, load: &Load, status: &ClientStatus, happenings: &Happenings) {
        let events = happenings.since(load.begun());
        let moment = self.moment(load, status, &events);
        match &self.output {
            // The run continues even if nothing reads the output.
            Output::Json => _ = writeln!(io::stdout(), "{}", picture::json(&moment)),
            Output::Text => picture::describe(&moment).iter().for_each(|line| eprintln!("{line}")),
            Output::Picture(terminal) => {
                let (rows, columns) = terminal.size();
                let mut lines = picture::draw(&moment, &events, columns.into(), console::colors_enabled_stderr());
                // A line that has scrolled out of the terminal could not be overwritten.
                lines.truncate(usize::from(rows).saturating_sub(1));
                let drawn = std::mem::replace(&mut self.drawn, lines.len());
                // The picture is written in one go, so that it does not flicker. An error would mean that the terminal
                // is gone.
                let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
                let _ = terminal.write_str(&(over(drawn) + &lines));
            }
        }
        self.told = events.len();
    }

    fn moment(&mut self, load: &Load, status: &ClientStatus, events: &[String]) -> Moment {
        let (elapsed, results) = (load.begun().elapsed(), load.results());
        let (then, before) = std::mem::replace(&mut self.last, (elapsed, results));
        let now = &self.last.1;
        let rate = (now.operations - before.operations) as f64 / (elapsed - then).as_secs_f64().max(1e-3);
        self.rates.push(rate as u64);
        let recent: Histogram = now.times.checked_sub(&before.times).expect("the counts only grow");
        let (gap, last) = now.successes.longest_gap();
        // The gap since the last success is included, unless it is short enough to be a normal pause between two
        // successes.
        let present = Some(elapsed.saturating_sub(last)).filter(|present| *present > REST);
        Moment {
            elapsed,
            whole: self.whole,
            rates: self.rates.clone(),
            latencies: [0.5, 0.99, 1.0].map(|fraction| quantile(&recent, fraction)),
            errors: now.failures(),
            gap: gap.max(present.unwrap_or_default()),
            servers: status.servers.iter().map(|server| Server::of(server, self.most)).collect(),
            happened: events[self.told..].to_vec(),
        }
    }

    /// Removes the picture.
    pub fn end(self) {
        if let Output::Picture(terminal) = self.output {
            let _ = terminal.write_str(&over(self.drawn));
        }
    }
}

/// Returns the escape sequences that move the cursor up by this many lines, and clear the terminal from there.
fn over(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\x1b[{lines}A\x1b[J") }
}
