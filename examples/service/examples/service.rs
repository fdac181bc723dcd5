//! A service with metrics: `MONGODB_URI=mongodb://... cargo run --release --example service`, and `-- --help`.

use std::process::ExitCode;

use clap::Parser;
use wharf_service::service::{Arguments, run};

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing_level()).init();
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Warnings, such as those of slow check-outs. DEBUG also shows the spans.
fn tracing_level() -> tracing_subscriber::filter::LevelFilter {
    tracing_subscriber::filter::LevelFilter::INFO
}
