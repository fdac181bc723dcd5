//! Errors from check-outs, check-ins and connections, and what a caller can do about them.
//!
//! Types whose names end in `Error` are errors that a caller receives, or the sources of such errors. Their `Debug`
//! implementations print a sentence, because Rust prints the `Debug` form of an error that `main` returns. `{:#?}`
//! prints the names of the variants before the sentence.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

mod check_out;
mod establish;
mod labels;

#[cfg_attr(loom, allow(unused_imports, reason = "loom builds no runtime, which alone makes `NoRuntimeError`"))]
pub use check_out::{
    BudgetStatus, CheckOutError, Holders, NoRuntimeError, PoolClearedError, PoolClosedError, TimeLimit, TooLate,
    WaitQueueFull, WaitQueueTimeoutError,
};
pub use establish::{ConnectTimeoutError, EstablishError, Stage};
pub use labels::Labels;

/// The error that cleared a pool, or that kept a connection from being established.
pub type Cause = Arc<dyn StdError + Send + Sync + 'static>;

pub(crate) use crate::text::sentence::debug_as_sentence;

/// A connection was checked into a pool that did not create it. The connection is unchanged and is returned in
/// `connection`.
///
/// ```
/// # async fn example(pool: wharf::Pool<wharf::Endpoint>, connection: wharf::Connection<wharf::Endpoint>) {
/// if let Err(error) = pool.check_in(connection) {
///     eprintln!("{error}");
///     drop(error.connection); // checks it into its own pool
/// }
/// # }
/// ```
#[non_exhaustive]
pub struct CheckInError<C> {
    /// The connection, still checked out of its own pool.
    pub connection: C,
    /// The address of the pool that refused the connection.
    pub address: Arc<str>,
}

impl<C> fmt::Debug for CheckInError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<C> fmt::Display for CheckInError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a connection was checked into the pool for {}, which did not create it", self.address)
    }
}

impl<C> StdError for CheckInError<C> {}
