//! The mutants of the core, and the build that contains them. The models are in `tests/loom/main.rs`.

pub mod instrumented;
pub mod mutants;
