//! The core of the pool: no I/O, no clock, no tasks, no randomness.

mod acquire;
mod capacity;
mod core;
mod host;
mod ledger;
mod shard;
mod slab;
mod state;
mod status;
mod tokens;
mod upkeep;
mod waitlist;

pub use self::core::{Clear, Core};
pub use acquire::{Acquire, Grant, Refusal};
pub use host::Host;
pub use slab::Purpose;
pub use state::{Phase, PoolState};
pub use status::PoolStatus;
pub use tokens::{Established, Idle, Interrupted, Interruption, Lease, Opening, Pending, Place, Started};
