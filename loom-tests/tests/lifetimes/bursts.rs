//! Bursts: thousands of check-outs that wait for one small pool at once and make its wait list allocate and free
//! memory.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;

use super::occurrences::Occurrence;
use super::{Bomb, CheckOut, Dice, MOST_LEAKED, POOLS, Parcels, World, clear, close, hoard, new_pool, owned, poll};
use wharf::{Connection, Pool};

/// The minimum number of check-outs in a burst, and the upper limit of the random number that is added to it.
const CHECK_OUTS: (u64, u64) = (1_500, 3_000);
/// The maximum number of check-outs that bursts leak, in addition to [`MOST_LEAKED`].
const MOST_LEAKED_INSIDE: usize = 100;

/// A waker that does nothing. The sanitizer notices if the waker is used after being freed.
struct Quiet;

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {}
}

fn new_waker(dice: &mut Dice) -> Waker {
    match dice.roll(4) {
        0 => Waker::from(Arc::new(Bomb)),
        1 => Waker::noop().clone(),
        _ => Waker::from(Arc::new(Quiet)),
    }
}

/// A burst: its waiting check-outs in queue order, and the connections that it holds.
struct Burst<'w> {
    world: &'w World,
    pool: Pool<Parcels>,
    waiting: Vec<CheckOut>,
    held: Vec<Connection<Parcels>>,
}

impl World {
    /// Runs bursts until the test ends.
    pub fn bursts(&self, number: u64) {
        let _inside = self.runtime.enter();
        let mut dice = Dice(number << 32);
        while self.goes_on() {
            let of = dice.roll(POOLS + 1) as usize;
            match self.pools.get(of) {
                // Other threads also use this pool.
                Some(pool) => {
                    let pool = pool.lock().unwrap().clone();
                    self.burst(pool, &mut dice).end(&mut dice);
                    if dice.roll(4) == 0 {
                        self.replace(of, &mut dice);
                    }
                }
                None => {
                    let pool = new_pool(&mut dice);
                    self.burst(pool, &mut dice).end_with_pool(&mut dice);
                }
            }
        }
    }

    fn burst(&self, pool: Pool<Parcels>, dice: &mut Dice) -> Burst<'_> {
        let mut burst = Burst { world: self, pool, waiting: Vec::new(), held: Vec::new() };
        for _ in 0..CHECK_OUTS.0 + dice.roll(CHECK_OUTS.1) {
            let mut check_out = owned(&burst.pool);
            match poll(check_out.as_mut(), &new_waker(dice)) {
                None => burst.waiting.push(check_out),
                Some(Ok(connection)) => burst.held.push(connection),
                Some(Err(_)) => {}
            }
        }
        if burst.waiting.len() as u64 > CHECK_OUTS.0 / 2 {
            Occurrence::Burst.note();
        }
        for _ in 0..dice.roll(8) {
            burst.go_on(dice);
        }
        burst
    }
}

impl Burst<'_> {
    fn go_on(&mut self, dice: &mut Dice) {
        match dice.roll(18) {
            0..6 => self.serve(dice),
            6..10 => self.cancel_inside(dice),
            10..13 => self.change_wakers(dice),
            13 => self.leak_inside(dice),
            14..17 if clear(&self.pool, dice) && !self.waiting.is_empty() => Occurrence::ClearedInBurst.note(),
            _ => thread::yield_now(),
        }
    }

    /// Passes connections along the queue.
    fn serve(&mut self, dice: &mut Dice) {
        self.held.clear();
        let most = dice.roll(1 + self.waiting.len() as u64) as usize;
        let mut patience = 32;
        let (mut served, waker) = (0, new_waker(dice));
        while let Some(first) = self.waiting.get_mut(served).filter(|_| served < most && patience > 0) {
            match poll(first.as_mut(), &waker) {
                None => {
                    // Other threads are holding the connections.
                    patience -= 1;
                    thread::yield_now();
                }
                Some(outcome) => {
                    served += 1;
                    if let Ok(connection) = outcome {
                        Occurrence::ServedInBurst.note();
                        self.world.make_use(connection, dice);
                    }
                }
            }
        }
        self.waiting.drain(..served);
    }

    /// Drops check-outs in a stretch of the queue: all of them, or every second, third or fourth.
    fn cancel_inside(&mut self, dice: &mut Dice) {
        let (stretch, step) = (self.stretch(dice), 1 + dice.roll(4) as usize);
        let mut index = 0;
        self.waiting.retain(|_| {
            let cancels = stretch.contains(&index) && (index - stretch.start) % step == 0;
            index += 1;
            if cancels {
                Occurrence::Cancelled.note();
                Occurrence::CancelledInside.note();
            }
            !cancels
        });
    }

    fn change_wakers(&mut self, dice: &mut Dice) {
        for index in self.stretch(dice).rev() {
            match poll(self.waiting[index].as_mut(), &new_waker(dice)) {
                None => Occurrence::WakerChanged.note(),
                Some(outcome) => {
                    drop(self.waiting.remove(index));
                    self.held.extend(outcome);
                }
            }
        }
    }

    /// Leaks a check-out, and closes the pool, because the leaked handle would keep it open.
    fn leak_inside(&mut self, dice: &mut Dice) {
        let Some(index) = self.stretch(dice).next() else { return };
        if hoard(self.waiting.remove(index), MOST_LEAKED + MOST_LEAKED_INSIDE) {
            Occurrence::LeakedInside.note();
            close(&self.pool);
        }
    }

    /// Returns a random range of the waiting check-outs, without the first and the last.
    fn stretch(&self, dice: &mut Dice) -> std::ops::Range<usize> {
        let Some(inside) = self.waiting.len().checked_sub(2) else { return 0..0 };
        let start = dice.roll(1 + inside as u64);
        let length = dice.roll(1 + inside as u64 - start);
        1 + start as usize..1 + (start + length) as usize
    }

    /// Drops the waiting check-outs, the held connections and the handle to the pool.
    fn end(self, dice: &mut Dice) {
        let Self { mut waiting, held, pool, .. } = self;
        if dice.roll(2) == 0 {
            drop(held);
            drop_all(&mut waiting, dice);
        } else {
            drop_all(&mut waiting, dice);
            drop(held);
        }
        drop(pool);
    }

    /// Ends the burst and its pool, which no other thread uses.
    fn end_with_pool(self, dice: &mut Dice) {
        let Self { mut waiting, held, pool, .. } = self;
        match dice.roll(2) {
            0 if !waiting.is_empty() => {
                drop(pool);
                drop_all(&mut waiting, dice);
                Occurrence::EndedByBurst.note();
            }
            _ => {
                drop_all(&mut waiting, dice);
                drop(pool);
                Occurrence::EndedAfterBurst.note();
            }
        }
        drop(held);
    }
}

/// Drops the check-outs in order, in reverse order, or on another thread outside the runtime.
fn drop_all(waiting: &mut Vec<CheckOut>, dice: &mut Dice) {
    (0..waiting.len()).for_each(|_| Occurrence::Cancelled.note());
    match dice.roll(3) {
        0 => waiting.clear(),
        1 => while waiting.pop().is_some() {},
        _ => {
            let waiting = std::mem::take(waiting);
            if !waiting.is_empty() {
                Occurrence::DroppedElsewhere.note();
            }
            thread::spawn(|| drop(waiting)).join().unwrap();
        }
    }
}
