//! Observers of a pool's events: [`JsonLines`] writes them, [`EventCounts`] counts them, [`Log`] logs them.
//!
//! Each is a [`Subscriber`](crate::Subscriber) for [`PoolBuilder::subscriber`](crate::PoolBuilder::subscriber), and
//! also a handle: clones share their output and counts. Pass one clone to the pool and keep another to read from. An
//! observer may serve several pools. The events are those of pools and connections; commands have none.
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
//!     .subscriber(Log::new())
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
mod json_lines;
mod log;
mod sentence;

pub use counts::{Counts, EventCounts};
pub use json_lines::JsonLines;
pub use log::Log;
