//! A budget in a forked child.

use tokio::runtime::Builder;
use wharf::{Budget, Pool};

use super::{Mock, Wrong, in_child};

/// In the child, the budget does not count the parent's connections. The child's pools share the budget.
pub fn budget_of_a_child_counts_the_childs_connections() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let budget = Budget::new(1).unwrap();
    let of = |budget: &Budget| {
        let pool = Pool::builder("mock:27017", Mock::default()).budget(budget).build().unwrap();
        pool.ready();
        pool
    };
    let (pool, held) = runtime.block_on(async {
        let pool = of(&budget);
        let held = pool.check_out().await.unwrap();
        (pool, held)
    });
    in_child("under a budget", || {
        let ensure = |holds: bool| if holds { Ok(()) } else { Err(Wrong::DoesNotAddUp) };
        ensure(budget.status().connections == 0)?;
        pool.ready();
        drop(runtime.block_on(pool.check_out()).map_err(|_| Wrong::NotServed)?);
        let other = runtime.block_on(async { of(&budget) });
        let _held = runtime.block_on(other.check_out()).map_err(|_| Wrong::NotServed)?;
        ensure((pool.status().total, budget.status().connections) == (0, 1))
    });
    assert_eq!(budget.status().connections, 1, "the parent's budget has changed");
    drop(held);
}
