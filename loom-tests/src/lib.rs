//! Models of the core's orderings: see `tests/loom/main.rs`.
