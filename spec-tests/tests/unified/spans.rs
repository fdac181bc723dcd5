//! The structure of the expected spans, which this runner only checks: wharf has no spans of operations.

use serde::Deserialize;

use crate::format::{Filled, Object, set};

/// The expected spans of a client.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObserveTracing {
    #[serde(default, deserialize_with = "set", rename = "enableCommandPayload")]
    _payload: Option<bool>,
}

/// The spans of a client.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedSpans {
    #[serde(rename = "client")]
    _client: String,
    #[serde(default, deserialize_with = "set", rename = "ignoreExtraSpans")]
    _ignore_extra: Option<bool>,
    #[serde(rename = "spans")]
    _spans: Filled<Span>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Span {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "attributes")]
    _attributes: Object,
    #[serde(default, deserialize_with = "set", rename = "nested")]
    _nested: Option<Filled<Span>>,
}
