//! Segments, which hold the tickets' cells.
//!
//! A ticket's number determines its cell: its upper bits select the segment in a [`Directory`], and its lower bits
//! select the cell in the segment. A segment is installed before the first of its tickets is given out, and removed
//! when all of them are over. Both happen under the list's lock, but the memory is allocated and freed outside the
//! lock.
//!
//! INV-12 (segments stay): a ticket's segment enters the directory before the ticket is given out, and stays until the
//! ticket is over. A ticket is over once its waiter has taken the grant, or once the waiter has left and the ticket has
//! been skipped. A segment is removed earlier only if all its tickets have left and lie inside a gap, where no thread
//! looks. So a thread may look up only its own ticket, or a ticket that it has claimed. The thread needs no protection
//! against other threads that free memory, because its ticket keeps the segment alive.

use std::ptr::{self, NonNull};

use super::cell::Cell;
use super::word::Ticket;
use crate::pool::sync::atomic::{AtomicPtr, Ordering};
use crate::pool::sync::{UnsafeCell, published, step};

/// A segment has 64 tickets, and a branch leads to 256 segments or branches.
#[cfg(not(any(loom, shuttle)))]
const BITS: Bits = Bits { segment: 6, branch: 8, root: 8 };
/// This is small so that the model checkers explore the installation and removal of segments and branches. In a model of
/// loom, few check-outs wait, and creating the root takes much of an execution's time.
#[cfg(any(loom, shuttle))]
const BITS: Bits = Bits { segment: 1, branch: 1, root: if cfg!(loom) { 1 } else { 4 } };

/// How many bits of a ticket's number select a cell in a segment, a child in a branch, and a branch in the root.
struct Bits {
    segment: u32,
    branch: u32,
    root: u32,
}

/// The number of bits of a ticket.
pub(super) const TICKET_BITS: u32 = BITS.segment + 2 * BITS.branch + BITS.root;
pub(super) const SIZE: u32 = 1 << BITS.segment;

const FAN: usize = 1 << BITS.branch;
const ROOT: usize = 1 << BITS.root;

/// Returns the first ticket of this ticket's segment.
#[inline]
pub(super) fn start_of(ticket: Ticket) -> Ticket {
    Ticket::of(ticket.number() & !(SIZE - 1))
}

/// The cells of consecutive tickets.
pub(super) struct Segment<G> {
    cells: [Cell<G>; SIZE as usize],
    links: UnsafeCell<Links<G>>,
}

/// The part of a segment that only the holder of the list's lock uses.
struct Links<G> {
    start: Ticket,
    /// The neighbours in the lane's chain.
    previous: Option<NonNull<Segment<G>>>,
    next: Option<NonNull<Segment<G>>>,
}

// SAFETY: cells are `Sync`, and only the holder of the list's lock touches the links.
#[allow(unsafe_code)]
unsafe impl<G: Send> Sync for Segment<G> {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Segment<G> {}

impl<G> Segment<G> {
    fn new() -> Box<Self> {
        let links = Links { start: Ticket::FIRST, previous: None, next: None };
        Box::new(Self { cells: std::array::from_fn(|_| Cell::new()), links: UnsafeCell::new(links) })
    }

    /// Calls `f` with the links. The caller holds the list's lock.
    #[allow(unsafe_code)]
    fn with_links<R>(&self, f: impl FnOnce(&mut Links<G>) -> R) -> R {
        step();
        // SAFETY: the caller holds the lock, and `f` never calls this for the same segment.
        self.links.with_mut(|links| f(unsafe { &mut *links }))
    }

    /// Returns the first ticket. The caller holds the list's lock.
    fn start(&self) -> Ticket {
        self.with_links(|links| links.start)
    }

    #[inline]
    fn cell(&self, ticket: Ticket) -> &Cell<G> {
        &self.cells[(ticket.number() & (SIZE - 1)) as usize]
    }

    /// Returns whether all tickets are over. The queue must have passed all of them. The caller holds the list's lock.
    pub(super) fn is_over(&self) -> bool {
        let start = self.start();
        self.cells.iter().all(|cell| {
            step();
            cell.is_over(start)
        })
    }
}

/// A part of the directory. It is aligned to a cache line, so that each line holds the same number of children.
#[repr(align(64))]
pub(super) struct Branch<T> {
    children: [AtomicPtr<T>; FAN],
    /// The number of children. Only the holder of the list's lock uses it.
    len: UnsafeCell<u32>,
}

// SAFETY: the children are `Sync`, and only the holder of the list's lock touches `len`.
#[allow(unsafe_code)]
unsafe impl<T: Sync> Sync for Branch<T> {}

type Lower<G> = Branch<Segment<G>>;
type Upper<G> = Branch<Lower<G>>;

impl<T> Branch<T> {
    fn new() -> Box<Self> {
        Box::new(Self { children: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())), len: UnsafeCell::new(0) })
    }

    /// Returns a child, or null. Called by the holder of the list's lock.
    fn child(&self, index: usize) -> *mut T {
        // Relaxed: only the holder of the lock changes it.
        published!(self.children[index])
    }

    /// Replaces a child. Returns the number of children. Called by the holder of the list's lock.
    #[allow(unsafe_code)]
    fn set(&self, index: usize, child: *mut T) -> u32 {
        let (was, is) = (!self.child(index).is_null(), !child.is_null());
        // Relaxed: the lane's limit publishes it.
        self.children[index].store(child, Ordering::Relaxed);
        // SAFETY: the caller has the lock.
        self.len.with_mut(|len| unsafe {
            *len = *len + u32::from(is) - u32::from(was);
            *len
        })
    }
}

/// The memory for one segment. It is never dropped under the lock.
pub(super) struct Parts<G> {
    segment: Option<Box<Segment<G>>>,
    lower: Option<Box<Lower<G>>>,
    upper: Option<Box<Upper<G>>>,
}

/// The parts that must be built before a segment can be installed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lack {
    segment: bool,
    lower: bool,
    upper: bool,
}

impl<G> Parts<G> {
    pub(super) const NONE: Self = Self { segment: None, lower: None, upper: None };

    pub(super) fn build(lack: Lack) -> Self {
        Self {
            segment: lack.segment.then(Segment::new),
            lower: lack.lower.then(Branch::new),
            upper: lack.upper.then(Branch::new),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.segment.is_none() && self.lower.is_none() && self.upper.is_none()
    }
}

/// In a saturated pool, segments are installed about as often as they are removed. A few spare segments absorb the
/// fluctuations.
const SPARES: usize = 2;

pub(super) struct Spares<G> {
    segments: [Option<Box<Segment<G>>>; SPARES],
    lower: Option<Box<Lower<G>>>,
    upper: Option<Box<Upper<G>>>,
}

impl<G> Spares<G> {
    pub(super) fn new() -> Self {
        Self { segments: [const { None }; SPARES], lower: None, upper: None }
    }

    /// Keeps as much as there is room for. Returns the rest.
    pub(super) fn keep(&mut self, parts: Parts<G>) -> Parts<G> {
        fn place<T>(new: Option<T>, places: &mut [Option<T>]) -> Option<T> {
            let new = new?;
            match places.iter_mut().find(|place| place.is_none()) {
                Some(place) => place.replace(new),
                None => Some(new),
            }
        }
        Parts {
            segment: place(parts.segment, &mut self.segments),
            lower: place(parts.lower, std::slice::from_mut(&mut self.lower)),
            upper: place(parts.upper, std::slice::from_mut(&mut self.upper)),
        }
    }
}

/// Maps a lane's tickets to their segments.
pub(super) struct Directory<G> {
    root: [AtomicPtr<Upper<G>>; ROOT],
}

/// A lane's segments, in ticket order. Used by the holder of the list's lock.
pub(super) struct Chain<G> {
    first: Option<NonNull<Segment<G>>>,
    last: Option<NonNull<Segment<G>>>,
    /// The segment that is checked next, or `None` for the first segment.
    next: Option<NonNull<Segment<G>>>,
    len: u32,
}

// SAFETY: only the holder of the lock uses the chain and the links of the segments. The segments' cells are `Sync`.
#[allow(unsafe_code)]
unsafe impl<G: Send> Send for Chain<G> {}

/// Returns `pointer`, which must not be null. Tests and models check this.
#[inline]
fn known<T>(pointer: *mut T) -> *mut T {
    #[cfg(any(debug_assertions, loom, shuttle))]
    assert!(!pointer.is_null(), "BUG: a ticket has no segment");
    pointer
}

/// Returns a ticket's indices in the root, in its upper branch and in its lower branch.
#[inline]
fn path(ticket: Ticket) -> [usize; 3] {
    let segment = (ticket.number() >> BITS.segment) as usize;
    [segment >> (2 * BITS.branch), segment >> BITS.branch & (FAN - 1), segment & (FAN - 1)]
}

#[allow(unsafe_code)]
impl<G> Directory<G> {
    pub(super) fn new() -> Self {
        Self { root: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }

    /// Returns a ticket's segment. The segment must exist (INV-12).
    #[inline]
    pub(super) fn segment(&self, ticket: Ticket) -> NonNull<Segment<G>> {
        let [root, upper, lower] = path(ticket);
        // Relaxed: the limit published the branches and the segment before the ticket was given out.
        let branch: *mut Upper<G> = known(published!(self.root[root]));
        // SAFETY: INV-12, as the caller guarantees: the segment exists, as do the branches that lead to it.
        unsafe {
            let branch: *mut Lower<G> = known(published!((*branch).children[upper]));
            NonNull::new_unchecked(known(published!((*branch).children[lower])))
        }
    }

    /// Returns a ticket's cell. The caller holds or has claimed the ticket, or holds the list's lock and knows that the
    /// ticket is waiting or is at an end of a gap (INV-12).
    #[inline]
    pub(super) fn cell(&self, ticket: Ticket) -> NonNull<Cell<G>> {
        // SAFETY: INV-12.
        NonNull::from(unsafe { self.segment(ticket).as_ref() }.cell(ticket))
    }

    /// Calls `f` with a ticket's cell, under the same conditions as [`cell`](Self::cell).
    pub(super) fn with_cell<R>(&self, ticket: Ticket, f: impl FnOnce(&Cell<G>) -> R) -> R {
        step();
        // SAFETY: INV-12.
        f(unsafe { self.cell(ticket).as_ref() })
    }

    /// Installs the segment that begins with this ticket at the end of the chain, or reports which parts are missing.
    /// Called by the holder of the list's lock.
    pub(super) fn install(&self, start: Ticket, chain: &mut Chain<G>, spares: &mut Spares<G>) -> Result<(), Lack> {
        let [root, upper, lower] = path(start);
        // Relaxed: only the holder of the lock changes the directory.
        let mut branch = self.root[root].load(Ordering::Relaxed);
        // SAFETY: INV-12: a branch in the directory exists.
        let mut twig = unsafe { branch.as_ref() }.map_or(ptr::null_mut(), |branch| branch.child(upper));
        let segment = spares.segments.iter_mut().find(|spare| spare.is_some());
        let lack = Lack {
            segment: segment.is_none(),
            lower: twig.is_null() && spares.lower.is_none(),
            upper: branch.is_null() && spares.upper.is_none(),
        };
        let Some(new) = segment.filter(|_| !lack.lower && !lack.upper).and_then(Option::take) else { return Err(lack) };
        let new = NonNull::from(Box::leak(new));
        if branch.is_null() {
            branch = Box::into_raw(spares.upper.take().expect("BUG: no spare branch"));
            self.root[root].store(branch, Ordering::Relaxed);
        }
        // SAFETY: INV-12: each part is in the directory, or new.
        unsafe {
            if twig.is_null() {
                twig = Box::into_raw(spares.lower.take().expect("BUG: no spare branch"));
                (*branch).set(upper, twig);
            }
            // If a grant was not taken before the numbers wrapped around, its ticket's segment is still in this place,
            // and is replaced. Its waiter does not need the directory to reach the segment.
            (*twig).set(lower, new.as_ptr());
            let before = new.as_ref().with_links(|links| std::mem::replace(&mut links.start, start));
            if before == start {
                // The segment may have been a spare since before the numbers wrapped around. If its cells kept their
                // states, its tickets would seem to be over.
                new.as_ref().cells.iter().for_each(Cell::forget);
            }
        }
        chain.append(new);
        Ok(())
    }

    /// Takes a segment out of the chain and the directory. No thread may look up its tickets again. Called by the
    /// holder of the list's lock.
    pub(super) fn remove(&self, segment: NonNull<Segment<G>>, chain: &mut Chain<G>) -> Parts<G> {
        chain.unlink(segment);
        let mut parts = Parts::NONE;
        // SAFETY: INV-12: a branch in the directory exists, and no thread looks through a branch without children. Each
        // part came from a `Box`.
        unsafe {
            let [root, upper, lower] = path(segment.as_ref().start());
            let branch: *mut Upper<G> = published!(self.root[root]);
            let twig = branch.as_ref().map_or(ptr::null_mut(), |branch| branch.child(upper));
            // A later segment may have replaced this segment in the directory.
            let is_there = twig.as_ref().is_some_and(|twig| twig.child(lower) == segment.as_ptr());
            if is_there && (*twig).set(lower, ptr::null_mut()) == 0 {
                parts.lower = Some(Box::from_raw(twig));
                if (*branch).set(upper, ptr::null_mut()) == 0 {
                    self.root[root].store(ptr::null_mut(), Ordering::Relaxed);
                    parts.upper = Some(Box::from_raw(branch));
                }
            }
            parts.segment = Some(Box::from_raw(segment.as_ptr()));
        }
        parts
    }
}

#[allow(unsafe_code)]
impl<G> Chain<G> {
    pub(super) fn new() -> Self {
        Self { first: None, last: None, next: None, len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn first(&self) -> Option<NonNull<Segment<G>>> {
        self.first
    }

    /// Returns the next segment if the queue has passed it, or else the first segment if the queue has passed that one.
    pub(super) fn next_passed(&mut self, has_passed: impl Fn(Ticket) -> bool) -> Option<NonNull<Segment<G>>> {
        let has_passed = |segment: &NonNull<Segment<G>>| has_passed(Self::links(*segment, |links| links.start));
        let next = self.next.filter(has_passed).or_else(|| self.first.filter(has_passed))?;
        self.next = Self::links(next, |links| links.next);
        Some(next)
    }

    /// Calls `f` with the links of a segment in a chain.
    fn links<R>(of: NonNull<Segment<G>>, f: impl FnOnce(&mut Links<G>) -> R) -> R {
        // SAFETY: a segment is in its chain until it is removed, and exists until then.
        unsafe { of.as_ref() }.with_links(f)
    }

    fn append(&mut self, new: NonNull<Segment<G>>) {
        self.len += 1;
        Self::links(new, |links| (links.previous, links.next) = (self.last, None));
        match self.last.replace(new) {
            Some(last) => Self::links(last, |links| links.next = Some(new)),
            None => self.first = Some(new),
        }
    }

    fn unlink(&mut self, of: NonNull<Segment<G>>) {
        self.len -= 1;
        let (previous, next) = Self::links(of, |links| (links.previous.take(), links.next.take()));
        self.next = self.next.map(|here| if here == of { next } else { Some(here) }).unwrap_or_default();
        match previous {
            Some(previous) => Self::links(previous, |links| links.next = next),
            None => self.first = next,
        }
        match next {
            Some(next) => Self::links(next, |links| links.previous = previous),
            None => self.last = previous,
        }
    }
}
