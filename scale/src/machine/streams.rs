//! What a processor fetches before it is asked for.

use std::collections::VecDeque;

/// The walks through memory that a core has noticed: lines that it had not used for long, each after the one before it.
/// From the third line of a walk on, the line comes into the first level in time.
#[derive(Default)]
pub(super) struct Streams {
    /// For each, the line after the last one, and whether two lines in a row were used. The latest first.
    walks: VecDeque<(usize, bool)>,
}

impl Streams {
    /// Processors follow 16 to 32 at a time.
    const MOST: usize = 16;

    /// Takes note of a line that is not in the first level. Returns whether it comes in time.
    pub(super) fn meets(&mut self, line: usize) -> bool {
        let walk = self.walks.iter().position(|&(next, _)| next == line).and_then(|found| self.walks.remove(found));
        self.walks.truncate(Self::MOST - 1);
        self.walks.push_front((line + 1, walk.is_some()));
        walk.is_some_and(|(_, is_sure)| is_sure)
    }
}
