//! The results of a run, as a table, as JSON and as a chart.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::cases::Case;
use crate::law::Law;
use crate::machine::{Outcome, Plan, Tally};
use crate::words::word;

/// The result of one simulation.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The design.
    pub design: &'static str,
    /// The number of cores.
    pub cores: usize,
    /// The number of sockets.
    pub sockets: usize,
    /// Operations a second.
    pub throughput: f64,
    /// The totals for each word's accesses, over all operations.
    pub words: BTreeMap<String, Tally>,
    /// The same for each source line.
    pub sites: BTreeMap<String, Tally>,
    /// The number of measured operations.
    pub operations: u64,
}

impl Figure {
    /// Creates the figure from the outcome of a simulation.
    pub fn of(design: &'static str, plan: &Plan, outcome: &Outcome) -> Self {
        let (mut words, mut sites) = (BTreeMap::new(), BTreeMap::new());
        for ((file, line), tally) in &outcome.sites {
            words.entry(word(file).to_owned()).or_insert_with(Tally::default).add(tally);
            sites.entry(format!("{file}:{line}")).or_insert_with(Tally::default).add(tally);
        }
        Self {
            design,
            cores: plan.cores,
            sockets: plan.sockets,
            throughput: outcome.operations as f64 / (plan.measured as f64 / 1e12),
            words,
            sites,
            operations: outcome.operations,
        }
    }

    /// Returns the number of lines fetched from other cores per operation, for one word or for all words.
    pub fn transfers(&self, word: Option<&str>) -> f64 {
        let tallies = self.words.iter().filter(|(name, _)| word.is_none_or(|word| word == *name));
        let sum: u64 = tallies.map(|(_, tally)| tally.near + tally.far).sum();
        sum as f64 / self.operations.max(1) as f64
    }

    fn each(&self, number: u64) -> f64 {
        number as f64 / self.operations.max(1) as f64
    }

    fn as_json(&self) -> Value {
        let tallies = |by: &BTreeMap<String, Tally>| -> Value {
            let row = |(name, tally): (&String, &Tally)| {
                let values = json!({
                    "hits": self.each(tally.hits),
                    "transfers in a socket": self.each(tally.near),
                    "transfers across sockets": self.each(tally.far),
                    "from memory": self.each(tally.memory),
                    "nanoseconds": self.each(tally.time) / 1e3,
                });
                (name.clone(), values)
            };
            Value::Object(by.iter().map(row).collect())
        };
        json!({
            "design": self.design,
            "cores": self.cores,
            "sockets": self.sockets,
            "operations": self.operations,
            "operations a second": self.throughput,
            "each operation, by word": tallies(&self.words),
            "each operation, by place": tallies(&self.sites),
        })
    }
}

/// A case's figures.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// The case.
    pub case: Case,
    /// Its figures.
    pub figures: Vec<Figure>,
}

impl Sheet {
    /// Returns the series of one design on this many sockets: pairs of a number of cores and the operations a second.
    fn series(&self, design: &str, sockets: usize) -> Vec<(usize, f64)> {
        let of = self.figures.iter().filter(|figure| figure.design == design && figure.sockets == sockets);
        of.map(|figure| (figure.cores, figure.throughput)).collect()
    }

    /// Returns each combination of a design and a number of sockets that has figures, in order.
    fn columns(&self) -> Vec<(&'static str, usize)> {
        let mut columns = Vec::new();
        for figure in &self.figures {
            if !columns.contains(&(figure.design, figure.sockets)) {
                columns.push((figure.design, figure.sockets));
            }
        }
        columns
    }

    /// Returns the table: throughput by cores, the fitted law, and the costs of wharf's words.
    pub fn table(&self) -> String {
        let mut text = format!("\n{}: {}\n\n", self.case, self.case.what());
        for (design, sockets) in self.columns() {
            let series = self.series(design, sockets);
            let _ = write!(text, "  {design}, {sockets} socket{}:", if sockets == 1 { "" } else { "s" });
            for (cores, throughput) in &series {
                let _ = write!(text, "  {cores}: {}", millions(*throughput));
            }
            text.push_str("  million/s");
            if let Some(law) = Law::fit(&series) {
                let _ = write!(text, "; σ {:.4}, κ {:.6}", law.sigma, law.kappa);
            }
            text.push('\n');
        }
        for figure in self.figures.iter().filter(|figure| figure.design == "wharf") {
            let _ = write!(text, "    wharf, {} cores, {} sockets: ", figure.cores, figure.sockets);
            let _ = write!(text, "{:.2} transfers an operation", figure.transfers(None));
            let mut words: Vec<_> = figure.words.iter().collect();
            words.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.time));
            for (name, tally) in words.iter().take(6) {
                let transfers = figure.each(tally.near + tally.far);
                let nanos = figure.each(tally.time) / 1e3;
                let _ = write!(text, "; {name} {transfers:.2} ({nanos:.1} ns)");
            }
            text.push('\n');
        }
        text
    }

    /// Returns all figures and the fitted laws.
    pub fn as_json(&self) -> Value {
        let figures: Vec<_> = self.figures.iter().map(Figure::as_json).collect();
        let laws: Vec<_> = self
            .columns()
            .into_iter()
            .filter_map(|(design, sockets)| {
                let Law { lambda, sigma, kappa } = Law::fit(&self.series(design, sockets))?;
                Some(json!({ "design": design, "sockets": sockets, "λ": lambda, "σ": sigma, "κ": kappa }))
            })
            .collect();
        json!({ "case": self.case.name(), "what": self.case.what(), "figures": figures, "laws": laws })
    }

    /// Returns the chart as SVG: throughput against the number of cores, both on logarithmic axes.
    pub fn svg(&self) -> String {
        const COLOURS: [&str; 6] = ["#0b6e4f", "#c0392b", "#2471a3", "#b9770e", "#6c3483", "#566573"];
        const DASHES: [&str; 3] = ["", "6 3", "2 3"];
        let (left, top, width, height) = (70.0, 40.0, 520.0, 320.0);
        let most_cores = self.figures.iter().map(|figure| figure.cores).max().unwrap_or(1).max(2);
        let all = || self.figures.iter().map(|figure| figure.throughput).filter(|throughput| *throughput > 0.0);
        let low = all().fold(f64::INFINITY, f64::min).min(1e9).log10().floor();
        let high = all().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
        let x = |cores: f64| left + width * cores.log2() / (most_cores as f64).log2();
        let y = |throughput: f64| top + height * (high - throughput.log10()) / (high - low);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 420\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"800\" height=\"420\" fill=\"white\"/>\n<text x=\"{left}\" y=\"22\" \
             font-size=\"15\">{}: operations a second</text>\n",
            self.case
        );
        for power in low as i32..=high as i32 {
            let at = y(10_f64.powi(power));
            let (end, label) = (left + width, millions(10_f64.powi(power)));
            let _ = writeln!(
                svg,
                "<line x1=\"{left}\" x2=\"{end}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" \
                 y=\"{:.1}\" text-anchor=\"end\">{label} M</text>",
                left - 6.0,
                at + 4.0
            );
        }
        let mut cores: Vec<usize> = self.figures.iter().map(|figure| figure.cores).collect();
        cores.sort_unstable();
        cores.dedup();
        for cores in cores {
            let at = x(cores as f64);
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{cores}</text>",
                top + height + 18.0
            );
        }
        let designs: Vec<&str> = {
            let mut designs: Vec<_> = self.columns().iter().map(|(design, _)| *design).collect();
            designs.dedup();
            designs
        };
        for (row, (design, sockets)) in self.columns().into_iter().enumerate() {
            let colour = COLOURS[designs.iter().position(|of| *of == design).unwrap_or(0) % COLOURS.len()];
            let dash = DASHES[sockets.ilog2() as usize % DASHES.len()];
            let points: Vec<String> = self
                .series(design, sockets)
                .iter()
                .filter(|(_, throughput)| *throughput > 0.0)
                .map(|&(cores, throughput)| format!("{:.1},{:.1}", x(cores as f64), y(throughput)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
                points.join(" ")
            );
            let at = top + 14.0 + 18.0 * row as f64;
            let _ = writeln!(
                svg,
                "<line x1=\"610\" x2=\"640\" y1=\"{0}\" y2=\"{0}\" stroke=\"{colour}\" stroke-width=\"2\" \
                 stroke-dasharray=\"{dash}\"/><text x=\"646\" y=\"{1}\">{design}, {sockets}</text>",
                at - 4.0,
                at
            );
        }
        let (below, legend) = (top + height + 38.0, "cores; in the legend: the number of sockets");
        let _ = writeln!(svg, "<text x=\"{left}\" y=\"{below}\">{legend}</text>\n</svg>");
        svg
    }
}

/// Formats a throughput in millions, with three significant digits.
fn millions(throughput: f64) -> String {
    let millions = throughput / 1e6;
    let digits = if millions >= 100.0 {
        0
    } else if millions >= 10.0 {
        1
    } else if millions >= 0.1 {
        2
    } else {
        3
    };
    format!("{millions:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let figure = |design, cores: usize| Figure {
            design,
            cores,
            sockets: 1,
            throughput: 1e6 * cores as f64,
            words: BTreeMap::from([(
                "shard head".to_owned(),
                Tally { hits: 10, near: 4, far: 1, memory: 0, time: 5_000 },
            )]),
            sites: BTreeMap::new(),
            operations: 10,
        };
        let figures = vec![figure("wharf", 1), figure("wharf", 2), figure("wharf", 4), figure("mutex", 1)];
        Sheet { case: Case::Hit, figures }
    }

    #[test]
    fn transfers_are_those_of_an_operation() {
        let figure = &sheet().figures[0];
        assert_eq!((figure.transfers(None), figure.transfers(Some("shard head"))), (0.5, 0.5));
        assert_eq!(figure.transfers(Some("slot")), 0.0);
    }

    #[test]
    fn table_has_the_throughput_the_law_and_the_words() {
        let table = sheet().table();
        for text in ["wharf, 1 socket:  1: 1.00  2: 2.00  4: 4.00", "σ 0.0000", "shard head 0.50 (0.5 ns)", "mutex"] {
            assert!(table.contains(text), "{text} is not in {table}");
        }
    }

    #[test]
    fn json_has_each_figure_and_the_laws_that_have_enough_of_them() {
        let json = sheet().as_json();
        assert_eq!(json["figures"].as_array().unwrap().len(), 4);
        assert_eq!(json["laws"].as_array().unwrap().len(), 1);
        assert_eq!(json["figures"][0]["each operation, by word"]["shard head"]["nanoseconds"], 0.5);
    }

    #[test]
    fn chart_has_a_line_for_each_series_with_a_point_for_each_figure() {
        let svg = sheet().svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        let points = svg.split("<polyline points=\"").nth(1).unwrap().split('"').next().unwrap();
        assert_eq!(points.split(' ').count(), 3);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
