//! Checks that warnings about connection strings are logged.
//!
//! This is a separate test binary, because `tracing` determines only once per process whether a call site has a
//! subscriber. A test on another thread without a subscriber could reach the call site first.
#![cfg(not(loom))]

use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use wharf::Options;

/// The level, target and message of an event.
type Line = (Level, &'static str, String);

/// Keeps the messages of all events.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Line>>>);

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push((*event.metadata().level(), event.metadata().target(), message.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn every_warning_is_logged_once() {
    let log = Log::default();
    let options = tracing::subscriber::with_default(log.clone(), || {
        Options::parse("mongodb://a/?foo=1&w=-1&proxyPassword=&authMechanismProperties=hunter2").unwrap()
    });
    let logged = log.0.lock().unwrap();
    assert!(logged.iter().all(|(level, target, _)| (*level, *target) == (Level::WARN, "wharf::options")));
    let messages: Vec<_> = logged.iter().map(|(_, _, message)| message.clone()).collect();
    let warnings: Vec<_> = options.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(messages, warnings);
    assert_eq!(warnings.len(), 3);
}

#[test]
fn unapplied_options_are_logged_with_the_endpoint() {
    let uri = "mongodb://a/?w=majority&journal=true&wTimeoutMS=5&readConcernLevel=local&readPreference=nearest";
    let options = Options::parse(uri).unwrap();
    assert_eq!(options.warnings(), []);
    let log = Log::default();
    let _ = tracing::subscriber::with_default(log.clone(), || options.endpoint().unwrap());
    let unapplied: Vec<_> = options.unapplied().iter().map(|warning| (Level::WARN, warning.to_string())).collect();
    let logged = log.0.lock().unwrap();
    let logged: Vec<_> = logged
        .iter()
        .filter(|(_, target, _)| *target == "wharf::options")
        .map(|(level, _, message)| (*level, message.clone()))
        .collect();
    assert_eq!(logged, unapplied);
    let start = r#"has no effect, because a pool sends commands as they are: give each"#;
    let write = format!("{start} write its writeConcern");
    let expected = [
        format!(r#"w {write}"#),
        format!(r#"journal {write}"#),
        format!(r#"wTimeoutMS {write}"#),
        format!(r#"readConcernLevel {start} read its readConcern"#),
        format!(r#"readPreference {start} read its $readPreference"#),
    ];
    assert_eq!(unapplied.iter().map(|(_, message)| message.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(Options::parse("mongodb://a/?readPreference=primary&retryWrites=true").unwrap().unapplied(), []);
}
