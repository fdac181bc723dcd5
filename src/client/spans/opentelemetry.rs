//! Spans in an OpenTelemetry tracer.

use std::borrow::Cow;
use std::sync::OnceLock;

use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer as _};
use opentelemetry::{Context, ContextGuard, InstrumentationScope, KeyValue};

use super::options::{Provider, Settings};
use super::{Attribute, TracingOptions, Value};

/// The tracer of a client.
pub(super) struct Tracer {
    /// `None` for the global provider.
    provider: Option<Provider>,
    /// Created with the first span, because an application may set the global provider after it has built the client.
    tracer: OnceLock<BoxedTracer>,
}

impl Tracer {
    /// Returns the tracer, if the options or the environment switch it on.
    pub(super) fn of(options: TracingOptions) -> Option<Self> {
        let Settings { is_enabled, .. } = options.settings();
        is_enabled.then(|| Self { provider: options.provider, tracer: OnceLock::new() })
    }

    fn get(&self) -> &BoxedTracer {
        self.tracer.get_or_init(|| {
            let scope = InstrumentationScope::builder("wharf").with_version(env!("CARGO_PKG_VERSION")).build();
            match &self.provider {
                Some(provider) => BoxedTracer::new(provider.boxed_tracer(scope)),
                None => global::tracer_with_scope(scope),
            }
        })
    }

    /// Begins a span. Without `parent`, the current context's span is the parent.
    pub(super) fn begin(&self, name: Cow<'_, str>, attributes: Vec<Attribute<'_>>, parent: Option<&Traced>) -> Traced {
        let tracer = self.get();
        let attributes: Vec<_> = attributes.into_iter().map(|(name, value)| key_value(name, value)).collect();
        let builder = tracer.span_builder(name.into_owned()).with_kind(SpanKind::Client).with_attributes(attributes);
        let parent = parent.map_or_else(Context::current, |Traced(parent)| parent.clone());
        let span = tracer.build_with_context(builder, &parent);
        Traced(parent.with_span(span))
    }
}

fn key_value(name: &'static str, value: Value<'_>) -> KeyValue {
    match value {
        Value::Text(text) => KeyValue::new(name, text.into_owned()),
        Value::Number(number) => KeyValue::new(name, number),
    }
}

/// A context with a span. The span ends when this value is dropped.
pub(super) struct Traced(Context);

impl Traced {
    pub(super) fn is_recording(&self) -> bool {
        self.0.span().is_recording()
    }

    pub(super) fn set(&self, name: &'static str, value: Value<'_>) {
        self.0.span().set_attribute(key_value(name, value));
    }

    /// Sets the status to an error. The status has no description, because the exception contains the message.
    pub(super) fn fail(&self) {
        self.0.span().set_status(Status::error(""));
    }

    pub(super) fn attach(&self) -> ContextGuard {
        self.0.clone().attach()
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.0.span().end();
    }
}
