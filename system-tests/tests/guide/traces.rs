use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::prelude::*;
use wharf::client::TracingOptions;
use wharf::{Client, InvalidOption, Options};

/// Writes a line for each operation and each command that ends: its times, its attributes, and its error if it failed.
pub fn begin() {
    let operations = Targets::new().with_target("wharf::operation", Level::DEBUG);
    let lines = tracing_subscriber::fmt::layer().with_span_events(FmtSpan::CLOSE);
    tracing_subscriber::registry().with(lines.with_filter(operations)).init();
}

/// Returns a client whose spans have the first 1,000 characters of each command.
pub fn client(uri: &str) -> Result<Client, InvalidOption> {
    let tracing = TracingOptions::new().query_text_max_length(1_000);
    Client::builder(Options::parse(uri)?).tracing(tracing).build()
}
