//! Compiles the examples in `docs/from-mongodb.md`, which are code of a shop. They need both crates, and only this
//! package depends on both.

use serde::{Deserialize, Serialize};

/// The document used in the examples.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub _id: i32,
    pub customer: String,
    pub price: i64,
}

/// Compiles the examples.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-mongodb.md")]
struct Page;
