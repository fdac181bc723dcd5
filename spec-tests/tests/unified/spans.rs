//! The spans that a case expects, and the spans that its clients create.
//!
//! A `tracing` subscriber collects the spans. With the `opentelemetry` feature, an exporter for each client also
//! collects them. A case must pass with the subscriber and with the exporters.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use bson::{Bson, Document, doc};
use serde::Deserialize;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use wharf::client::TracingOptions;

use crate::format::{Filled, Object, set};
use crate::matching::{Entities, document, matches};
use crate::observed::Values;

/// A maximum length that no command in the suite exceeds.
const QUERY_TEXT: usize = 1_000_000;

/// Which of a client's spans are observed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObserveTracing {
    #[serde(default, deserialize_with = "set", rename = "enableCommandPayload")]
    payload: Option<bool>,
}

/// The spans that a case expects from a client.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedSpans {
    pub client: String,
    #[serde(default, deserialize_with = "set", rename = "ignoreExtraSpans")]
    ignore_extra: Option<bool>,
    spans: Filled<ExpectedSpan>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedSpan {
    name: String,
    attributes: Object,
    #[serde(default, deserialize_with = "set")]
    nested: Option<Filled<ExpectedSpan>>,
}

/// A span from a client.
#[derive(Debug, Clone)]
struct Span {
    id: u64,
    parent: Option<u64>,
    name: String,
    attributes: Document,
}

impl ExpectedSpans {
    /// Checks a client's spans, in the order in which they began.
    fn check(&self, spans: &[Span], entities: &dyn Entities) -> Result<(), String> {
        self.check_children(&self.spans.0, None, spans, entities).map_err(|error| format!("{error}; all: {spans:#?}"))
    }

    fn check_children(
        &self,
        expected: &[ExpectedSpan],
        parent: Option<u64>,
        spans: &[Span],
        entities: &dyn Entities,
    ) -> Result<(), String> {
        let is_extra = self.ignore_extra == Some(true);
        let mut children = spans.iter().filter(|span| span.parent == parent);
        for expected in expected {
            let mut last = format!("there is no span {}", expected.name);
            loop {
                let Some(child) = children.next() else { return Err(last) };
                match self.check_one(expected, child, spans, entities) {
                    Ok(()) => break,
                    Err(error) if is_extra => last = error,
                    Err(error) => return Err(error),
                }
            }
        }
        match children.next() {
            Some(extra) if !is_extra => Err(format!("the span {} is not expected", extra.name)),
            _ => Ok(()),
        }
    }

    fn check_one(
        &self,
        expected: &ExpectedSpan,
        actual: &Span,
        spans: &[Span],
        entities: &dyn Entities,
    ) -> Result<(), String> {
        if expected.name != actual.name {
            return Err(format!("expected the span {}, got {}", expected.name, actual.name));
        }
        let mut attributes = actual.attributes.clone();
        // `$$sessionLsid` stands for the whole document, so the attribute is converted to a document.
        if let Ok(id) = attributes.get_str("db.mongodb.lsid") {
            let id = bson::Uuid::parse_str(id).map_err(|error| error.to_string())?;
            attributes.insert("db.mongodb.lsid", doc! { "id": id });
        }
        matches(&Bson::Document(document(&expected.attributes)), Some(&attributes.into()), true, entities)
            .map_err(|error| format!("{}: {error}", actual.name))?;
        let nested = expected.nested.as_ref().map_or(&[][..], |nested| &nested.0);
        self.check_children(nested, Some(actual.id), spans, entities)
    }
}

/// Collects a case's spans that go to `tracing`. Span `n` is entry `n - 1`.
#[derive(Clone, Default)]
pub struct Collector(Arc<Mutex<Vec<Span>>>);

thread_local! {
    /// The spans that this thread has entered.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Collector {
    pub fn check(&self, expected: &ExpectedSpans, entities: &dyn Entities) -> Result<(), String> {
        let spans = self.0.lock().unwrap().clone();
        expected.check(&spans, entities).map_err(|error| format!("tracing: {error}"))
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "wharf::operation"
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let here = ENTERED.with_borrow(|entered| entered.last().copied());
        let parent = if attributes.is_contextual() { here } else { attributes.parent().map(Id::into_u64) };
        let mut spans = self.0.lock().unwrap();
        let id = spans.len() as u64 + 1;
        spans.push(Span { id, parent, name: String::new(), attributes: Document::new() });
        drop(spans);
        self.add(id, |values| attributes.record(values));
        Id::from_u64(id)
    }
    fn record(&self, id: &Id, values: &Record<'_>) {
        self.add(id.into_u64(), |into| values.record(into));
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.into_u64()));
    }
    fn exit(&self, id: &Id) {
        let left = ENTERED.with_borrow_mut(Vec::pop);
        assert_eq!(left, Some(id.into_u64()));
    }
}

impl Collector {
    fn add(&self, id: u64, record: impl FnOnce(&mut Values)) {
        let mut values = Values::default();
        record(&mut values);
        let mut spans = self.0.lock().unwrap();
        let span = &mut spans[id as usize - 1];
        for (name, value) in values.0 {
            match (name, value) {
                ("otel.name", Bson::String(name)) => span.name = name,
                // The bridge's other fields are not attributes.
                (name, _) if name.starts_with("otel.") => {}
                (name, value) => _ = span.attributes.insert(name, value),
            }
        }
    }
}

/// A client's spans that go to an OpenTelemetry tracer.
#[derive(Default)]
pub struct Exported {
    #[cfg(feature = "opentelemetry")]
    exporter: Option<opentelemetry_sdk::trace::InMemorySpanExporter>,
}

impl Exported {
    /// Returns the destination for a client's spans, and that client's tracing options.
    pub fn of(observe: Option<&ObserveTracing>) -> (Self, TracingOptions) {
        let options = TracingOptions::new();
        let Some(ObserveTracing { payload }) = observe else { return (Self::default(), options) };
        let options = options.query_text_max_length(if *payload == Some(true) { QUERY_TEXT } else { 0 });
        #[cfg(feature = "opentelemetry")]
        {
            let exporter = opentelemetry_sdk::trace::InMemorySpanExporter::default();
            let provider = opentelemetry_sdk::trace::SdkTracerProvider::builder();
            let provider = provider.with_simple_exporter(exporter.clone()).build();
            (Self { exporter: Some(exporter) }, options.enabled(true).tracer_provider(provider))
        }
        #[cfg(not(feature = "opentelemetry"))]
        (Self::default(), options)
    }

    #[cfg(not(feature = "opentelemetry"))]
    pub fn check(&self, _: &ExpectedSpans, _: &dyn Entities) -> Result<(), String> {
        Ok(())
    }

    #[cfg(feature = "opentelemetry")]
    pub fn check(&self, expected: &ExpectedSpans, entities: &dyn Entities) -> Result<(), String> {
        use opentelemetry::{SpanId, Value};

        let number = |id: SpanId| u64::from_be_bytes(id.to_bytes());
        let exporter = self.exporter.as_ref().ok_or("the client observes no spans")?;
        let mut finished = exporter.get_finished_spans().map_err(|error| error.to_string())?;
        finished.sort_by_key(|span| span.start_time);
        let span_of = |span: &opentelemetry_sdk::trace::SpanData| Span {
            id: number(span.span_context.span_id()),
            parent: (span.parent_span_id != SpanId::INVALID).then(|| number(span.parent_span_id)),
            name: span.name.to_string(),
            attributes: span
                .attributes
                .iter()
                .map(|attribute| {
                    let value = match &attribute.value {
                        Value::I64(value) => Bson::Int64(*value),
                        value => Bson::String(value.to_string()),
                    };
                    (attribute.key.to_string(), value)
                })
                .collect(),
        };
        let spans: Vec<_> = finished.iter().map(span_of).collect();
        expected.check(&spans, entities).map_err(|error| format!("OpenTelemetry: {error}"))
    }
}
