//! The side table of holders: beside each slot, a record of where and when its connection was checked out.
//!
//! Only the owner of a slot writes its record (INV-1). A sequence lock protects the record: a reader gets either one
//! complete record or nothing, and readers and owners never block each other. The word `sequence` identifies the use
//! that the other words belong to.
//!
//! | owner | reader |
//! | --- | --- |
//! | 1. ends the last use: sets `sequence` to "free" | a. reads `sequence`: the last use |
//! | 2. fence (Release) | b. reads the other words |
//! | 3. sets the other words | c. fence (Acquire) |
//! | 4. sets `sequence` to the next use | d. reads `sequence` again |
//!
//! If step b reads a word that step 3 stored, the fences order step 1 before step d. Step d then finds a different
//! sequence from step a, and the reader retries. If step a reads the sequence that step 4 stored, it acquires step 3,
//! so step b does not read an older value.
//!
//! The owner skips step 1 if the accounting is off when the use ends. If the accounting is then switched on again, the
//! words still describe that use until step 3 overwrites them, so a reader may see a mixture of two uses. The sequence
//! that it reads contains the number of an earlier switch, so the reader discards the words (`Core::noted`).

use std::mem::align_of;
use std::panic::Location;

use crate::pool::holder::Purpose;
use crate::pool::service_id::ServiceId;
use crate::pool::sync::atomic::{AtomicU64, Ordering, fence};
use crate::pool::sync::{Backoff, unless_mutant};

/// The record of one slot: one cache line, allocated when the slot is first checked out with accounting on.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Hold {
    sequence: AtomicU64,
    since: AtomicU64,
    connection_id: AtomicU64,
    site: AtomicU64,
    /// The number of the task, or 0 if there is no task.
    task_id: AtomicU64,
    generation: AtomicU64,
    /// The first eight bytes of the service's id.
    service: AtomicU64,
    /// The last four bytes of the service's id, whether there is a service, and the purpose.
    rest: AtomicU64,
}

/// A use of a connection, as its record describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    /// When the use began, in nanoseconds since the pool's epoch.
    pub(super) since: u64,
    pub(super) connection_id: u64,
    pub(super) site: &'static Location<'static>,
    pub(super) task_id: Option<u64>,
    /// The generation of the service, or of the pool if there is no service.
    pub(super) generation: u64,
    pub(super) service_id: Option<ServiceId>,
    pub(super) purpose: Purpose,
}

/// Identifies the use that a record describes, and holds its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sequence {
    /// How many times the accounting had been switched on or off when the record was last written, modulo 2^30.
    pub(super) switch: u32,
    /// Counts the uses, modulo 2^32.
    pub(super) count: u32,
    pub(super) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The connection is not in use, or its use is currently being noted.
    Free,
    InUse,
    /// The connection is in use, and was reported as a long hold.
    Reported,
}

impl Sequence {
    pub(super) const SWITCH_BITS: u32 = 30;
    const STATE_BITS: u32 = 2;
    const SWITCH_SHIFT: u32 = u64::BITS - Self::SWITCH_BITS;

    fn pack(self) -> u64 {
        self.state as u64 | u64::from(self.count) << Self::STATE_BITS | u64::from(self.switch) << Self::SWITCH_SHIFT
    }

    fn unpack(word: u64) -> Self {
        let state = match word & ((1 << Self::STATE_BITS) - 1) {
            0 => State::Free,
            1 => State::InUse,
            _ => State::Reported,
        };
        Self { switch: (word >> Self::SWITCH_SHIFT) as u32, count: (word >> Self::STATE_BITS) as u32, state }
    }
}

impl Hold {
    pub(super) fn new() -> Self {
        let word = || AtomicU64::new(0);
        Self {
            sequence: word(),
            since: word(),
            connection_id: word(),
            site: word(),
            task_id: word(),
            generation: word(),
            service: word(),
            rest: word(),
        }
    }

    /// Notes the beginning of a use. Called by the slot's owner. Returns the previous sequence.
    pub(super) fn begin(&self, switch: u32, noted: &Use) -> Sequence {
        // Relaxed: only owners change the count, and each owner has acquired the slot from the previous owner.
        let before = Sequence::unpack(self.sequence.load(Ordering::Relaxed));
        let sequence = Sequence { switch, count: before.count.wrapping_add(1), state: State::InUse };
        // ORD: Release; pairs with the Acquire fence in `read`: a reader that finds one of the words below also finds
        // the end of the last use.
        fence(Ordering::Release);
        let address = std::ptr::from_ref(noted.site).expose_provenance() as u64;
        let (service, rest) = pack_service(noted.service_id, noted.purpose);
        for (word, value) in [
            (&self.since, noted.since),
            (&self.connection_id, noted.connection_id),
            (&self.site, address),
            (&self.task_id, noted.task_id.unwrap_or(0)),
            (&self.generation, noted.generation),
            (&self.service, service),
            (&self.rest, rest),
        ] {
            // Relaxed: the store of the sequence below publishes it, and the fence above invalidates the previous
            // record.
            word.store(value, Ordering::Relaxed);
        }
        // ORD: Release; pairs with the Acquire in `read`; publishes the words above.
        self.sequence.store(sequence.pack(), unless_mutant("hold_publishes_nothing", Ordering::Release));
        before
    }

    /// Changes the purpose of the current use. Called by the slot's owner.
    pub(super) fn set_purpose(&self, purpose: Purpose) {
        // Relaxed: only owners write the word. A reader may find either purpose, because the sequence does not change
        // during a use.
        let (service_id, _) = unpack_service(0, self.rest.load(Ordering::Relaxed));
        let (_, rest) = pack_service(service_id, purpose);
        // Relaxed: see above.
        self.rest.store(rest, Ordering::Relaxed);
    }

    /// Notes that the connection is no longer in use. Called by the slot's owner. Returns the previous sequence, and
    /// the use if it was reported.
    pub(super) fn end(&self, switch: u32) -> (Sequence, Option<Use>) {
        // Relaxed: see `begin`.
        let Sequence { count, .. } = Sequence::unpack(self.sequence.load(Ordering::Relaxed));
        let free = Sequence { switch, count, state: State::Free };
        // Relaxed: nothing is published. This is a swap, so that whichever of this step and the exchange in
        // `mark_reported` comes second sees the first.
        let before = Sequence::unpack(self.sequence.swap(free.pack(), Ordering::Relaxed));
        let reported = (before.state == State::Reported).then(|| self.words());
        (before, reported)
    }

    /// Returns the sequence, and the use if the connection is in use. Retries if the record changes while it is being
    /// read. Any thread may call this.
    pub(super) fn read(&self) -> (Sequence, Option<Use>) {
        let mut backoff = Backoff::new();
        loop {
            // ORD: Acquire; pairs with the Release in `begin`; the words below are at least as new as this sequence.
            let word = self.sequence.load(unless_mutant("hold_acquires_nothing", Ordering::Acquire));
            let sequence = Sequence::unpack(word);
            if sequence.state == State::Free {
                return (sequence, None);
            }
            let raw = self.raw();
            // ORD: Acquire; pairs with the Release fence in `begin`: if a word above belongs to a later use, the
            // sequence below is also a later one.
            fence(Ordering::Acquire);
            // Relaxed: the fence orders it after the words.
            if self.sequence.load(Ordering::Relaxed) == word {
                return (sequence, Some(Self::checked(raw)));
            }
            backoff.pause();
        }
    }

    /// Marks the use with this sequence as reported. Returns whether it is the connection's current use and had not
    /// been reported before.
    pub(super) fn mark_reported(&self, sequence: Sequence) -> bool {
        let reported = Sequence { state: State::Reported, ..sequence };
        // Relaxed: nothing is published; see `end`.
        sequence.state == State::InUse
            && self
                .sequence
                .compare_exchange(sequence.pack(), reported.pack(), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Returns the words of the record. Some words may belong to another use.
    fn raw(&self) -> [u64; 7] {
        [&self.since, &self.connection_id, &self.site, &self.task_id, &self.generation, &self.service, &self.rest]
            // Relaxed: `read` checks whether they belong to one use.
            .map(|word| word.load(Ordering::Relaxed))
    }

    fn words(&self) -> Use {
        Self::checked(self.raw())
    }

    /// Decodes a use from its words, which must all belong to that use.
    #[allow(unsafe_code)]
    fn checked(raw: [u64; 7]) -> Use {
        let [since, connection_id, site, task_id, generation, service, rest] = raw;
        let site = std::ptr::with_exposed_provenance::<Location<'static>>(site as usize);
        debug_assert!(!site.is_null() && site.addr().is_multiple_of(align_of::<Location<'static>>()));
        let (service_id, purpose) = unpack_service(service, rest);
        Use {
            since,
            connection_id,
            // SAFETY: `begin` stored the address of a `&'static Location`, before it first set the state to `InUse`.
            // From then on, the word always holds such an address (INV-1: only owners write it, and only there).
            site: unsafe { &*site },
            task_id: (task_id != 0).then_some(task_id),
            generation,
            service_id,
            purpose,
        }
    }
}

/// Returns the two words that store a service's id and a purpose.
fn pack_service(service_id: Option<ServiceId>, purpose: Purpose) -> (u64, u64) {
    let purpose = match purpose {
        Purpose::Operation => 0_u64,
        Purpose::Cursor => 1,
        Purpose::Transaction => 2,
    };
    let Some(service_id) = service_id else { return (0, purpose) };
    let [a, b, c, d, e, f, g, h, rest @ ..] = service_id.bytes();
    (u64::from_be_bytes([a, b, c, d, e, f, g, h]), purpose | 1 << 2 | u64::from(u32::from_be_bytes(rest)) << u32::BITS)
}

fn unpack_service(service: u64, rest: u64) -> (Option<ServiceId>, Purpose) {
    let purpose = match rest & 3 {
        0 => Purpose::Operation,
        1 => Purpose::Cursor,
        _ => Purpose::Transaction,
    };
    let service_id = (rest & 1 << 2 != 0).then(|| {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&service.to_be_bytes());
        bytes[8..].copy_from_slice(&((rest >> u32::BITS) as u32).to_be_bytes());
        ServiceId::from_bytes(bytes)
    });
    (service_id, purpose)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn use_of(number: u64) -> Use {
        Use {
            since: number,
            connection_id: number,
            site: Location::caller(),
            task_id: Some(number + 1),
            generation: number,
            service_id: None,
            purpose: Purpose::Operation,
        }
    }

    proptest! {
        #[test]
        fn sequence_keeps_its_fields(switch in 0..1_u32 << Sequence::SWITCH_BITS, count: u32, state in 0..3_usize) {
            let state = [State::Free, State::InUse, State::Reported][state];
            let sequence = Sequence { switch, count, state };
            prop_assert_eq!(Sequence::unpack(sequence.pack()), sequence);
        }

        #[test]
        fn record_keeps_its_fields(
            numbers: [u64; 3],
            task_id in prop::option::of(1_u64..),
            service: Option<[u8; 12]>,
            purposes in prop::array::uniform2(0..3_u64),
        ) {
            let [before, after] = purposes.map(|purpose| unpack_service(0, purpose).1);
            let noted = Use {
                since: numbers[0],
                connection_id: numbers[1],
                site: Location::caller(),
                task_id,
                generation: numbers[2],
                service_id: service.map(ServiceId::from_bytes),
                purpose: before,
            };
            let hold = Hold::new();
            hold.begin(1, &noted);
            prop_assert_eq!(hold.read().1, Some(noted));
            hold.set_purpose(after);
            prop_assert_eq!(hold.read().1, Some(Use { purpose: after, ..noted }));
        }
    }

    #[test]
    fn record_takes_one_cache_line() {
        assert_eq!(size_of::<Hold>(), 64);
    }

    #[test]
    fn use_is_reported_once_and_its_end_tells() {
        let hold = Hold::new();
        hold.begin(1, &use_of(1));
        let (sequence, _) = hold.read();
        assert!(hold.mark_reported(sequence));
        let (reported, noted) = hold.read();
        assert_eq!((reported.state, noted.map(|noted| noted.since)), (State::Reported, Some(1)));
        assert!(!hold.mark_reported(sequence) && !hold.mark_reported(reported), "a use is reported twice");
        assert_eq!(hold.end(1).1.map(|noted| noted.since), Some(1));
        assert_eq!(hold.end(1).1, None, "an end is told twice");
        hold.begin(1, &use_of(2));
        assert!(!hold.mark_reported(sequence), "an old sequence marks the next use");
        assert_eq!(hold.end(1), (Sequence { switch: 1, count: 2, state: State::InUse }, None));
    }
}
