//! Compiles the examples in `docs/from-mongodb.md` and `docs/from-other-pools.md`, which show a shop's code. The
//! examples need the crates that they describe, and only this package depends on these crates.

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

/// An exchange with a server that echoes what it receives.
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
