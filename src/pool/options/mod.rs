//! The options of a pool, and the error for an invalid option.

mod check_before_use;
mod invalid;
mod pool;
#[cfg(feature = "serde")]
mod serialize;

pub use check_before_use::CheckBeforeUse;
pub use invalid::InvalidOption;
pub(crate) use pool::PoolOption;
pub use pool::{BackgroundInterval, MAX_CONNECTIONS, OptionValue, PoolOptions};
