//! A client under load, with a report: `cargo run --release -p wharf-quickstart --example quickstart`. Add `-- --help`
//! to list the options.

use std::process::ExitCode;

fn main() -> ExitCode {
    wharf_quickstart::main()
}
