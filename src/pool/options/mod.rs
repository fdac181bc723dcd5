//! The options of a pool, and the error for one that cannot work.

mod invalid;
mod pool;
#[cfg(feature = "serde")]
mod serialize;

pub use invalid::InvalidOption;
pub(crate) use pool::PoolOption;
pub use pool::{BackgroundInterval, MAX_CONNECTIONS, OptionValue, PoolOptions};
