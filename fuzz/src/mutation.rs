//! Random changes to bytes, of kinds that matter to binary formats and to text.

/// A pseudo-random number generator (SplitMix64). Its seed determines the sequence.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Creates a generator from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    /// Returns one of the choices.
    ///
    /// # Panics
    ///
    /// Panics if there are no choices.
    pub fn one_of<'a, T: ?Sized>(&mut self, choices: &'a [&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// The maximum length of an input in bytes.
const LONGEST: usize = 64 * 1024;

/// Numbers at the limits of lengths and counts.
const EDGES: [i32; 14] = [0, 1, -1, 2, 4, 5, 15, 16, 17, 255, 65_536, 48_000_000, i32::MAX, i32::MIN];

/// Changes `bytes` in one way. `words` may be inserted, and `other` is another input to take pieces from.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], words: &[&[u8]], random: &mut Random) {
    let at = random.below(bytes.len());
    let length = 1 + random.below(16);
    let end = (at + length).min(bytes.len());
    match random.below(12) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        1 if !bytes.is_empty() => bytes[at] = random.number() as u8,
        2 if !bytes.is_empty() => {
            bytes[at] = random.one_of::<u8>(&[&0, &1, &2, &3, &4, &0x10, &0x7f, &0x80, &0xff]).to_owned()
        }
        3 => overwrite(bytes, at, &EDGES[random.below(EDGES.len())].to_le_bytes()),
        4 => nudge(bytes, at, random),
        5 => drop(bytes.drain(at..end)),
        6 => {
            let piece = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            insert(bytes, to, &piece);
        }
        7 => bytes.truncate(at),
        8 => {
            let from = random.below(other.len());
            let to = (from + 1 + random.below(64)).min(other.len());
            insert(bytes, at, &other[from..to]);
        }
        9 => {
            let from = random.below(other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        10 if !words.is_empty() => {
            let word = random.one_of(words);
            insert(bytes, at, word);
        }
        11 if !words.is_empty() => {
            let word = random.one_of(words);
            overwrite(bytes, at, word);
        }
        _ => insert(bytes, at, &[random.number() as u8]),
    }
    bytes.truncate(LONGEST);
}

/// Adds a small number to a 32-bit integer, the type of most lengths.
fn nudge(bytes: &mut [u8], at: usize, random: &mut Random) {
    if let Some(number) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) {
        let by = random.below(9) as i32 - 4;
        *number = i32::from_le_bytes(*number).wrapping_add(by).to_le_bytes();
    }
}

fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let end = (at + with.len()).min(bytes.len());
    bytes[at..end].copy_from_slice(&with[..end - at]);
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    drop(bytes.splice(at..at, piece.iter().copied()));
}
