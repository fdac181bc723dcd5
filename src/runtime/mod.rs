//! The pool on tokio.

mod establish;

pub use establish::{Establish, Establishing};
