//! The metrics of a forked child.

use tokio::runtime::Builder;
use wharf::{Pool, PoolOptions};

use super::{Mock, Wrong, in_child, is_pending};

/// The child's pool counts what happens in the child, and the parent's pool does not.
pub fn child_counts_from_zero() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let options = PoolOptions::default().max_pool_size(2);
    let (pool, mut held) = runtime.block_on(async {
        let pool = Pool::builder("mock:27017", Mock::default()).options(options).build().unwrap();
        pool.ready();
        let held = [pool.check_out().await.unwrap(), pool.check_out().await.unwrap()];
        (pool, Some(held))
    });
    let mut waits = Some(Box::pin(pool.check_out()));
    assert!(runtime.block_on(async { is_pending(waits.as_mut().unwrap()) }));
    let counts = || {
        let metrics = pool.metrics();
        let (check_outs, connections) = (&metrics.check_outs, &metrics.connections);
        let ended = (check_outs.succeeded(), check_outs.failed.total(), metrics.use_time.count());
        (ended, connections.created, connections.closed.total())
    };
    let parents = ((2, 0, 0), 2, 0);
    assert_eq!(counts(), parents);
    in_child("that counts", || {
        let ensure = |holds: bool| if holds { Ok(()) } else { Err(Wrong::DoesNotAddUp) };
        ensure(counts() == ((0, 0, 0), 0, 0))?;
        // Operations that the parent began are not counted when the child drops them.
        drop((held.take(), waits.take()));
        ensure(counts() == ((0, 0, 0), 0, 0))?;
        pool.ready();
        drop(runtime.block_on(pool.check_out()).map_err(|_| Wrong::NotServed)?);
        ensure(counts() == ((1, 0, 1), 1, 0))
    });
    assert_eq!(counts(), parents, "the parent's counts have changed");
}
