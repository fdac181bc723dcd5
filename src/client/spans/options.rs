//! The options of spans, and their environment variables.

use std::env;
use std::fmt;

/// The environment variable that switches on a client's OpenTelemetry spans, with the `opentelemetry` feature.
#[cfg(feature = "opentelemetry")]
const ENABLED: &str = "OTEL_RUST_INSTRUMENTATION_MONGODB_ENABLED";

/// The environment variable for the maximum number of characters in `db.query.text`.
const QUERY_TEXT: &str = "OTEL_RUST_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH";

/// The tracer provider that the application passes to a client.
#[cfg(feature = "opentelemetry")]
pub(super) type Provider = std::sync::Arc<dyn opentelemetry::global::ObjectSafeTracerProvider + Send + Sync>;

/// Options for the spans of a client: [`ClientBuilder::tracing`](crate::ClientBuilder::tracing).
///
/// A client creates a span for each operation, each command that it sends, and each transaction, with the names and
/// attributes from MongoDB's OpenTelemetry specification. The spans go to two independent destinations:
///
/// | | switched on by |
/// | --- | --- |
/// | a subscriber of [`tracing`](mod@tracing) | its filter: level `DEBUG`, target `wharf::operation` |
/// | a tracer of OpenTelemetry, with the `opentelemetry` feature | `enabled`, or the environment variable `OTEL_RUST_INSTRUMENTATION_MONGODB_ENABLED` |
///
/// [The guide](crate::guide::metrics_and_traces#traces) lists the attributes and shows an example.
#[derive(Clone, Default)]
#[must_use]
pub struct TracingOptions {
    query_text_max_length: Option<usize>,
    #[cfg(feature = "opentelemetry")]
    enabled: Option<bool>,
    #[cfg(feature = "opentelemetry")]
    pub(super) provider: Option<Provider>,
}

impl TracingOptions {
    /// Creates options that use the values of the environment variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets whether the spans go to an OpenTelemetry tracer. The default is true if the environment variable
    /// `OTEL_RUST_INSTRUMENTATION_MONGODB_ENABLED` is `1`, `true` or `yes`, and false otherwise.
    ///
    /// Do not combine this with a `tracing` subscriber that passes spans on to OpenTelemetry: each span would appear
    /// twice.
    #[cfg(feature = "opentelemetry")]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = Some(enabled);
        self
    }

    /// Sets the provider of the client's tracer. The default is the global provider at the time of the first span.
    #[cfg(feature = "opentelemetry")]
    pub fn tracer_provider<P>(mut self, provider: P) -> Self
    where
        P: opentelemetry::trace::TracerProvider + Send + Sync + 'static,
        P::Tracer: opentelemetry::trace::Tracer<Span: Send + Sync + 'static> + Send + Sync + 'static,
    {
        self.provider = Some(std::sync::Arc::new(provider));
        self
    }

    /// Sets the number of characters after which the `db.query.text` attribute is truncated. This attribute contains
    /// the command as extended JSON, and possibly personal data. Zero omits the attribute. The default is the value of
    /// the environment variable `OTEL_RUST_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH`, or zero if the variable is
    /// unset or invalid.
    pub fn query_text_max_length(mut self, characters: usize) -> Self {
        self.query_text_max_length = Some(characters);
        self
    }

    /// Returns the options, with defaults from the environment variables.
    pub(super) fn settings(&self) -> Settings {
        self.settings_by(|variable| env::var(variable).ok())
    }

    fn settings_by(&self, value: impl Fn(&'static str) -> Option<String>) -> Settings {
        let length = || value(QUERY_TEXT)?.trim().parse().ok();
        Settings {
            most: self.query_text_max_length.or_else(length).unwrap_or(0),
            #[cfg(feature = "opentelemetry")]
            is_enabled: self.enabled.unwrap_or_else(|| {
                let is_on =
                    |value: &String| ["1", "true", "yes"].iter().any(|on| value.trim().eq_ignore_ascii_case(on));
                value(ENABLED).as_ref().is_some_and(is_on)
            }),
        }
    }
}

impl fmt::Debug for TracingOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("TracingOptions");
        debug.field("query_text_max_length", &self.query_text_max_length);
        #[cfg(feature = "opentelemetry")]
        debug.field("enabled", &self.enabled);
        debug.finish_non_exhaustive()
    }
}

/// The options, with defaults from the environment variables.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// The maximum number of characters in `db.query.text`.
    pub(super) most: usize,
    #[cfg(feature = "opentelemetry")]
    pub(super) is_enabled: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &TracingOptions, variables: &[(&str, &str)]) -> Settings {
        let value = |wanted| variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned());
        options.settings_by(value)
    }

    #[test]
    fn query_text_is_left_out_by_default_and_the_option_precedes_the_variable() {
        let most = |options: TracingOptions, variables: &[(&str, &str)]| settings(&options, variables).most;
        assert_eq!(most(TracingOptions::new(), &[]), 0);
        for (value, length) in [("1024", 1024), (" 7 ", 7), ("0", 0), ("-1", 0), ("much", 0), ("", 0)] {
            let variable = [("OTEL_RUST_INSTRUMENTATION_MONGODB_QUERY_TEXT_MAX_LENGTH", value)];
            assert_eq!(most(TracingOptions::new(), &variable), length, "{value}");
            assert_eq!(most(TracingOptions::new().query_text_max_length(5), &variable), 5);
            assert_eq!(most(TracingOptions::new().query_text_max_length(0), &variable), 0);
        }
    }

    #[cfg(feature = "opentelemetry")]
    #[test]
    fn tracer_is_off_by_default_and_the_option_precedes_the_variable() {
        let enabled = |options: TracingOptions, variables: &[(&str, &str)]| settings(&options, variables).is_enabled;
        assert!(!enabled(TracingOptions::new(), &[]));
        let values = [("1", true), ("true", true), ("YES", true), ("0", false), ("false", false), ("on", false)];
        for (value, is_on) in values {
            let variable = [("OTEL_RUST_INSTRUMENTATION_MONGODB_ENABLED", value)];
            assert_eq!(enabled(TracingOptions::new(), &variable), is_on, "{value}");
            assert!(enabled(TracingOptions::new().enabled(true), &variable));
            assert!(!enabled(TracingOptions::new().enabled(false), &variable));
        }
    }
}
