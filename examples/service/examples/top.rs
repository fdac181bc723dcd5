//! Shows pools live in a terminal: `cargo run --release --example top`, and `-- --help`.

use std::process::ExitCode;

use clap::Parser;
use wharf_service::top::{Arguments, run};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
