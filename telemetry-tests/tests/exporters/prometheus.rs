//! Checks that the Prometheus project's own parser reads the exporters' output, and that the dashboard and the alerts
//! query existing metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use bson::raw::CString;
use bson::{Document, RawDocumentBuf, doc};
use metrics_exporter_prometheus::PrometheusBuilder;
use wharf::client::CommandMetrics;
use wharf::telemetry::{FacadeMetrics, METRICS, MetricKind, prometheus_text};
use wharf::{Client, Options};
use wharf_testbed::provision;
use wharf_testbed::scripted::{Answer, ScriptedServer};

use super::{pool_of, use_it};

const DASHBOARD: &str = include_str!("../../../examples/service/grafana.json");
const ALERTS: &str = include_str!("../../../examples/service/alerts.yml");

/// Prints each sample: its name and its labels, separated by tabs.
const PARSE: &str = r#"
import importlib, pathlib, sys
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder.parent))
parser = importlib.import_module(folder.name + ".parser")
for family in parser.text_string_to_metric_families(sys.stdin.read()):
    for sample in family.samples:
        print(sample.name, *(f"{name}={value}" for name, value in sample.labels.items()), sep="\t")
"#;

/// The values of each label of each metric.
type Published = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Returns the metrics and labels that Prometheus reads from a scrape.
fn read(scraped: &str) -> Published {
    let folder = provision::prometheus_parser().expect("the parser of Prometheus");
    let mut parser = Command::new("python3");
    parser.args(["-B", "-c", PARSE]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut parser = parser.spawn().unwrap();
    parser.stdin.take().unwrap().write_all(scraped.as_bytes()).unwrap();
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success(), "Prometheus does not read\n{scraped}");
    let mut published = Published::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let mut fields = line.split('\t');
        let labels = published.entry(fields.next().unwrap().to_owned()).or_default();
        for (name, value) in fields.map(|label| label.split_once('=').unwrap()) {
            labels.entry(name.to_owned()).or_default().insert(value.to_owned());
        }
    }
    published
}

/// Returns the metrics of a pool that was used, as each exporter writes them in the Prometheus text format: wharf's own
/// exporter, and the facade without and with completed names.
async fn published() -> [Published; 3] {
    let pool = pool_of(1);
    use_it(&pool, 5).await;
    let of_facade = |completes_names| {
        let builder = PrometheusBuilder::new().with_recommended_naming(completes_names);
        let recorder = builder.set_buckets(&[0.001, 1.0]).unwrap().build_recorder();
        let facade = metrics::with_local_recorder(&recorder, || FacadeMetrics::new(&pool));
        assert!(metrics::with_local_recorder(&recorder, || facade.publish()));
        recorder.handle().render()
    };
    [prometheus_text(&[pool.metrics()]), of_facade(false), of_facade(true)].map(|scraped| {
        assert!(scraped.contains("wharf_pool_check_outs_total{pool=\"here:1\",outcome=\"hit\"} 6"), "{scraped}");
        read(&scraped)
    })
}

/// Returns the dashboard's queries and the alerts' expressions.
fn queries() -> Vec<String> {
    let of_dashboard = DASHBOARD.lines().filter_map(|line| line.trim().strip_prefix("\"expr\": \""));
    let mut queries: Vec<String> =
        of_dashboard.map(|rest| rest.trim_end_matches(',').trim_end_matches('"').replace("\\\"", "\"")).collect();
    assert!(queries.len() > 15, "{queries:?}");
    let mut lines = ALERTS.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(expression) = line.trim().strip_prefix("expr: ") else { continue };
        let mut expression = if expression == ">-" { String::new() } else { expression.to_owned() };
        let indent = |line: &str| line.len() - line.trim_start().len();
        while let Some(more) = lines.next_if(|more| indent(more) > indent(line)) {
            expression = format!("{expression} {}", more.trim());
        }
        queries.push(expression);
    }
    queries
}

/// A metric that a query names, and its matchers: the label, the operator and the value.
type Selector<'q> = (&'q str, Vec<(&'q str, &'q str, &'q str)>);

/// Returns the metrics that a query names.
fn selectors(query: &str) -> Vec<Selector<'_>> {
    query.match_indices("wharf_pool_").map(|(at, _)| selector(&query[at..])).collect()
}

fn selector(text: &str) -> Selector<'_> {
    let (name, rest) = text.split_at(text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()));
    let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(matchers, _)| matchers);
    let matchers = matchers.split(',').filter(|matcher| !matcher.is_empty()).map(|matcher| {
        let (label, rest) = matcher.split_at(matcher.find(['=', '!']).expect("an operator"));
        let (operator, value) = rest.split_at(rest.find('"').expect("a value"));
        (label.trim(), operator, value.trim_matches('"'))
    });
    (name, matchers.collect())
}

/// Returns the labels after `by` and `on`.
fn grouped_by(query: &str) -> impl Iterator<Item = &str> {
    let lists = ["by (", "on ("].into_iter().flat_map(|word| query.split(word).skip(1));
    lists.flat_map(|rest| rest.split_once(')').expect("a list of labels").0.split(',').map(str::trim))
}

#[tokio::test]
async fn dashboard_and_alerts_query_what_is_published() {
    // Labels that Prometheus adds.
    const ADDED: [&str; 2] = ["job", "instance"];
    for published in published().await {
        for query in queries() {
            let mut labels: BTreeSet<&str> = ADDED.into();
            let selectors = selectors(&query);
            assert!(!selectors.is_empty(), "{query}");
            for (name, matchers) in selectors {
                let of_metric = published.get(name).unwrap_or_else(|| panic!("{name} is not published: {query}"));
                labels.extend(of_metric.keys().map(String::as_str));
                for (label, operator, value) in matchers {
                    let values = of_metric.get(label).unwrap_or_else(|| panic!("{name} has no {label}: {query}"));
                    let wanted = value.split('|').filter(|value| *value != "$pool");
                    for value in wanted {
                        assert!(values.contains(value), "{name} has no {label} {operator} {value}: {query}");
                    }
                }
            }
            for label in grouped_by(&query) {
                assert!(labels.contains(label), "no metric has the label {label}: {query}");
            }
        }
    }
}

#[tokio::test]
async fn prometheus_reads_all_metrics() {
    for published in published().await {
        for metric in METRICS {
            let endings: &[&str] = match metric.kind {
                MetricKind::Histogram => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            for ending in endings {
                let labels = published.get(&format!("{}{ending}", metric.name));
                let labels = labels.unwrap_or_else(|| panic!("{}{ending} is not published", metric.name));
                assert!(labels["pool"].contains("here:1"), "{}", metric.name);
                assert_eq!(metric.label.is_some_and(|label| labels.contains_key(label)), metric.label.is_some());
            }
        }
    }
}

#[tokio::test]
async fn prometheus_reads_the_metrics_of_commands_with_any_name() {
    let reply = doc! { "ok": 1, "isWritablePrimary": true, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21 };
    let server = ScriptedServer::start(move || {
        let reply = reply.clone();
        Box::new(move |_: &Document| Answer::Reply(reply.clone()))
    });
    let server = server.await.unwrap();
    let commands = CommandMetrics::new();
    let options = Options::parse(&format!("mongodb://{}/?serverMonitoringMode=poll", server.address())).unwrap();
    let client = Client::builder(options).command_subscriber(commands.clone()).build().unwrap();
    let names = ["ping", "a\"b\\c{d=,"];
    for name in names {
        let mut command = RawDocumentBuf::new();
        command.append(CString::try_from(name).unwrap(), 1);
        client.run_command("admin", &command).await.unwrap();
    }
    let published = read(&(prometheus_text(&client.metrics()) + &commands.prometheus_text()));
    assert!(published.contains_key("wharf_pool_ready"));
    for ending in ["_bucket", "_sum", "_count"] {
        let labels = &published[&format!("wharf_command_seconds{ending}")];
        assert_eq!(labels["command"], names.map(str::to_owned).into());
        assert_eq!(labels["outcome"], ["failed", "succeeded"].map(str::to_owned).into());
    }
}

#[test]
fn alerts_say_what_to_do() {
    let alerts: Vec<&str> = ALERTS.split("- alert: ").skip(1).collect();
    let names: Vec<&str> = alerts.iter().map(|alert| alert.lines().next().unwrap()).collect();
    for name in ["WharfPoolExhausted", "WharfCheckOutsSlow", "WharfOpeningStorm", "WharfNoPrimary"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for alert in alerts {
        for key in ["expr:", "for:", "severity:", "summary:", "description:"] {
            assert_eq!(alert.lines().filter(|line| line.trim().starts_with(key)).count(), 1, "{key} in {alert}");
        }
    }
}
