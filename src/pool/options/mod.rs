//! The options of a pool, and the error for one that cannot work.

mod invalid;
mod pool;

pub use invalid::InvalidOption;
#[cfg(not(loom))]
pub(crate) use pool::PoolOption;
pub use pool::{BackgroundInterval, MAX_CONNECTIONS, OptionValue, PoolOptions};
