use std::path::Path;

use super::*;

/// A rectangle, given by its edges.
#[derive(Debug, Clone, Copy)]
struct Area {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Area {
    fn meets(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }

    fn within(&self, other: &Self) -> bool {
        self.left >= other.left && self.right <= other.right && self.top >= other.top && self.bottom <= other.bottom
    }
}

/// Returns the text of an element's attribute.
fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let (_, rest) = element.split_once(&format!(" {name}=\"")).unwrap_or_else(|| panic!("no {name} in {element}"));
    rest.split('"').next().unwrap()
}

fn number(element: &str, name: &str) -> f64 {
    attribute(element, name).parse().unwrap()
}

/// Returns the elements with this name. Each element is on a separate line.
fn elements<'a>(svg: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let start = format!("<{name} ");
    svg.lines().filter(move |line| line.starts_with(&start))
}

fn text_area(element: &str) -> Area {
    let (_, content) = element.strip_suffix("</text>").unwrap().split_once('>').unwrap();
    let content = content.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
    let (x, y, size) = (number(element, "x"), number(element, "y"), number(element, "font-size"));
    let width = content.chars().count() as f64 * size * svg::EM;
    let left = match attribute(element, "text-anchor") {
        "start" => x,
        "middle" => x - width / 2.0,
        "end" => x - width,
        other => panic!("{other}"),
    };
    Area { left, top: y - 0.8 * size, right: left + width, bottom: y + 0.22 * size }
}

/// Returns the areas of all shapes except text, the grid and the lines to the labels.
fn marks(svg: &str) -> Vec<Area> {
    let bar = |element| {
        let (left, top) = (number(element, "x"), number(element, "y"));
        Area { left, top, right: left + number(element, "width"), bottom: top + number(element, "height") }
    };
    let circle = |element| {
        let (x, y, radius) = (number(element, "cx"), number(element, "cy"), number(element, "r"));
        Area { left: x - radius, top: y - radius, right: x + radius, bottom: y + radius }
    };
    elements(svg, "rect").map(bar).chain(elements(svg, "circle").map(circle)).collect()
}

fn strokes(svg: &str) -> Vec<Area> {
    let stroke = |element| {
        let (x1, x2, y1, y2) =
            (number(element, "x1"), number(element, "x2"), number(element, "y1"), number(element, "y2"));
        Area { left: x1.min(x2), top: y1.min(y2), right: x1.max(x2), bottom: y1.max(y2) }
    };
    elements(svg, "line").map(stroke).collect()
}

/// Panics unless everything is within the picture and no label overlaps anything.
fn assert_legible(name: &str, svg: &str) {
    let size: Vec<f64> = attribute(svg, "viewBox").split(' ').map(|number| number.parse().unwrap()).collect();
    let picture = Area { left: size[0], top: size[1], right: size[2], bottom: size[3] };
    let texts: Vec<_> = elements(svg, "text").map(|element| (element, text_area(element))).collect();
    assert!(!texts.is_empty());
    for area in texts.iter().map(|(_, area)| *area).chain(marks(svg)).chain(strokes(svg)) {
        assert!(area.within(&picture), "{name}: {area:?} is not within {picture:?}");
    }
    for (place, (element, area)) in texts.iter().enumerate() {
        for (other, with) in &texts[place + 1..] {
            assert!(!area.meets(with), "{name}: these overlap\n{element}\n{other}");
        }
        for mark in marks(svg).into_iter().chain(strokes(svg)) {
            assert!(!area.meets(&mark), "{name}: {element} overlaps {mark:?}");
        }
    }
}

#[test]
fn labels_stand_alone_within_the_picture() {
    for (name, chart) in charts().unwrap() {
        assert_legible(&name, &svg::draw(&chart));
    }
    for (name, recording) in recordings().unwrap() {
        assert_legible(&name, &series::draw(&recording));
    }
}

#[test]
fn lines_that_end_in_one_point_have_separate_labels() {
    let charts = charts().unwrap();
    let (name, mut chart) = charts.into_iter().find(|(name, _)| name == "cores").unwrap();
    for row in chart.panels.iter_mut().flat_map(|panel| &mut panel.rows) {
        row.median.values_mut().for_each(|figure| *figure = Number::from_f64(0.1).unwrap());
    }
    assert_legible(&name, &svg::draw(&chart));
}

#[test]
fn each_figure_has_its_mark() {
    for (name, chart) in charts().unwrap() {
        let figures = chart.panels.iter().flat_map(|panel| &panel.rows).flat_map(|row| row.median.values());
        let above_zero = figures.filter(|figure| figure.as_f64().unwrap() > 0.0).count();
        assert_eq!(marks(&svg::draw(&chart)).len(), above_zero, "{name}");
    }
}

#[test]
fn committed_pictures_are_drawn_from_the_committed_figures() {
    let charts = charts().unwrap();
    let files = fs::read_dir(PICTURES).unwrap().map(|file| file.unwrap().path());
    let pictures = files.filter(|path| path.extension().is_some_and(|extension| extension == "svg")).count();
    let drawn = charts.iter().map(|(name, chart)| (name.clone(), svg::draw(chart)));
    let recordings = recordings().unwrap();
    let recorded = recordings.iter().map(|(name, recording)| (name.clone(), series::draw(recording)));
    assert_eq!(pictures, charts.len() + recordings.len());
    for (name, drawn) in drawn.chain(recorded) {
        let committed = fs::read_to_string(Path::new(PICTURES).join(format!("{name}.svg"))).unwrap();
        assert!(committed == drawn, "draw {name}.svg again: roundtrips report");
    }
}

/// Returns a table's cells. A label that is only a number is completed with the text of an earlier row.
fn table(page: &str, section: &str) -> Vec<Vec<String>> {
    let mut lines = page.lines().skip_while(|line| *line != section).skip_while(|line| !line.starts_with('|'));
    let plain = |cell: &str| cell.trim().replace(['*', '`'], "");
    let cells = |line: &str| line.trim_matches('|').split('|').map(plain).collect::<Vec<_>>();
    let mut rows: Vec<Vec<String>> = lines.by_ref().take_while(|line| line.starts_with('|')).map(cells).collect();
    let mut above = String::new();
    for row in &mut rows {
        match row[0].rsplit_once(", ") {
            Some((text, _)) => above = text.to_owned(),
            None if !above.is_empty() && row[0].parse::<u32>().is_ok() => row[0] = format!("{above}, {}", row[0]),
            None => {}
        }
    }
    rows
}

#[test]
fn figures_are_those_of_the_page() {
    let read = |page: &str| fs::read_to_string(Path::new(PICTURES).join("../..").join(page)).unwrap();
    let shown = read("BENCHMARKS.md");
    assert!(shown.lines().count() <= 300, "BENCHMARKS.md has {} lines: move history elsewhere", shown.lines().count());
    for (name, chart) in charts().unwrap() {
        assert!(shown.contains(&format!("](docs/pictures/{name}.svg)")), "BENCHMARKS.md does not show {name}.svg");
        let section = chart.section.as_deref().unwrap();
        let table = table(&read(&chart.page), section);
        for row in chart.panels.iter().flat_map(|panel| &panel.rows) {
            let cells = table.iter().find(|cells| cells[0] == row.table);
            let cells = cells.unwrap_or_else(|| panic!("{name}: no row {:?} below {:?}", row.table, section));
            for (subject, figure) in &row.median {
                let column =
                    table[0].iter().position(|head| head.starts_with(subject.trim_start_matches("wharf's "))).unwrap();
                let shown = cells[column].split(' ').next().unwrap().replace(',', "");
                assert_eq!(shown.parse().ok(), figure.as_f64(), "{name}: {} of {subject}", row.table);
            }
        }
    }
}

#[test]
fn measured_figures_replace_the_committed_ones() {
    let text = r#"{"subjects": ["wharf"], "rows": [
        {"case": "hit/1-task", "what": "ns per operation", "median": {"wharf": 12.3456}, "ratio": {}},
        {"case": "hit/2-tasks", "what": "Jain index", "median": {"wharf": 1.0}},
        {"case": "yield/64-tasks", "what": "ns per operation", "median": {"wharf": 1234.5, "sqlx": 0.987}}]}"#;
    let measured: Measured = serde_json::from_str(text).unwrap();
    for (name, mut chart) in charts().unwrap() {
        chart.take(&measured, Path::new("bench-ratios.json"));
        if name != "pools" {
            assert!(chart.panels.is_empty(), "{name}");
            continue;
        }
        let svg = svg::draw(&chart);
        for text in [">12.3<", ">1,235<", ">0.99<"] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        assert!(
            chart.caption()[0].ends_with(" Medians from bench-ratios.json; this machine."),
            "{:?}",
            chart.caption()
        );
        for text in [">kanal<", "2 tasks", "BENCHMARKS.md", &chart.date] {
            assert!(!svg.contains(text), "{text} is in {svg}");
        }
        assert_legible(&name, &svg);
    }
}
