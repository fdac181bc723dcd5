//! A limit on the total number of connections across several pools.
//!
//! Under a budget, each connection that a pool's capacity word counts holds a *place*. The pool takes the place before
//! the word counts the connection, and gives the place back after the word has stopped counting the connection
//! (`sharing.rs`). So the pools never hold more connections than the budget has places.
//!
//! # The queue
//!
//! If a pool's first waiter lacks only a place, the pool queues up in the budget. The waiter stays in the pool's own
//! queue.
//!
//! The *fair share* is the largest number of places that every pool can hold at the same time. A pool that holds fewer
//! and wants no more keeps what it holds, and the others share the rest. A pool *starves* if it is in the queue and
//! holds less than its fair share, or nothing.
//!
//! A free place goes to the first starving pool in the queue. If no pool starves, it goes to the first pool in the
//! queue. If that pool needs more places, it queues up again, behind the others. If no place is free, another pool
//! gives one up:
//!
//! 1. The pools are searched for an idle connection, which is closed. The pool with the most places comes first.
//! 2. If there is no idle connection and a pool starves, the pools that hold more than their fair share are *asked*.
//!    While a pool starves, each pool that was asked closes the next connection that is returned to it.
//!
//! A place is *leaving* while its connection is being closed for another pool. No further connection is closed while
//! there are enough free or leaving places for the pools in the queue.
//!
//! # Race window
//!
//! A check-in in progress may not notice that its pool has been asked. A connection may also become idle in a pool that
//! has not been asked. In both cases, the connection stays idle until a pool in the queue searches again during its
//! maintenance. Noticing such a connection at once would require every check-in to look at the budget.
//!
//! # One thread at a time
//!
//! A change to the books may allow a pool in the queue to proceed. After such a change, the thread that made it calls
//! [`Budget::settle`] without holding a lock. In this function, one thread at a time takes the steps that the books
//! require. If another thread is already doing so, the caller leaves the work to that thread. So a step that closes a
//! connection never recurses into the next step, however many connections are closed.
//!
//! No work is lost: a thread stops settling only after it has seen, under the same lock, that nothing is left to do. So
//! no place stays free while a pool is in the queue, unless a thread is about to settle the books.
//!
//! The books' lock is the innermost lock. It is taken under a pool's locks, and no lock is taken under it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use crate::pool::error::BudgetStatus;
use crate::pool::options::{InvalidOption, MAX_CONNECTIONS};
use crate::pool::sync::Mutex;

/// A limit on the total number of connections across several pools, whether in use, idle or being opened. Clones are
/// handles to the same budget.
///
/// ```
/// use wharf::{Budget, Endpoint, InvalidOption};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), InvalidOption> {
/// let budget = Budget::new(50)?;
/// let orders = Endpoint::new("orders.example.com")?.pool().budget(&budget).build()?;
/// let stock = Endpoint::new("stock.example.com")?.pool().budget(&budget).build()?;
/// assert_eq!(budget.status().connections, 0);
/// # let _ = (orders, stock);
/// # Ok(())
/// # }
/// ```
///
/// If the budget is used up, a pool that needs a connection waits for its turn, and an idle connection in another pool
/// is closed to make room. If no connection is idle, the waiting pool gets the place of the next connection that is
/// returned to a pool with more than its fair share.
///
/// `minPoolSize` and [`Pool::warm_up`](crate::Pool::warm_up) use only free places. The
/// [guide](crate::guide::operating_pools#a-budget-for-several-pools) explains the rules.
///
/// In a forked child, a budget starts at zero and counts only the child's connections.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    size: u32,
    /// The process that created the budget.
    process: u32,
    books: Mutex<Books>,
    /// The budget that replaces this one in a forked child.
    after_fork: OnceLock<Budget>,
}

struct Books {
    size: u32,
    /// The number of places that no connection holds.
    free: u32,
    accounts: BTreeMap<u64, Account>,
    next_ticket: u64,
    /// Whether to search for idle connections on behalf of the pools in the queue.
    looks: bool,
    /// Whether a thread is settling the books.
    is_settling: bool,
}

/// The account of a pool that holds places or is in the queue.
struct Account {
    pool: Weak<dyn Sharer>,
    /// The number of places that the pool holds.
    held: u32,
    /// How many of these places are leaving: their connections are being closed for other pools.
    leaving: u32,
    /// The pool's turn, while it is in the queue.
    ticket: Option<u64>,
    /// Whether the pool has been asked to give up the next connection that is returned to it. The pool records this
    /// too, but looking it up there would require a handle to the pool, and dropping the handle under the lock could
    /// drop the pool.
    is_asked: bool,
}

/// A budget's view of a pool under it. The methods are called without the books' lock, except for [`Sharer::ask`].
pub(super) trait Sharer: Send + Sync {
    /// Lets the pool take places for its waiters. Afterwards, the pool has either left the queue or must wait for its
    /// turn.
    fn serve(self: Arc<Self>);

    /// Closes an idle connection, if there is one and the budget still needs its place. Returns whether a connection
    /// was closed.
    fn give_up_idle(self: Arc<Self>) -> bool;

    /// Makes the pool's check-ins call [`Budget::gives_one_up`].
    fn ask(&self);
}

/// A step that the books require. It owns handles to its pools, so that no pool is dropped under the lock.
enum Step {
    Serve(Arc<dyn Sharer>),
    Search(Vec<Arc<dyn Sharer>>),
    /// These pools have been asked.
    Asked(#[allow(dead_code, reason = "dropped without the lock")] Vec<Arc<dyn Sharer>>),
}

impl Account {
    /// Returns the number of places that the pool will hold once none is leaving.
    fn kept(&self) -> u32 {
        self.held - self.leaving
    }

    fn starves(&self, fair_share: u32) -> bool {
        self.ticket.is_some() && self.held < fair_share.max(1)
    }
}

impl Books {
    fn account(&mut self, number: u64, pool: impl FnOnce() -> Weak<dyn Sharer>) -> &mut Account {
        let new = || Account { pool: pool(), held: 0, leaving: 0, ticket: None, is_asked: false };
        self.accounts.entry(number).or_insert_with(new)
    }

    /// Changes an account, if there is one. Removes the account if the pool then holds no place and is not in the
    /// queue.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Account)) {
        if let Entry::Occupied(mut entry) = self.accounts.entry(number) {
            change(entry.get_mut());
            if entry.get().held == 0 && entry.get().ticket.is_none() {
                entry.remove();
            }
        }
    }

    fn is_used_up(&self) -> bool {
        self.free == 0 || self.accounts.values().any(|account| account.ticket.is_some())
    }

    fn fair_share(&self) -> u32 {
        let mut left = self.size;
        let mut claimants: Vec<&Account> = self.accounts.values().collect();
        loop {
            let share = left / u32::try_from(claimants.len().max(1)).unwrap_or(u32::MAX);
            let before = claimants.len();
            claimants.retain(|account| {
                let claims_more = account.ticket.is_some() || account.held > share;
                if !claims_more {
                    left -= account.held;
                }
                claims_more
            });
            if claimants.len() == before {
                return share;
            }
        }
    }

    /// Returns the pool that the next free place goes to.
    fn first(&self) -> Option<u64> {
        let share = self.fair_share();
        let in_queue = self
            .accounts
            .iter()
            .filter_map(|(number, account)| account.ticket.map(|ticket| (!account.starves(share), ticket, *number)));
        (self.free > 0).then(|| in_queue.min().map(|(_, _, number)| number)).flatten()
    }

    /// Returns whether there are fewer free and leaving places than accounts for which `is_meant` returns true.
    fn lacks_places(&self, is_meant: impl Fn(&Account) -> bool) -> bool {
        let leaving: u32 = self.accounts.values().map(|account| account.leaving).sum();
        self.accounts.values().filter(|account| is_meant(account)).count() > (self.free + leaving) as usize
    }

    fn lacks_places_for_the_queue(&self) -> bool {
        self.lacks_places(|account| account.ticket.is_some())
    }

    /// Returns the fair share if a pool starves and no place is free or leaving for it. Pools that hold more than this
    /// share must then give up places.
    fn share_to_be_kept(&self) -> Option<u32> {
        let share = self.fair_share();
        self.lacks_places(|account| account.starves(share)).then_some(share)
    }

    /// If a pool starves, asks the pools that hold more than the fair share to give up a connection. Returns the pools
    /// that had not been asked before.
    fn ask(&mut self) -> Vec<Arc<dyn Sharer>> {
        let Some(share) = self.share_to_be_kept() else { return Vec::new() };
        let asked = |account: &mut Account| {
            if account.is_asked || account.kept() <= share {
                return None;
            }
            let pool = account.pool.upgrade()?;
            account.is_asked = true;
            // The pool is asked under the lock, so that none of its check-ins mistakes this request for an earlier one.
            pool.ask();
            Some(pool)
        };
        self.accounts.values_mut().filter_map(asked).collect()
    }

    /// Returns the pools in the order in which they are searched for an idle connection. Leaves out the pools in the
    /// queue, which need their connections themselves: if one of these connections is idle, a check-out of its pool is
    /// about to find it.
    fn by_holdings(&self) -> Vec<Arc<dyn Sharer>> {
        let is_searched = |account: &&Account| account.kept() > 0 && account.ticket.is_none();
        let mut accounts: Vec<_> = self.accounts.values().filter(is_searched).collect();
        accounts.sort_by_key(|account| Reverse(account.kept()));
        accounts.into_iter().filter_map(|account| account.pool.upgrade()).collect()
    }

    fn next_step(&mut self) -> Option<Step> {
        while let Some(account) = self.first().and_then(|number| self.accounts.get_mut(&number)) {
            match account.pool.upgrade() {
                Some(pool) => return Some(Step::Serve(pool)),
                None => account.ticket = None,
            }
        }
        if std::mem::take(&mut self.looks) && self.lacks_places_for_the_queue() {
            return Some(Step::Search(self.by_holdings()));
        }
        Some(self.ask()).filter(|asked| !asked.is_empty()).map(Step::Asked)
    }
}

impl Budget {
    /// Creates a budget for this many connections.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] if the number is 0 or above [`MAX_CONNECTIONS`].
    pub fn new(connections: u32) -> Result<Self, InvalidOption> {
        match connections {
            0 => Err(InvalidOption::new("budget", "at least 1", "0")),
            1..=MAX_CONNECTIONS => Ok(Self::of(connections)),
            _ => Err(InvalidOption::new("budget", format!("at most {MAX_CONNECTIONS}"), connections.to_string())),
        }
    }

    fn of(size: u32) -> Self {
        let (accounts, free) = (BTreeMap::new(), size);
        let books = Mutex::new(Books { size, free, accounts, next_ticket: 0, looks: false, is_settling: false });
        Self(Arc::new(Shared { size, process: std::process::id(), books, after_fork: OnceLock::new() }))
    }

    /// Returns this budget or, in a forked child, its successor. Does not take a lock, because the thread that holds
    /// the lock may not exist in the child.
    pub(crate) fn here(&self) -> Self {
        let Shared { size, process, after_fork, .. } = &*self.0;
        if *process == std::process::id() { self.clone() } else { after_fork.get_or_init(|| Self::of(*size)).here() }
    }

    /// Returns the current status of the budget.
    #[must_use]
    pub fn status(&self) -> BudgetStatus {
        let here = self.here();
        let books = here.0.books.lock();
        let waiting_pools = books.accounts.values().filter(|account| account.ticket.is_some()).count();
        BudgetStatus { size: books.size, connections: books.size - books.free, waiting_pools }
    }

    /// Returns whether a pool must queue up to get a place.
    pub(super) fn is_used_up(&self) -> bool {
        self.0.books.lock().is_used_up()
    }

    /// Takes a place, unless the budget is used up or a pool is in the queue.
    pub(super) fn try_take(&self, number: u64, pool: impl FnOnce() -> Weak<dyn Sharer>) -> bool {
        let mut books = self.0.books.lock();
        if books.is_used_up() {
            return false;
        }
        books.free -= 1;
        books.account(number, pool).held += 1;
        true
    }

    /// Takes a place and leaves the queue, or else queues up. Returns whether it took a place. If not, the caller must
    /// call [`settle`](Self::settle).
    pub(super) fn take_or_queue(&self, number: u64, pool: impl FnOnce() -> Weak<dyn Sharer>) -> bool {
        let mut books = self.0.books.lock();
        let next = books.next_ticket;
        let account = books.account(number, pool);
        let is_new = account.ticket.is_none();
        account.ticket.get_or_insert(next);
        books.next_ticket += u64::from(is_new);
        let is_first = books.first() == Some(number);
        if is_first {
            books.free -= 1;
            let account = books.accounts.get_mut(&number).expect("BUG: an account is gone under the lock");
            account.held += 1;
            account.ticket = None;
        } else {
            books.looks = true;
        }
        is_first
    }

    pub(super) fn leave(&self, number: u64) {
        self.0.books.lock().change(number, |account| account.ticket = None);
    }

    /// Gives a place back. The caller must then call [`settle`](Self::settle).
    pub(super) fn give_back(&self, number: u64, was_leaving: bool) {
        let mut books = self.0.books.lock();
        books.change(number, |account| {
            account.held -= 1;
            account.leaving -= u32::from(was_leaving);
        });
        books.free += 1;
    }

    /// Returns whether the pool must close an idle connection. If so, the connection's place counts as leaving from now
    /// on.
    pub(super) fn gives_idle_up(&self, number: u64) -> bool {
        let mut books = self.0.books.lock();
        let gives = books.lacks_places_for_the_queue();
        if gives {
            books.change(number, |account| account.leaving += 1);
        }
        gives
    }

    /// Returns whether a pool that was asked must close the connection that is being returned. If so, the connection's
    /// place counts as leaving from now on. If not, the request is withdrawn, and `forget` is called under the lock.
    pub(super) fn gives_one_up(&self, number: u64, forget: impl FnOnce()) -> bool {
        let mut books = self.0.books.lock();
        let share = books.share_to_be_kept();
        let account = books.accounts.get_mut(&number);
        match (share, account) {
            (Some(share), Some(account)) if account.kept() > share => {
                account.leaving += 1;
                true
            }
            (_, account) => {
                account.into_iter().for_each(|account| account.is_asked = false);
                forget();
                false
            }
        }
    }

    /// Searches for idle connections again, because some may have become idle since the last search.
    pub(super) fn look_again(&self) {
        self.0.books.lock().looks = true;
        self.settle();
    }

    /// Takes the steps that the books require, unless another thread is already doing so. The caller must not hold a
    /// lock.
    pub(super) fn settle(&self) {
        let mut is_mine = false;
        loop {
            let step = {
                let mut books = self.0.books.lock();
                if books.is_settling && !is_mine {
                    return;
                }
                let step = books.next_step();
                is_mine = step.is_some();
                books.is_settling = is_mine;
                step
            };
            let turn = EndedOnPanic(self);
            match step {
                Some(Step::Serve(pool)) => pool.serve(),
                Some(Step::Search(pools)) => {
                    let found = pools.into_iter().any(|pool| pool.give_up_idle());
                    self.0.books.lock().looks |= found;
                }
                Some(Step::Asked(_)) | None => {}
            }
            std::mem::forget(turn);
            if !is_mine {
                return;
            }
        }
    }
}

/// Lets other threads settle the books if a step panics. A step may close a connection, which may run foreign code.
struct EndedOnPanic<'b>(&'b Budget);

impl Drop for EndedOnPanic<'_> {
    fn drop(&mut self) {
        self.0.0.books.lock().is_settling = false;
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Budget").field(&self.status()).finish()
    }
}
