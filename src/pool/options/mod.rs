//! A pool's options, and the error for an invalid option.

mod check_before_use;
#[cfg(feature = "serde")]
mod fields;
mod invalid;
mod pool;

pub use check_before_use::CheckBeforeUse;
#[cfg(all(feature = "mongodb", feature = "serde"))]
pub(crate) use fields::{find_name, is_name, text_of};
pub use invalid::InvalidOption;
pub use pool::{BackgroundInterval, MAX_CONNECTIONS, OptionValue, PoolOptions};
pub(crate) use pool::{MAX_INT, PoolOption};
