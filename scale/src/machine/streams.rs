//! The processor's prefetching.

use std::collections::VecDeque;

/// The walks through memory that a core has noticed: successive lines that it has not used for a long time. From the
/// third line of a walk onwards, each line reaches the first-level cache in time.
#[derive(Default)]
pub(super) struct Streams {
    /// For each walk, the line after its last line, and whether two lines in a row were used. The latest walk comes
    /// first.
    walks: VecDeque<(usize, bool)>,
}

impl Streams {
    /// Real processors follow 16 to 32 walks at the same time.
    const MOST: usize = 16;

    /// Records a use of a line that is not in the first-level cache. Returns whether the line arrives in time.
    pub(super) fn meets(&mut self, line: usize) -> bool {
        let walk = self.walks.iter().position(|&(next, _)| next == line).and_then(|found| self.walks.remove(found));
        self.walks.truncate(Self::MOST - 1);
        self.walks.push_front((line + 1, walk.is_some()));
        walk.is_some_and(|(_, is_sure)| is_sure)
    }
}
