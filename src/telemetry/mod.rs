//! Observers of a pool's events: [`JsonLines`] writes them, [`EventCounts`] counts them, [`Log`] logs them. Exporters
//! pass on the metrics of a pool or a client: [`readings`](readings()), [`prometheus_text`], and `OpenTelemetryMetrics`
//! and `FacadeMetrics` with the `opentelemetry` and `metrics-facade` features. [`log_levels`] and [`log_output`] read
//! the environment variables for logs.
//!
//! Each observer is a [`Subscriber`](crate::Subscriber) for
//! [`PoolBuilder::subscriber`](crate::PoolBuilder::subscriber), or for [`PoolBuilder::log`](crate::PoolBuilder::log) in
//! the case of [`Log`], and also acts as a handle: clones share their output and counts. Pass one clone to the pool and
//! keep another to read from. An observer may serve several pools. The events are about pools and connections, not
//! about commands, which [`CommandMetrics`](crate::client::CommandMetrics) counts.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use wharf::telemetry::{EventCounts, JsonLines, Log};
//! use wharf::Endpoint;
//!
//! let (counts, lines) = (EventCounts::new(), JsonLines::new(Vec::new()));
//! let pool = Endpoint::new("localhost")?
//!     .pool()
//!     .subscriber(counts.clone())
//!     .subscriber(lines.clone())
//!     .log(Log::new())
//!     .build()?;
//! pool.ready();
//! assert_eq!(counts.snapshot().pool_ready, 1);
//!
//! let written = String::from_utf8(lines.into_inner()?)?;
//! assert_eq!(written.lines().last(), Some(r#"{"type":"PoolReady","address":"localhost:27017"}"#));
//! # Ok(())
//! # }
//! ```

mod counts;
#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
mod differences;
#[cfg(feature = "metrics-facade")]
mod facade;
mod json_lines;
mod log;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
mod prometheus;
mod readings;
mod sentence;
#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
mod source;
mod variables;

#[cfg(feature = "opentelemetry")]
pub use self::opentelemetry::OpenTelemetryMetrics;
pub use counts::{Counts, EventCounts};
#[cfg(feature = "metrics-facade")]
pub use facade::FacadeMetrics;
pub use json_lines::JsonLines;
pub use log::Log;
pub(crate) use log::{host_and_port, milliseconds};
pub use prometheus::prometheus_text;
pub(crate) use prometheus::write_metric;
pub use readings::{METRICS, Metric, MetricKind, Reading, ReadingValue, readings};
#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
pub use source::Metered;
#[cfg(any(feature = "metrics-facade", feature = "opentelemetry"))]
pub(crate) use source::{PoolSnapshot, Source, sealed};
pub use variables::{log_levels, log_output};
