//! Tests of when a pool builds events for its log. They run in a separate process, one at a time, because they depend
//! on the filters of all threads.
#![cfg(not(any(loom, shuttle)))]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata};
use wharf::{Clear, Establish, EstablishError, Establishing, Pool, PoolEvent};

/// A subscriber that reads the messages of one target.
#[derive(Clone, Copy)]
struct Reader(&'static str);

impl tracing::Subscriber for Reader {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == self.0
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Nothing;

impl Establish for Nothing {
    type Connection = ();

    async fn establish(&self, _: Establishing) -> Result<(), EstablishError> {
        Ok(())
    }
}

/// The maximum number of uses of a connection before its pool notices that a subscriber reads its log.
const MOST_UNNOTICED: usize = 191;

/// A pool with a log that collects the events.
struct World {
    pool: Pool<Nothing>,
    events: Arc<Mutex<Vec<PoolEvent>>>,
    runtime: Runtime,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Makes `tracing` forget a subscriber from an earlier test.
        tracing::callsite::rebuild_interest_cache();
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let kept = events.clone();
        let _entered = runtime.enter();
        let pool = Pool::builder("pool", Nothing)
            .log(move |event: &PoolEvent| kept.lock().unwrap().push(event.clone()))
            .build();
        let pool = pool.unwrap();
        pool.ready();
        Self { pool, events, runtime, _alone: alone }
    }

    fn use_once(&self) {
        drop(self.runtime.block_on(self.pool.check_out()).unwrap());
    }

    fn take(&self) -> Vec<PoolEvent> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    fn names(&self) -> Vec<&'static str> {
        self.take().iter().map(PoolEvent::name).collect()
    }

    /// Uses the pool until its log holds a complete use.
    fn use_until_noticed(&self) {
        let uses = (1..=MOST_UNNOTICED + 1).find(|_| {
            self.use_once();
            self.names().ends_with(&USE)
        });
        assert!(uses.is_some(), "the pool has not noticed its log");
    }
}

const USE: [&str; 3] = ["ConnectionCheckOutStarted", "ConnectionCheckedOut", "ConnectionCheckedIn"];

#[test]
fn nothing_is_built_for_a_log_that_is_not_read() {
    let world = World::new();
    let use_all = || {
        (0..2 * MOST_UNNOTICED).for_each(|_| world.use_once());
        world.pool.clear(Clear::new()).unwrap();
        world.pool.ready();
        world.names()
    };
    assert_eq!(use_all(), [""; 0]);
    // A subscriber that reads only another component's log does not change this.
    assert_eq!(tracing::subscriber::with_default(Reader("wharf::command"), use_all), [""; 0]);
}

#[test]
fn log_that_is_switched_on_receives_other_events_at_once_and_uses_soon() {
    let world = World::new();
    world.use_once();
    tracing::subscriber::with_default(Reader("wharf::connection"), || {
        world.use_until_noticed();
        world.use_once();
        assert_eq!(world.names(), USE);
        world.pool.clear(Clear::new()).unwrap();
        assert_eq!(world.names(), ["PoolCleared"]);
    });
}

#[test]
fn ready_pool_that_is_made_ready_notices_its_log() {
    let world = World::new();
    world.use_once();
    tracing::subscriber::with_default(Reader("wharf::connection"), || {
        world.pool.ready();
        world.use_once();
        assert_eq!(world.names(), USE);
    });
}

#[test]
fn log_that_is_switched_off_costs_nothing_soon_and_forgets_uses() {
    let world = World::new();
    let reader = tracing::Dispatch::new(Reader("wharf::connection"));
    let held = tracing::dispatcher::with_default(&reader, || {
        world.pool.ready();
        world.use_once();
        world.take();
        world.runtime.block_on(world.pool.check_out()).unwrap()
    });
    assert_eq!(world.names(), USE[..2]);
    drop(reader);
    tracing::callsite::rebuild_interest_cache();
    world.pool.ready();
    drop(held);
    (0..2 * MOST_UNNOTICED).for_each(|_| world.use_once());
    assert_eq!(world.names(), [""; 0]);
    // If the beginning of a use was not logged, the event for its end has no duration, even if the beginning of an
    // earlier use was logged.
    let held = world.runtime.block_on(world.pool.check_out()).unwrap();
    tracing::subscriber::with_default(Reader("wharf::connection"), || {
        world.pool.ready();
        drop(held);
        let [PoolEvent::ConnectionCheckedIn { duration, .. }] = world.take()[..] else { panic!("one event is due") };
        assert_eq!(duration, Duration::ZERO);
    });
}
