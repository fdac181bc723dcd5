//! Draws bars and lines. Text widths are estimated, because only the viewer knows the font.

use std::fmt::Write;

use serde_json::Number;

use super::{Chart, Panel, Row};

pub const WIDTH: f64 = 480.0;
pub const MARGIN: f64 = 16.0;
/// The size of most text.
pub const TEXT: f64 = 12.0;
pub const SMALL: f64 = 11.0;
/// The estimated mean width of a character, relative to the size of the text. Common fonts are narrower.
pub const EM: f64 = 0.62;
/// The minimum vertical distance between labels.
pub const GAP: f64 = 15.0;

const STYLE: &str = ".picture{background:#fff}text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:#1f2328}
.bold{font-weight:600}.quiet{fill:#59636e}.grid{stroke:#d1d9e0}
.c0{fill:#0969da;stroke:#0969da}.c1{fill:#6e7781;stroke:#6e7781}.c2{fill:#bc4c00;stroke:#bc4c00}.c3{fill:#8250df;stroke:#8250df}
.c4{fill:#1a7f37;stroke:#1a7f37}.c5{fill:#bf3989;stroke:#bf3989}.c6{fill:#9a6700;stroke:#9a6700}
.bar{stroke:none}.line{fill:none;stroke-width:1.5}.own{stroke-width:3}
@media(prefers-color-scheme:dark){.picture{background:#0d1117}text{fill:#f0f6fc}.quiet{fill:#9198a1}.grid{stroke:#30363d}
.c0{fill:#58a6ff;stroke:#58a6ff}.c1{fill:#9198a1;stroke:#9198a1}.c2{fill:#f0883e;stroke:#f0883e}.c3{fill:#bc8cff;stroke:#bc8cff}
.c4{fill:#3fb950;stroke:#3fb950}.c5{fill:#f778ba;stroke:#f778ba}.c6{fill:#d29922;stroke:#d29922}.bar{stroke:none}.line{fill:none}}";

/// Returns the picture as the text of a file.
pub fn draw(chart: &Chart) -> String {
    let mut canvas = Canvas::new();
    canvas.paragraph(&chart.title, 16.0, "bold");
    for panel in &chart.panels {
        canvas.y += 10.0;
        if let Some(heading) = &panel.heading {
            canvas.paragraph(heading, TEXT, "bold");
        }
        match &panel.across {
            None => canvas.bars(chart, panel),
            Some(across) => canvas.lines(chart, panel, across),
        }
    }
    canvas.y += 8.0;
    for line in chart.caption() {
        canvas.paragraph(&line, SMALL, "quiet");
    }
    canvas.finish(&chart.title)
}

/// An axis, with its start and its length in pixels. The length is negative for an axis that points up.
pub struct Axis {
    pub low: f64,
    pub high: f64,
    pub logarithmic: bool,
    pub start: f64,
    pub length: f64,
}

impl Axis {
    pub fn at(&self, value: f64) -> f64 {
        let share = match self.logarithmic {
            true => (value / self.low).log10() / (self.high / self.low).log10(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.start + self.length * share
    }

    /// Returns powers of ten, or at most six multiples of 1, 2 or 5 times a power of ten.
    pub fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let powers = self.low.log10().round() as i32..;
            return powers.map(|power| 10_f64.powi(power)).take_while(|tick| *tick <= self.high * 1.001).collect();
        }
        let power = 10_f64.powf((self.high / 5.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| step * 5.0 >= self.high);
        let step = step.unwrap_or(self.high);
        (0..).map(|count| f64::from(count) * step).take_while(|tick| *tick <= self.high).collect()
    }
}

pub struct Canvas {
    pub body: String,
    /// Where the next paragraph or panel begins.
    pub y: f64,
}

impl Canvas {
    pub fn new() -> Self {
        Self { body: String::new(), y: 8.0 }
    }

    /// Returns the picture as the text of a file.
    pub fn finish(self, title: &str) -> String {
        let (height, title) = (self.y + 8.0, escaped(title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
             class=\"picture\" role=\"img\" aria-label=\"{title}\">\n<style>{STYLE}</style>\n{}</svg>\n",
            self.body
        )
    }

    pub fn text(&mut self, (x, y): (f64, f64), size: f64, class: &str, anchor: &str, text: &str) {
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    pub fn stroke(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    /// Writes text from the left margin, over as many lines as it needs.
    pub fn paragraph(&mut self, text: &str, size: f64, class: &str) {
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && width(&line, size) + width(word, size) + size * EM > WIDTH - 2.0 * MARGIN {
                self.line(&line, size, class);
                line.clear();
            }
            line.extend([if line.is_empty() { "" } else { " " }, word]);
        }
        self.line(&line, size, class);
    }

    fn line(&mut self, line: &str, size: f64, class: &str) {
        self.y += size * 1.35;
        self.text((MARGIN, self.y - size * 0.3), size, class, "start", line);
    }

    /// Draws a group of bars for each row, above one axis.
    fn bars(&mut self, chart: &Chart, panel: &Panel) {
        const PITCH: f64 = 16.0;
        let left = MARGIN + 10.0 + widest(panel.subjects.iter().cloned());
        let right = WIDTH - MARGIN - 4.0 - widest(figures(panel).map(shown));
        let axis = Axis {
            // Bars on a logarithmic axis start at least a decade below the end of the shortest bar.
            low: if panel.logarithmic { decade(panel).0 / 10.0 } else { 0.0 },
            high: figures(panel).map(value).fold(f64::MIN_POSITIVE, f64::max),
            logarithmic: panel.logarithmic,
            start: left,
            length: right - left,
        };
        for row in &panel.rows {
            self.paragraph(row.label(), TEXT, "bold");
            let subjects = panel.subjects.iter().filter_map(|subject| Some((subject, row.median.get(subject)?)));
            for (subject, figure) in subjects {
                let (end, base) = (axis.at(value(figure)), self.y + PITCH - 4.0);
                let shown = shown(figure);
                // The grid lines leave a gap for the figure.
                let beside = end + 1.0..end + 8.0 + width(&shown, TEXT);
                for tick in axis.ticks().into_iter().map(|tick| axis.at(tick)).filter(|tick| !beside.contains(tick)) {
                    self.stroke("grid", (tick, self.y), (tick, self.y + PITCH));
                }
                let colour = if chart.own.contains(subject) { "c0" } else { "c1" };
                self.text((left - 6.0, base), TEXT, "", "end", subject);
                if end > left {
                    let (y, length) = (self.y + 2.0, end - left);
                    let _ = writeln!(
                        self.body,
                        "<rect class=\"{colour} bar\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{}\"/>",
                        PITCH - 4.0
                    );
                }
                self.text((end + 4.0, base), TEXT, "", "start", &shown);
                self.y += PITCH;
            }
            self.y += 4.0;
        }
        for tick in axis.ticks() {
            self.text((axis.at(tick), self.y + 10.0), SMALL, "quiet", "middle", &tick_label(tick));
        }
        self.y += 14.0;
        self.paragraph(&panel.axis, SMALL, "quiet");
    }

    /// Draws a line for each subject on logarithmic axes, with the numbers in the rows' labels along the horizontal
    /// axis.
    fn lines(&mut self, chart: &Chart, panel: &Panel, across: &str) {
        const DECADE: f64 = 50.0;
        self.paragraph(&panel.axis, SMALL, "quiet");
        let (low, high) = decade(panel);
        let ends: Vec<_> = panel.subjects.iter().filter_map(|subject| End::of(panel, subject)).collect();
        let height = (DECADE * (high / low).log10().round()).max(GAP * ends.len() as f64);
        let bottom = self.y + 6.0 + height;
        let up = Axis { low, high, logarithmic: true, start: bottom, length: -height };
        let number = |row: &Row| row.label().parse().unwrap_or(1.0_f64);
        let left = MARGIN + 6.0 + widest(up.ticks().into_iter().map(tick_label));
        let right = WIDTH - MARGIN - 22.0 - widest(ends.iter().map(|end| end.label.clone()));
        let most = panel.rows.iter().map(number).fold(2.0, f64::max);
        let along = Axis { low: 1.0, high: most, logarithmic: true, start: left, length: right - left };

        for tick in up.ticks() {
            self.stroke("grid", (left, up.at(tick)), (right, up.at(tick)));
            self.text((left - 6.0, up.at(tick) + 4.0), SMALL, "quiet", "end", &tick_label(tick));
        }
        for row in &panel.rows {
            self.text((along.at(number(row)), bottom + 16.0), SMALL, "quiet", "middle", row.label());
        }
        let labels = spread(&ends.iter().map(|end| up.at(end.value)).collect::<Vec<_>>(), bottom);
        for (end, label) in ends.iter().zip(labels).rev() {
            let points: Vec<_> = panel
                .rows
                .iter()
                .filter_map(|row| Some((along.at(number(row)), up.at(value(row.median.get(end.subject)?)))))
                .collect();
            let own = if chart.own.contains(end.subject) { " own" } else { "" };
            let text: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let colour = chart.place(end.subject) % 7;
            let _ = writeln!(self.body, "<polyline class=\"c{colour} line{own}\" points=\"{}\"/>", text.join(" "));
            for (x, y) in points {
                let _ = writeln!(self.body, "<circle class=\"c{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>");
            }
            self.stroke(&format!("c{colour}"), (right + 5.0, up.at(end.value)), (right + 19.0, label));
            let class = if own.is_empty() { "" } else { "bold" };
            self.text((right + 22.0, label + 4.0), TEXT, class, "start", &end.label);
        }
        self.y = bottom + 20.0;
        self.text(((left + right) / 2.0, self.y + 10.0), SMALL, "quiet", "middle", across);
        self.y += 14.0;
    }
}

/// The last point of a line, and the text next to it.
pub struct End<'a> {
    subject: &'a str,
    pub value: f64,
    pub label: String,
}

impl<'a> End<'a> {
    fn of(panel: &Panel, subject: &'a str) -> Option<Self> {
        Some(Self::new(subject, panel.rows.iter().rev().find_map(|row| row.median.get(subject))?))
    }

    pub fn new(subject: &'a str, last: &Number) -> Self {
        Self { subject, value: value(last), label: format!("{subject} {}", shown(last)) }
    }
}

/// Returns positions close to the wanted ones, such that no two labels overlap. No position is below the bottom.
pub fn spread(wanted: &[f64], bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&one, &other| wanted[one].total_cmp(&wanted[other]));
    let mut places = wanted.to_vec();
    let mut next = f64::NEG_INFINITY;
    for &label in &order {
        places[label] = places[label].max(next);
        next = places[label] + GAP;
    }
    let mut next = bottom;
    for &label in order.iter().rev() {
        places[label] = places[label].min(next);
        next = places[label] - GAP;
    }
    places
}

fn figures(panel: &Panel) -> impl Iterator<Item = &Number> {
    panel.rows.iter().flat_map(|row| panel.subjects.iter().filter_map(|subject| row.median.get(subject)))
}

/// Returns the powers of ten that enclose all figures.
fn decade(panel: &Panel) -> (f64, f64) {
    let values = || figures(panel).map(value).filter(|value| *value > 0.0);
    let low = 10_f64.powf(values().fold(f64::INFINITY, f64::min).log10().floor());
    (low, 10_f64.powf(values().fold(low * 1.001, f64::max).log10().ceil()))
}

pub fn value(figure: &Number) -> f64 {
    figure.as_f64().unwrap_or(0.0)
}

/// Shows a figure with the digits that it has in its file, and a comma after the thousands.
fn shown(figure: &Number) -> String {
    let text = figure.to_string();
    match text.len() {
        4.. if !text.contains('.') => format!("{},{}", &text[..text.len() - 3], &text[text.len() - 3..]),
        _ => text,
    }
}

pub fn tick_label(tick: f64) -> String {
    let rounded = (tick * 1e6).round() / 1e6;
    if rounded == rounded.trunc() { shown(&Number::from(rounded as i64)) } else { rounded.to_string() }
}

pub fn widest(texts: impl Iterator<Item = String>) -> f64 {
    texts.map(|text| width(&text, TEXT)).fold(0.0, f64::max)
}

/// Estimates the width of `text`.
fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * EM
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
