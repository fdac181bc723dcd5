//! A single lock-free stack, without a queue of waiters.

use std::sync::Arc;

use super::Design;
use crate::runtime::yield_now;
use crate::shared::Word;

const NOTHING: u64 = u32::MAX as u64;

/// The pool.
pub struct SingleStack {
    /// The index of the top connection in the lower half, and a tag in the upper half.
    head: Word,
    below: Vec<Word>,
}

/// A connection in use.
pub struct Guard {
    pool: Arc<SingleStack>,
    connection: u64,
}

impl SingleStack {
    /// Returns the head that follows `seen`, with `top` as its index.
    fn next(seen: u64, top: u64) -> u64 {
        ((seen >> 32) + 1) << 32 | top
    }

    fn pop(&self) -> Option<u64> {
        let mut seen = self.head.load();
        loop {
            let top = seen & NOTHING;
            if top == NOTHING {
                return None;
            }
            let below = self.below[top as usize].load();
            match self.head.replace(seen, Self::next(seen, below)) {
                Ok(()) => return Some(top),
                Err(now) => seen = now,
            }
        }
    }

    fn push(&self, index: u64) {
        let mut seen = self.head.load();
        loop {
            self.below[index as usize].store(seen & NOTHING);
            match self.head.replace(seen, Self::next(seen, index)) {
                Ok(()) => return,
                Err(now) => seen = now,
            }
        }
    }
}

impl Design for SingleStack {
    const NAME: &'static str = "single stack";
    type Guard = Guard;

    fn open(_cores: usize, size: usize, _owners: usize) -> Arc<Self> {
        let below = (0..size).map(|_| Word::default()).collect();
        let pool = Arc::new(Self { head: Word::new(NOTHING), below });
        (0..size as u64).for_each(|index| pool.push(index));
        pool
    }

    async fn check_out(self: &Arc<Self>) -> Guard {
        loop {
            if let Some(connection) = self.pop() {
                return Guard { pool: Arc::clone(self), connection };
            }
            yield_now().await;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pool.push(self.connection);
    }
}
