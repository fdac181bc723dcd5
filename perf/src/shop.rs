//! The host of the examples in `docs/from-mongodb.md`, which are the code of a shop. They need both crates, which only this package
//! has among its dependencies.

use serde::{Deserialize, Serialize};

/// The document of the examples.
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
