//! wharf's core as it ships, in an environment that opens connections immediately.
//!
//! A check-out takes the same steps as `wharf::Pool::check_out`, except that it opens its connection itself, without a
//! task.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use wharf::unstable::pool::{Core, Environment, Grant, Hit, Lease};
use wharf::unstable::simulated;
use wharf::{BackgroundInterval, Condition, PoolOptions};

use super::Design;
use crate::machine::{self, Access};
use crate::runtime::yield_now;

/// wharf.
pub struct Wharf {
    /// The core.
    pub core: Arc<Core<World>>,
}

/// A connection: a cache line of plain data, as in the benchmarks.
#[derive(Debug, Default)]
pub struct Dummy {
    is_broken: bool,
    _buffers: [u64; 7],
}

impl Dummy {
    /// Marks the connection as broken, so that it is not used again.
    pub fn break_off(&mut self) {
        self.is_broken = true;
    }
}

/// The environment of the core.
#[derive(Debug)]
pub struct World {
    epoch: Instant,
}

thread_local! {
    /// The simulated core that a thread outside a simulation represents.
    static STANDS_FOR: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: threads keep no notes here.
#[allow(unsafe_code)]
unsafe impl Environment for World {
    type Connection = Dummy;

    fn now(&self) -> Instant {
        self.epoch + Duration::from_nanos(self.stopwatch())
    }

    fn stopwatch(&self) -> u64 {
        machine::compute(|costs| costs.clock);
        machine::now() / 1_000
    }

    fn shard_hint(&self) -> usize {
        machine::core().unwrap_or_else(|| STANDS_FOR.get())
    }

    fn condition(&self, connection: &mut Dummy) -> Condition {
        if connection.is_broken { Condition::Broken } else { Condition::Reusable }
    }
}

/// Passes the accesses of wharf's core on to the machine.
struct Observer;

impl simulated::Machine for Observer {
    fn access(&self, address: usize, bytes: usize, access: simulated::Access, site: simulated::Site) {
        let access = match access {
            simulated::Access::Load => Access::Load,
            simulated::Access::Store => Access::Store,
            simulated::Access::Update => Access::Update,
        };
        machine::access(address, bytes, access, site);
    }

    fn lock(&self, address: usize, site: simulated::Site) {
        machine::lock(address, site);
    }

    fn unlock(&self, address: usize, site: simulated::Site) {
        machine::unlock(address, site);
    }

    fn follow(&self) {
        machine::follow();
    }

    fn fence(&self) {
        machine::fence();
    }

    fn spin(&self) {
        machine::spin();
    }

    fn yield_now(&self) {
        machine::compute_alone(|costs| costs.call);
    }

    fn sleep(&self, time: Duration) {
        machine::pass(time.as_nanos() as u64 * 1_000);
        machine::compute_alone(|costs| costs.awake);
    }
}

impl Wharf {
    /// Creates an empty pool with room for `size` connections.
    pub fn empty(cores: usize, size: usize) -> Arc<Self> {
        static OBSERVED: Once = Once::new();
        OBSERVED.call_once(|| simulated::observe(&Observer));
        let size = u32::try_from(size).expect("a pool of a sensible size");
        let options = PoolOptions::default()
            .max_pool_size(size)
            .max_connecting(size)
            .background_interval(BackgroundInterval::Never);
        let core = Core::new("server:27017", options, cores, World { epoch: Instant::now() });
        let core = core.expect("the options are valid");
        core.ready();
        Arc::new(Self { core })
    }

    /// Opens `count` connections and spreads them evenly over the shards of the first `owners` cores. Must be called
    /// outside a simulation.
    pub fn fill(&self, count: usize, owners: usize) {
        let leases: Vec<_> = (0..count).map(|_| Self::at_once(self.obtain())).collect();
        for (number, lease) in leases.into_iter().enumerate() {
            STANDS_FOR.set(number % owners);
            drop(lease);
        }
        STANDS_FOR.set(0);
    }

    fn at_once<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(done) => done,
            std::task::Poll::Pending => panic!("BUG: nothing is there to wait for"),
        }
    }

    /// Acquires a connection or opens one.
    async fn obtain(&self) -> Lease<World> {
        let mut started = self.core.check_out_started().read(&self.core);
        loop {
            let mut has_waited = false;
            let grant = {
                let mut acquire = pin!(self.core.acquire());
                poll_fn(|context| {
                    let polled = acquire.as_mut().poll(context);
                    has_waited |= polled.is_pending();
                    polled
                })
                .await
            };
            if has_waited {
                started = started.waited();
            }
            match grant {
                Grant::Connection(idle) if !idle.is_stale() => return idle.check_out(started),
                Grant::Connection(_) => {}
                Grant::Permit(permit) => {
                    let Ok(pending) = permit.create() else { continue };
                    let Ok((idle, opening)) = pending.established(Dummy::default()) else { continue };
                    idle.mark_opened();
                    let lease = idle.check_out(started);
                    drop(opening);
                    return lease;
                }
                Grant::Refused(_) => yield_now().await,
            }
        }
    }
}

impl Design for Wharf {
    const NAME: &'static str = "wharf";
    type Guard = Lease<World>;

    fn open(cores: usize, size: usize, owners: usize) -> Arc<Self> {
        let pool = Self::empty(cores, size);
        pool.fill(size, owners);
        pool
    }

    async fn check_out(self: &Arc<Self>) -> Lease<World> {
        if let Some(lease) = self.core.try_hit().map(Hit::begin) {
            return lease;
        }
        if let Some(idle) = self.core.try_take() {
            return idle.check_out(self.core.check_out_started());
        }
        self.obtain().await
    }
}

impl Drop for Wharf {
    fn drop(&mut self) {
        self.core.close();
    }
}
