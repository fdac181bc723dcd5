//! The facade with a Prometheus exporter, and the dashboard that reads from it.

use std::collections::BTreeSet;

use metrics_exporter_prometheus::PrometheusBuilder;
use wharf::telemetry::{FacadeMetrics, METRICS};

use super::{pool_of, use_it};

const DASHBOARD: &str = include_str!("../../../examples/service/grafana.json");

/// Returns the names of the metrics in the dashboard's queries.
fn queried() -> BTreeSet<&'static str> {
    let words = DASHBOARD.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("wharf_pool_")).collect()
}

#[tokio::test]
async fn dashboard_finds_what_it_queries_whether_or_not_the_exporter_completes_names() {
    let pool = pool_of(1);
    use_it(&pool, 5).await;
    assert!(queried().len() > 15, "{:?}", queried());
    for completes_names in [false, true] {
        let builder = PrometheusBuilder::new().with_recommended_naming(completes_names);
        let recorder = builder.set_buckets(&[0.001, 1.0]).unwrap().build_recorder();
        let facade = metrics::with_local_recorder(&recorder, || FacadeMetrics::new(&pool));
        assert!(metrics::with_local_recorder(&recorder, || facade.publish()));
        let scraped = recorder.handle().render();
        let samples = scraped.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let names: BTreeSet<&str> = samples.map(|line| line.split(['{', ' ']).next().unwrap()).collect();
        for name in queried() {
            assert!(names.contains(name), "the dashboard queries {name}, which is not in\n{scraped}");
        }
        for metric in METRICS {
            assert!(scraped.contains(&format!("# TYPE {} ", metric.name)), "{} in\n{scraped}", metric.name);
        }
        assert!(scraped.contains("wharf_pool_check_outs_total{pool=\"here:1\",outcome=\"hit\"} 6"), "{scraped}");
    }
}
