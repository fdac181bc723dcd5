//! Records the events of one pool in the format's notation, and implements the format's match function.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use wharf::{OptionValue, PoolEvent, Subscriber};

/// Records all events, and lets tests wait for them.
#[derive(Default)]
pub struct Recorder {
    events: Mutex<Vec<Value>>,
    changed: Notify,
}

impl Recorder {
    pub fn events(&self) -> Vec<Value> {
        self.events.lock().unwrap().clone()
    }

    /// Waits until `count` events of this type have been recorded.
    ///
    /// # Errors
    ///
    /// If `timeout` elapses first, returns the number of events so far.
    pub async fn wait_for(&self, event_type: &str, count: usize, timeout: Duration) -> Result<(), usize> {
        let seen = || self.events.lock().unwrap().iter().filter(|event| event["type"] == event_type).count();
        let enough = async {
            loop {
                let mut changed = std::pin::pin!(self.changed.notified());
                // The notification is enabled before the events are counted, so that no event is missed.
                changed.as_mut().enable();
                if seen() >= count {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(timeout, enough).await.map_err(|_elapsed| seen())
    }
}

/// The subscriber that feeds a recorder.
pub struct Recording(pub std::sync::Arc<Recorder>);

impl Subscriber for Recording {
    fn on_event(&self, event: &PoolEvent) {
        self.0.events.lock().unwrap().push(to_json(event));
        self.0.changed.notify_waiters();
    }
}

/// Converts an event to the format's notation: `PoolReady` becomes `ConnectionPoolReady`, and so on.
fn to_json(event: &PoolEvent) -> Value {
    let name = event.name();
    let mut fields = Map::new();
    let event_type = if name.starts_with("Pool") { format!("Connection{name}") } else { name.to_owned() };
    fields.insert("type".into(), event_type.into());
    fields.insert("address".into(), event.address().into());
    if let Some(id) = event.connection_id() {
        fields.insert("connectionId".into(), id.into());
    }
    if let Some(duration) = event.duration() {
        fields.insert("duration".into(), (duration.as_millis() as u64).into());
    }
    if let Some(reason) = event.reason() {
        fields.insert("reason".into(), reason.into());
    }
    match event {
        PoolEvent::PoolCreated { options, .. } => {
            let options = options.non_default().into_iter().map(|(name, value)| {
                let value = match value {
                    OptionValue::Number(number) => json!(number),
                    OptionValue::Flag(flag) => json!(flag),
                    other => panic!("{other:?}"),
                };
                (name.to_owned(), value)
            });
            fields.insert("options".into(), Value::Object(options.collect()));
        }
        PoolEvent::PoolCleared { service_id, interrupt_in_use_connections, .. } => {
            fields.insert("interruptInUseConnections".into(), (*interrupt_in_use_connections).into());
            if let Some(service_id) = service_id {
                fields.insert("serviceId".into(), service_id.to_string().into());
            }
        }
        _ => {}
    }
    Value::Object(fields)
}

/// Checks that "`actual` MATCHES `expected`", as the format defines it: every expected value must be present, and `42`
/// matches any value.
///
/// # Errors
///
/// Returns the first difference and its location.
pub fn matches(expected: &Value, actual: Option<&Value>, place: &str) -> Result<(), String> {
    let actual = match actual {
        None | Some(Value::Null) => return Err(format!("{place}: expected {expected}, found nothing")),
        Some(actual) => actual,
    };
    if *expected == json!(42) || *expected == json!("42") {
        return Ok(());
    }
    match (expected, actual) {
        (Value::Array(expected), Value::Array(actual)) => expected
            .iter()
            .enumerate()
            .try_for_each(|(index, value)| matches(value, actual.get(index), &format!("{place}[{index}]"))),
        (Value::Object(expected), Value::Object(actual)) => {
            expected.iter().try_for_each(|(key, value)| matches(value, actual.get(key), &format!("{place}.{key}")))
        }
        // The pool may append details to the message that the format expects.
        (Value::String(expected), Value::String(actual))
            if place == "error.message" && actual.starts_with(expected) =>
        {
            Ok(())
        }
        _ if expected == actual => Ok(()),
        _ => Err(format!("{place}: expected {expected}, found {actual}")),
    }
}

#[test]
fn match_function_follows_the_format() {
    let ok = |expected, actual| matches(&expected, Some(&actual), "").is_ok();
    assert!(ok(json!(42), json!("anything")));
    assert!(ok(json!("42"), json!({})));
    assert!(!ok(json!(42), Value::Null));
    assert!(ok(json!({ "a": 1 }), json!({ "a": 1, "b": 2 })), "a subset");
    assert!(!ok(json!({ "a": 1, "b": 2 }), json!({ "a": 1 })));
    assert!(!ok(json!(1), json!("1")), "of another type");
    assert!(ok(json!([1]), json!([1, 2])));
    assert!(!ok(json!([1, 42]), json!([1])));
    assert!(!ok(json!({ "a": 42 }), json!({})));
}
