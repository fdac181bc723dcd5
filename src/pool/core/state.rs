//! The pool word: phase and generation in one `AtomicU64`.

use crate::pool::sync::atomic::{AtomicU64, Ordering};
use crate::pool::sync::unless_mutant;

/// Whether a pool serves check-outs.
///
/// The CMAP specification defines these three phases. No others will be added, so a `match` can be exhaustive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Phase {
    /// Check-outs fail at once with a retryable error, because the server may be unreachable. Every pool starts in this
    /// phase, and every clear returns to it.
    Paused,
    /// The pool serves check-outs and opens connections.
    Ready,
    /// The pool is closed for good.
    Closed,
}

/// A pool's phase and generation, read at the same instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolState {
    /// The phase.
    pub phase: Phase,
    /// How many times the pool has been cleared or renewed. Closing counts as a clear.
    pub generation: u64,
}

impl PoolState {
    const PHASE_BITS: u32 = 2;

    fn pack(self) -> u64 {
        let phase = match self.phase {
            Phase::Paused => 0,
            Phase::Ready => 1,
            Phase::Closed => 2,
        };
        self.generation << Self::PHASE_BITS | phase
    }

    fn unpack(word: u64) -> Self {
        let phase = match word & 0b11 {
            0 => Phase::Paused,
            1 => Phase::Ready,
            _ => Phase::Closed,
        };
        Self { phase, generation: word >> Self::PHASE_BITS }
    }
}

/// The pool word. Only ready, clear, renew and close write it, each under the registry's lock. Any thread may read it.
#[derive(Debug)]
pub(super) struct PoolWord(AtomicU64);

impl PoolWord {
    pub(super) fn new(state: PoolState) -> Self {
        Self(AtomicU64::new(state.pack()))
    }

    #[inline]
    pub(super) fn load(&self) -> PoolState {
        // ORD: Acquire; pairs with the Release in `store`. A thread that sees the pool ready also sees that `PoolReady`
        // was emitted. A thread that sees a new generation also sees that generation in the registry.
        PoolState::unpack(self.0.load(unless_mutant("pool_word_acquires_nothing", Ordering::Acquire)))
    }

    /// Changes the word. The caller holds the registry's lock.
    pub(super) fn store(&self, state: PoolState) {
        // ORD: Release; pairs with the Acquire in `load`; publishes the events emitted so far.
        self.0.store(state.pack(), unless_mutant("pool_word_publishes_nothing", Ordering::Release));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn word_keeps_phase_and_generation(phase in 0..3_u8, generation in 0..1_u64 << 62) {
            let phase = [Phase::Paused, Phase::Ready, Phase::Closed][usize::from(phase)];
            let state = PoolState { phase, generation };
            prop_assert_eq!(PoolState::unpack(state.pack()), state);
        }
    }
}
