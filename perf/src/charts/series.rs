//! Draws series over time: the panels of a dashboard, from a recorded run.

use std::fmt::Write;

use serde::Deserialize;
use serde_json::Number;

use super::svg::{Axis, Canvas, End, GAP, MARGIN, SMALL, TEXT, WIDTH, spread, tick_label, value, widest};

/// A recorded run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    pub title: String,
    panels: Vec<Panel>,
    /// The time of an event, in seconds. Each panel shows it as a vertical line.
    event: f64,
    notes: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Panel {
    /// The title in the dashboard.
    heading: String,
    unit: String,
    series: Vec<Series>,
}

/// A series with one value per second, starting with the first second.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    name: String,
    values: Vec<Number>,
}

/// Returns the picture as the text of a file.
pub fn draw(recording: &Recording) -> String {
    let mut canvas = Canvas::new();
    canvas.paragraph(&recording.title, 16.0, "bold");
    for panel in &recording.panels {
        canvas.y += 10.0;
        canvas.paragraph(&format!("{}, {}", panel.heading, panel.unit), TEXT, "bold");
        canvas.series(panel, recording.event);
    }
    canvas.y += 8.0;
    canvas.paragraph(&recording.notes, SMALL, "quiet");
    canvas.finish(&recording.title)
}

impl Canvas {
    fn series(&mut self, panel: &Panel, event: f64) {
        const HEIGHT: f64 = 90.0;
        let ends: Vec<_> =
            panel.series.iter().filter_map(|series| Some(End::new(&series.name, series.values.last()?))).collect();
        let values = || panel.series.iter().flat_map(|series| &series.values).map(value);
        let height = HEIGHT.max(GAP * ends.len() as f64);
        let bottom = self.y + 6.0 + height;
        let up = Axis {
            low: 0.0,
            high: values().fold(f64::MIN_POSITIVE, f64::max),
            logarithmic: false,
            start: bottom,
            length: -height,
        };
        let left = MARGIN + 6.0 + widest(up.ticks().into_iter().map(tick_label));
        let right = WIDTH - MARGIN - 22.0 - widest(ends.iter().map(|end| end.label.clone()));
        let seconds = panel.series.iter().map(|series| series.values.len() - 1).max().unwrap_or(1);
        let along = Axis { low: 0.0, high: seconds as f64, logarithmic: false, start: left, length: right - left };
        for tick in up.ticks() {
            self.stroke("grid", (left, up.at(tick)), (right, up.at(tick)));
            self.text((left - 6.0, up.at(tick) + 4.0), SMALL, "quiet", "end", &tick_label(tick));
        }
        for tick in along.ticks() {
            self.text((along.at(tick), bottom + 19.0), SMALL, "quiet", "middle", &format!("{} s", tick_label(tick)));
        }
        self.stroke("c1", (along.at(event), bottom - height), (along.at(event), bottom));
        let labels = spread(&ends.iter().map(|end| up.at(end.value)).collect::<Vec<_>>(), bottom);
        for (place, (series, (end, label))) in panel.series.iter().zip(ends.iter().zip(labels)).enumerate().rev() {
            let at = |(second, number): (usize, &Number)| (along.at(second as f64), up.at(value(number)));
            let points: Vec<_> = series.values.iter().enumerate().map(at).collect();
            let text: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let colour = format!("c{}", place % 7);
            let _ = writeln!(self.body, "<polyline class=\"{colour} line\" points=\"{}\"/>", text.join(" "));
            let (x, y) = points[points.len() - 1];
            let _ = writeln!(self.body, "<circle class=\"{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
            self.stroke(&colour, (right + 5.0, y), (right + 19.0, label));
            self.text((right + 22.0, label + 4.0), TEXT, "", "start", &end.label);
        }
        self.y = bottom + 23.0;
    }
}
