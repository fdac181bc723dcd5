//! Reads a test file in the specification's format.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value};
use wharf::{BackgroundInterval, PoolOptions};

pub struct Case {
    pub description: String,
    pub style: String,
    /// The version requirements. At least one of them must be met.
    pub run_on: Vec<Value>,
    pub fail_point: Option<Value>,
    pub app_name: Option<String>,
    pub options: PoolOptions,
    pub operations: Vec<Value>,
    pub error: Option<Value>,
    pub events: Vec<Value>,
    pub ignore: Vec<String>,
    /// Extension: whether `events` is complete, in which case any further event is a failure.
    pub exact: bool,
    /// Extension: the behaviour of the mock.
    pub mock: Map<String, Value>,
}

impl Case {
    pub fn read(path: &Path) -> Self {
        let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let file: Value = serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let Value::Object(mut file) = file else { panic!("{}: not an object", path.display()) };
        let mut take = |key: &str| file.remove(key).unwrap_or_default();
        assert_eq!(take("version"), 1, "the version of the format");
        let (app_name, options) = pool_options(&take("poolOptions"));
        let case = Self {
            description: take("description").as_str().expect("a description").into(),
            style: take("style").as_str().expect("a style").into(),
            run_on: list(take("runOn")),
            fail_point: Some(take("failPoint")).filter(Value::is_object),
            app_name,
            options,
            operations: list(take("operations")),
            error: Some(take("error")).filter(Value::is_object),
            events: list(take("events")),
            ignore: list(take("ignore")).iter().map(|name| name.as_str().expect("an event's name").into()).collect(),
            exact: take("exact").as_bool().unwrap_or(false),
            mock: match take("mock") {
                Value::Object(mock) => mock,
                _ => Map::new(),
            },
        };
        assert!(file.is_empty(), "{}: unknown fields {:?}", path.display(), file.keys().collect::<Vec<_>>());
        case
    }
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

pub fn millis(value: &Value) -> Duration {
    Duration::from_millis(number(value))
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        Value::Null => Vec::new(),
        single => vec![single],
    }
}

/// The default interval of the background task. No test takes that long, so by default the task runs only when
/// something requests a run.
const REST: Duration = Duration::from_secs(24 * 60 * 60);

fn pool_options(given: &Value) -> (Option<String>, PoolOptions) {
    let mut app_name = None;
    let mut options = PoolOptions::default().background_interval(BackgroundInterval::Every(REST));
    for (name, value) in given.as_object().into_iter().flatten() {
        let count = || u32::try_from(number(value)).expect("a count");
        options = match name.as_str() {
            "appName" => {
                app_name = Some(value.as_str().expect("a name").to_owned());
                options
            }
            "backgroundThreadIntervalMS" => options.background_interval(match value.as_i64() {
                Some(..0) => BackgroundInterval::Never,
                _ => BackgroundInterval::Every(millis(value)),
            }),
            "loadBalanced" => options.load_balanced(value.as_bool().expect("a flag")),
            "maxConnecting" => options.max_connecting(count()),
            "maxIdleTimeMS" => options.max_idle_time(millis(value)),
            "maxPoolSize" => options.max_pool_size(count()),
            "minPoolSize" => options.min_pool_size(count()),
            "waitQueueTimeoutMS" => options.wait_queue_timeout(millis(value)),
            unknown => panic!("unknown pool option {unknown}"),
        };
    }
    (app_name, options)
}
