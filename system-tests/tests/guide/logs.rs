use std::sync::Mutex;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;
use wharf::telemetry::{log_levels, log_output};

/// Logs at the levels that the environment variables ask for.
pub fn begin() {
    let levels = Targets::new().with_targets(log_levels());
    let lines = tracing_subscriber::fmt::layer().with_writer(Mutex::new(log_output()));
    tracing_subscriber::registry().with(lines.with_filter(levels)).init();
}
