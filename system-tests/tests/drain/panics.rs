//! The environment panics while it judges a drained connection. In a `Pool`, the environment itself catches the panic.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use wharf::unstable::pool::{Core, Environment, Grant, Lease};
use wharf::{Condition, PoolEvent, PoolOptions};

/// Reports that a connection needs a drain, and panics when it judges the connection again.
#[derive(Default)]
struct Judge {
    events: Mutex<Vec<String>>,
}

// SAFETY: threads keep no notes here.
#[allow(unsafe_code)]
unsafe impl Environment for Judge {
    /// How many times the connection was judged.
    type Connection = u32;

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn stopwatch(&self) -> u64 {
        0
    }

    fn shard_hint(&self) -> usize {
        0
    }

    fn listens(&self) -> bool {
        true
    }

    fn emit(&self, event: PoolEvent) {
        let error = event.error().map(|error| format!(": {error}")).unwrap_or_default();
        self.events.lock().unwrap().push(format!("{}{error}", event.name()));
    }

    fn condition(&self, judged: &mut u32) -> Condition {
        *judged += 1;
        assert_eq!(*judged, 1, "judging was told to panic");
        Condition::NeedsDrain
    }
}

/// Gets a permit, opens a connection with it, and checks the connection out.
fn opened(core: &Arc<Core<Judge>>) -> Lease<Judge> {
    let Poll::Ready(Grant::Permit(permit)) = pin!(core.acquire()).poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("the capacity is not free");
    };
    let (idle, opening) = permit.create().unwrap().established(0).unwrap();
    opening.hand_on(None);
    idle.check_out(core.check_out_started())
}

#[test]
fn panic_after_a_drain_closes_the_connection_and_counts_the_drain_as_failed() {
    let core = Core::new("mock:27017", PoolOptions::default().max_pool_size(1), 1, Judge::default()).unwrap();
    core.ready();
    for round in 1..=2 {
        let lease = opened(&core);
        core.environment().events.lock().unwrap().clear();
        // The environment's drain does nothing.
        catch_unwind(AssertUnwindSafe(|| drop(lease))).expect_err("judging did not panic");
        assert_eq!(
            *core.environment().events.lock().unwrap(),
            ["ConnectionCheckedIn", "ConnectionClosed: the code that judges, checks or drains the connection panicked"]
        );
        let (status, metrics) = (core.status(), core.metrics());
        assert_eq!((status.total, status.in_use, status.draining, status.available), (0, 0, 0, 0));
        assert_eq!((metrics.drains.begun, metrics.drains.failed, metrics.drains.ended()), (round, round, round));
        assert_eq!((metrics.connections.created, metrics.connections.closed.error), (round, round));
    }
    core.close();
}
