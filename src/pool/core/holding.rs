//! Holder accounting: records which callers hold connections, and reports connections that are held for too long.
//!
//! The accounting can be switched on and off at run time. While it is on, [`Reason::Holders`] sends check-outs and
//! check-ins down the long path, and each writes the record beside its slot (`hold.rs`). Each switch, on or off, has a
//! number, and a record contains the number of the switch under which it was written. Records with an earlier number
//! are ignored, so switching never has to visit the slots.
//!
//! A connection that is being drained has no holder, because its caller has checked it in.
//!
//! # Race window
//!
//! A check-out that is in progress when the accounting is switched on may miss the switch. Its connection then counts
//! as checked out before the switch. The same applies to a connection that is on its way to its caller at that moment,
//! until the check-out notes the use or makes the connection available again. If the connection has been reported as a
//! long hold by then, the end of that use is also reported.
//!
//! A connection that is about to be closed also counts as checked out before the switch. The end of its use is not
//! reported. The use itself is reported only if the close takes longer than the threshold, which is unlikely, because
//! no foreign code runs before the connection has left the pool.

use std::collections::HashSet;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::attention::Reason;
use super::core::Core;
use super::environment::Environment;
use super::held::Held;
use super::hold::{Sequence, State, Use};
use super::pinning::Purpose;
use super::slab::Slot;
use super::tokens::Idle;
use crate::pool::holder::Holder;
use crate::pool::sync::Mutex;

/// The state of a pool's accounting.
///
/// The atomics change under the registry's lock. They are `std` atomics, because the model checker need not explore
/// their orderings. Only `switch` publishes anything: [`Reason::Holders`] and `on_since` (see `turn_on`).
#[derive(Default)]
pub(super) struct Holding {
    asked_for: AtomicBool,
    /// The number of nanoseconds after which a connection in use is reported, or 0 for never.
    threshold: AtomicU64,
    /// The number of times that the accounting has been switched on or off. The accounting is on while this number is
    /// odd.
    switch: AtomicU32,
    /// When the accounting was last switched on, in nanoseconds since the pool's epoch.
    on_since: AtomicU64,
    reports: Mutex<Reports>,
}

#[derive(Default)]
struct Reports {
    /// The numbers of the connections that were in use when the accounting was switched on.
    early: HashSet<u64>,
    /// The numbers of the connections that were reported even though their check-out was not noted.
    unnoted: HashSet<u64>,
    /// The reported uses that have since ended.
    ended: Vec<Holder>,
}

/// The result of reviewing the connections in use.
#[derive(Debug, Default)]
pub struct HoldReview {
    /// The connections that were found to be in use for longer than the threshold and not reported before, longest
    /// first.
    pub long: Vec<Holder>,
    /// The previously reported connections whose use has ended, in order of check-in.
    pub ended: Vec<Holder>,
    /// The threshold, if there is one.
    pub threshold: Option<Duration>,
    /// The time until the next review can find another long use. `None` if there is no threshold.
    pub next: Option<Duration>,
}

/// A reader's view of a connection in use.
struct Found<'s, C> {
    slot: &'s Slot<C>,
    sequence: Sequence,
    holder: Holder,
}

impl Holding {
    /// Returns the number of the current switch, if the accounting is on.
    fn switch(&self) -> Option<u32> {
        // ORD: Acquire; pairs with the Release in `turn_on`: if a check-out notes its holder under this switch, its
        // check-in finds `Reason::Holders`, unless the accounting has been switched off since.
        let switch = self.switch.load(Ordering::Acquire);
        (switch % 2 == 1).then_some(switch % (1 << Sequence::SWITCH_BITS))
    }

    /// Switches the accounting on, after `add_reason`. A thread that sees the new switch also sees the reason.
    /// Otherwise a check-out could be noted under the new switch while its check-in takes the shortest path, which
    /// would leave behind the record of a use that has ended.
    fn turn_on(&self, add_reason: impl FnOnce()) {
        add_reason();
        // ORD: Release; pairs with the Acquire in `switch`; publishes the reason and `on_since`.
        self.switch.fetch_add(1, Ordering::Release);
    }

    /// Switches the accounting off, in the reverse order.
    fn turn_off(&self, remove_reason: impl FnOnce()) {
        // Relaxed: a check-in that no longer finds the reason leaves its record behind. After the next switch, readers
        // ignore the record because of its number.
        self.switch.fetch_add(1, Ordering::Relaxed);
        remove_reason();
    }

    fn threshold(&self) -> Option<Duration> {
        // Relaxed: nothing else depends on this setting.
        match self.threshold.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }
}

impl<E: Environment> Core<E> {
    /// Switches the accounting for holders on or off. It stays on while there is a threshold.
    pub fn account_for_holders(&self, on: bool) {
        self.switch_holders(|holding| {
            // Relaxed: the registry's lock orders it.
            holding.asked_for.store(on, Ordering::Relaxed);
        });
    }

    /// Sets the time in use after which a connection is reported. `None` or zero means never.
    pub fn report_holds_after(&self, threshold: Option<Duration>) {
        let nanos = threshold.map_or(0, |threshold| u64::try_from(threshold.as_nanos()).unwrap_or(u64::MAX));
        self.switch_holders(|holding| {
            // Relaxed: changed only under the registry's lock, and nothing else depends on this setting.
            holding.threshold.store(nanos, Ordering::Relaxed);
        });
        self.environment.review_holds();
    }

    fn switch_holders(&self, change: impl FnOnce(&Holding)) {
        let holding = &self.holding;
        let registry = self.registry.lock();
        let mut turned_on = None;
        change(holding);
        // All relaxed: they change only under the registry's lock. For readers without it, `turn_on` publishes
        // `on_since`.
        let on = holding.asked_for.load(Ordering::Relaxed) || holding.threshold().is_some();
        match (holding.switch().is_some(), on) {
            (false, true) => {
                holding.on_since.store(self.nanos_since_epoch(), Ordering::Relaxed);
                holding.turn_on(|| {
                    self.attention.add(Reason::Holders);
                });
                turned_on = holding.switch();
            }
            (true, false) => {
                holding.turn_off(|| {
                    self.attention.remove(Reason::Holders);
                });
                *holding.reports.lock() = Reports::default();
            }
            _ => {}
        }
        drop(registry);
        if turned_on.is_some() {
            let early =
                self.unnoted_in_use(self.slab.iter().collect()).into_iter().map(|slot| slot.known_as().0).collect();
            let mut reports = holding.reports.lock();
            // If the accounting has been switched on again since, that switch does its own search.
            if holding.switch() == turned_on {
                reports.early = early;
            }
        }
    }

    /// Copies the settings from the parent's pool to a forked child's pool.
    pub(super) fn inherit_holding(&self, parent: &Holding) {
        // Relaxed: the child has a single thread.
        self.account_for_holders(parent.asked_for.load(Ordering::Relaxed));
        self.report_holds_after(parent.threshold());
    }

    /// Returns whether the pool accounts for holders.
    pub fn accounts_for_holders(&self) -> bool {
        self.holding.switch().is_some()
    }

    /// Returns the time in use after which a connection is reported.
    pub fn holds_are_reported_after(&self) -> Option<Duration> {
        self.holding.threshold()
    }

    /// Returns the connections in use, longest first. Empty if the pool does not account for holders.
    pub fn holders(&self) -> Vec<Holder> {
        self.in_use().into_iter().map(|found| found.holder).collect()
    }

    /// Looks for connections that have been in use for longer than the threshold, and reports each use once.
    pub fn review_holds(&self) -> HoldReview {
        let threshold = self.holding.threshold();
        let (mut long, mut next) = (Vec::new(), threshold);
        for found in threshold.map(|_| self.in_use()).unwrap_or_default() {
            let left = threshold.unwrap_or_default().saturating_sub(found.holder.held_for);
            if left > Duration::ZERO {
                next = next.min(Some(left));
            } else if self.report(&found) {
                long.push(found.holder);
            }
        }
        // Taken after the long uses, so that the end of a use is reported after the use itself.
        let ended = std::mem::take(&mut self.holding.reports.lock().ended);
        HoldReview { long, ended, threshold, next }
    }

    /// Marks a use as reported. Returns `false` if it was already reported or has ended.
    fn report(&self, found: &Found<'_, E::Connection>) -> bool {
        if found.holder.call_site.is_some() {
            return found.slot.hold().is_some_and(|hold| hold.mark_reported(found.sequence));
        }
        let id = found.holder.connection_id;
        if !self.holding.reports.lock().unnoted.insert(id) {
            return false;
        }
        // The owner changes the record, then removes the entry. So the owner finds the entry, or this thread finds the
        // change, or both. If both happen, the owner has already reported the end of the use, so the use itself must
        // also be reported.
        self.noted(found.slot).is_none() || !self.holding.reports.lock().unnoted.remove(&id)
    }

    /// Returns the connections in use, longest first.
    fn in_use(&self) -> Vec<Found<'_, E::Connection>> {
        if self.holding.switch().is_none() {
            return Vec::new();
        }
        let now = self.nanos_since_epoch();
        let (mut in_use, mut unnoted) = (Vec::new(), Vec::new());
        for slot in self.slab.iter() {
            match self.noted(slot) {
                Some((sequence, Some(noted))) => in_use.push(Found { slot, sequence, holder: holder_of(&noted, now) }),
                Some((_, None)) => {}
                None => unnoted.push(slot),
            }
        }
        if !unnoted.is_empty() {
            let mut unnoted = self.unnoted_in_use(unnoted);
            let reports = self.holding.reports.lock();
            // A connection that was available when the accounting was switched on may be in transit: between two
            // stacks, on its way to its caller, or about to be closed.
            unnoted.retain(|slot| reports.early.contains(&slot.known_as().0));
            drop(reports);
            // Relaxed: only a switch changes it, and the result of this call is then ignored.
            let held_for = now.saturating_sub(self.holding.on_since.load(Ordering::Relaxed));
            in_use.extend(unnoted.into_iter().map(|slot| Found {
                slot,
                sequence: Sequence { switch: 0, count: 0, state: State::InUse },
                holder: unnoted_holder(slot, held_for),
            }));
        }
        in_use.sort_by_key(|found| (std::cmp::Reverse(found.holder.held_for), found.holder.connection_id));
        in_use
    }

    /// Returns the record of a slot's connection, if it has been written since the accounting was switched on.
    fn noted(&self, slot: &Slot<E::Connection>) -> Option<(Sequence, Option<Use>)> {
        let (sequence, noted) = slot.hold()?.read();
        (Some(sequence.switch) == self.holding.switch()).then_some((sequence, noted))
    }

    /// Returns the connections in `slots` that are in use, by elimination. Nothing has been noted about them since the
    /// accounting was switched on, so each has been in use, available or draining since then.
    ///
    /// # Race window
    ///
    /// If a stack changes constantly, a reader may fail to see it as a whole. In that case, every slot that was seen in
    /// it counts as available, and a connection in use may be left out.
    fn unnoted_in_use<'s>(&'s self, slots: Vec<&'s Slot<E::Connection>>) -> Vec<&'s Slot<E::Connection>> {
        let lives = |slot: &Slot<E::Connection>| {
            let stamp = slot.stamp();
            stamp.live && !stamp.pending
        };
        let mut slots: Vec<_> = slots.into_iter().filter(|slot| lives(slot)).collect();
        if !slots.is_empty() {
            let mut elsewhere = self.slots_in_shards();
            let registry = self.registry.lock();
            elsewhere.extend(registry.stale_slots(&self.slab));
            elsewhere.extend(registry.drains.slots());
            drop(registry);
            slots.retain(|slot| !elsewhere.contains(&slot.index()) && lives(slot) && self.noted(slot).is_none());
        }
        slots
    }

    /// Returns the current time in nanoseconds since the pool's epoch. A 64-bit count overflows only after 584 years.
    pub(super) fn nanos_since_epoch(&self) -> u64 {
        self.environment.now().duration_since(self.epoch).as_nanos() as u64
    }
}

impl<E: Environment> Idle<E> {
    /// Notes where the connection is checked out, if the pool accounts for holders. Called before the check-out is
    /// reported, so that a subscriber that learns of the check-out finds the holder.
    #[inline]
    pub fn note_holder(&self, site: &'static Location<'static>) {
        if self.held().core().attention.includes(Reason::Holders) {
            self.held().begin_hold(site);
        }
    }
}

impl<E: Environment> Held<E> {
    #[cold]
    fn begin_hold(self, site: &'static Location<'static>) {
        let core = self.core();
        let Some(switch) = core.holding.switch() else { return };
        let service = self.service();
        let noted = Use {
            since: core.nanos_since_epoch(),
            connection_id: self.id(),
            site,
            task_id: core.environment.task_id(),
            generation: service.map_or_else(|| self.generation(), |(_, generation)| generation),
            service_id: service.map(|(service_id, _)| service_id),
            purpose: Purpose::Operation,
        };
        let before = self.slot().hold_or_new().begin(switch, &noted);
        if before.switch != switch {
            self.end_unnoted_hold();
        }
    }

    /// Notes the end of the connection's use. Also called for a new connection, and for a connection that its check-out
    /// gives up.
    pub(super) fn end_hold(self) {
        let core = self.core();
        if core.attention.includes(Reason::Holders)
            && let Some(switch) = core.holding.switch()
        {
            self.end_accounted_hold(switch);
        }
    }

    #[cold]
    fn end_accounted_hold(self, switch: u32) {
        let (before, reported) = self.slot().hold_or_new().end(switch);
        if before.switch != switch {
            self.end_unnoted_hold();
        } else if let Some(noted) = reported {
            self.report_end(holder_of(&noted, self.core().nanos_since_epoch()));
        }
    }

    /// Reports the end of a use that was reported even though nothing was noted about it. The caller has already
    /// changed the record; see `Core::report`.
    fn end_unnoted_hold(self) {
        let holding = &self.core().holding;
        if holding.reports.lock().unnoted.remove(&self.id()) {
            // Relaxed: see `in_use`.
            let on_since = holding.on_since.load(Ordering::Relaxed);
            let held_for = self.core().nanos_since_epoch().saturating_sub(on_since);
            self.report_end(unnoted_holder(self.slot(), held_for));
        }
    }

    fn report_end(self, ended: Holder) {
        self.core().holding.reports.lock().ended.push(ended);
        self.core().environment.review_holds();
    }

    /// Notes the connection's purpose, if the pool accounts for holders.
    pub(super) fn note_purpose(self, purpose: Purpose) {
        if self.core().attention.includes(Reason::Holders)
            && let Some(hold) = self.slot().hold()
        {
            hold.set_purpose(purpose);
        }
    }
}

fn holder_of(noted: &Use, now: u64) -> Holder {
    Holder {
        connection_id: noted.connection_id,
        held_for: Duration::from_nanos(now.saturating_sub(noted.since)),
        call_site: Some(noted.site),
        task_id: noted.task_id,
        purpose: Some(noted.purpose),
        generation: noted.generation,
        service_id: noted.service_id,
    }
}

fn unnoted_holder<C>(slot: &Slot<C>, held_for: u64) -> Holder {
    Holder {
        connection_id: slot.known_as().0,
        held_for: Duration::from_nanos(held_for),
        call_site: None,
        task_id: None,
        purpose: None,
        generation: slot.stamp().generation,
        service_id: None,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn accounting_is_on_only_while_check_ins_are_told_to_note_it() {
        let holding = Holding::default();
        let is_off = || assert!(holding.switch().is_none(), "a use may be noted whose end is not");
        for _ in 0..2 {
            holding.turn_on(is_off);
            assert!(holding.switch().is_some());
            holding.turn_off(is_off);
            assert!(holding.switch().is_none());
        }
    }
}
