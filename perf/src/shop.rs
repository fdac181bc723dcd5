//! Compiles the examples in `docs/from-mongodb.md` and `docs/from-other-pools.md`, which are code of a shop. They need the crates
//! that they come from, and only this package depends on those.

use std::io;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The document used in the examples.
#[derive(Debug, Serialize, Deserialize)]
pub struct Order {
    pub _id: i32,
    pub customer: String,
    pub price: i64,
}

/// An exchange with a server that sends back what it gets.
pub async fn ping(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"ping").await?;
    stream.read_exact(&mut [0; 4]).await.map(drop)
}

/// Compiles the examples.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-mongodb.md")]
struct Page;

/// Compiles the examples.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-other-pools.md")]
struct OtherPools;
