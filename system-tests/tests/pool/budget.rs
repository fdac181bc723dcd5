//! Pools that share a budget.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use wharf::{
    Budget, CheckOutError, Clear, Connection, Establish, EstablishError, Establishing, Pool, PoolBuilder, PoolEvent,
    PoolOptions,
};

use super::mock::{Attempt, Log, Mock, builder, counts, poll_once, settle};

fn budget(connections: u32) -> Budget {
    Budget::new(connections).unwrap()
}

fn shared_by(budget: &Budget) -> (Pool<Mock>, Log) {
    of(builder(&Mock::new([])), budget)
}

fn of(builder: PoolBuilder<Mock>, budget: &Budget) -> (Pool<Mock>, Log) {
    let log = Log::default();
    let pool = builder.budget(budget).subscriber(log.subscriber()).build().unwrap();
    pool.ready();
    (pool, log)
}

async fn check_out<const N: usize>(pool: &Pool<Mock>) -> Vec<Connection<Mock>> {
    let mut held = Vec::new();
    for _ in 0..N {
        held.push(pool.check_out().await.unwrap());
    }
    held
}

/// Returns `(connections, waiting pools)`.
fn used(budget: &Budget) -> (u32, usize) {
    let status = budget.status();
    (status.connections, status.waiting_pools)
}

#[test]
fn budget_refuses_sizes_that_cannot_work() {
    assert_eq!(Budget::new(0).unwrap_err().to_string(), "budget must be at least 1, got 0");
    let error = Budget::new(wharf::MAX_CONNECTIONS + 1).unwrap_err();
    assert_eq!(error.to_string(), "budget must be at most 1048575, got 1048576");
    assert_eq!(format!("{:?}", budget(3)), "Budget(BudgetStatus { size: 3, connections: 0, waiting_pools: 0 })");
}

#[tokio::test(start_paused = true)]
async fn idle_connection_of_the_pool_that_holds_most_is_closed_for_another_pool() {
    let budget = budget(4);
    let ((one, of_one), (two, of_two), (three, _)) = (shared_by(&budget), shared_by(&budget), shared_by(&budget));
    drop(check_out::<1>(&one).await);
    drop(check_out::<3>(&two).await);
    let _held = check_out::<1>(&three).await;
    assert_eq!((one.status().total, two.status().total, three.status().total), (1, 2, 1));
    assert_eq!((of_one.count("ConnectionClosed"), of_two.count("ConnectionClosed")), (0, 1));
    assert!(of_two.lines().iter().any(|line| line.starts_with("ConnectionClosed") && line.ends_with("idle")));
    assert_eq!(used(&budget), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn pool_above_its_fair_share_gives_the_next_connection_before_its_own_waiters() {
    let budget = budget(4);
    let ((one, of_one), (two, _)) = (shared_by(&budget), shared_by(&budget));
    let mut held = check_out::<4>(&one).await;
    let mut own = Box::pin(one.check_out());
    assert!(poll_once(own.as_mut()).await.is_none());
    let (mut first, mut second, mut third) = (pin!(two.check_out()), pin!(two.check_out()), pin!(two.check_out()));
    for waiter in [&mut first, &mut second, &mut third] {
        assert!(poll_once(waiter.as_mut()).await.is_none());
    }
    // The fair share of each pool is two connections.
    held.pop();
    let _first = first.await.unwrap();
    held.pop();
    let _second = second.await.unwrap();
    assert_eq!((one.status().total, two.status().total), (2, 2));
    assert_eq!(of_one.count("ConnectionClosed"), 2);
    assert!(poll_once(own.as_mut()).await.is_none(), "the pool served its own waiter first");
    held.pop();
    let _own = own.await.unwrap();
    assert!(poll_once(third.as_mut()).await.is_none(), "a pool at its fair share gave a connection up");
    assert_eq!((one.status().total, of_one.count("ConnectionClosed")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn waiters_of_one_pool_are_served_in_order() {
    let budget = budget(1);
    let ((one, _), (two, _)) = (shared_by(&budget), shared_by(&budget));
    let held = check_out::<1>(&one).await;
    let (mut first, mut second) = (pin!(two.check_out()), pin!(two.check_out()));
    assert!(poll_once(first.as_mut()).await.is_none() && poll_once(second.as_mut()).await.is_none());
    assert_eq!(used(&budget), (1, 1));
    drop(held);
    let first = first.await.unwrap();
    assert!(poll_once(second.as_mut()).await.is_none());
    drop(first);
    let _second = second.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn cancelled_check_out_leaves_the_budgets_queue() {
    let budget = budget(1);
    let ((one, of_one), (two, _)) = (shared_by(&budget), shared_by(&budget));
    let held = check_out::<1>(&one).await;
    {
        let mut cancelled = pin!(two.check_out());
        assert!(poll_once(cancelled.as_mut()).await.is_none());
        assert_eq!(used(&budget), (1, 1));
    }
    assert_eq!(used(&budget), (1, 0));
    drop(held);
    assert_eq!((counts(&one), of_one.count("ConnectionClosed")), ((1, 0, 1, 0, 0), 0));
}

#[tokio::test(start_paused = true)]
async fn check_out_under_a_used_up_budget_times_out_with_the_budgets_numbers() {
    let budget = budget(1);
    let ((one, _), (two, _)) = (shared_by(&budget), shared_by(&budget));
    let _held = check_out::<1>(&one).await;
    let error = two.check_out_until(Instant::now() + Duration::from_secs(1)).await.unwrap_err();
    assert!(error.to_string().contains("connections of all pools under the budget: 1 of 1"), "{error}");
    let CheckOutError::WaitQueueTimeout(error) = error else { panic!("{error}") };
    assert_eq!(error.budget.map(|budget| budget.size), Some(1));
    assert_eq!(used(&budget), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_pool_gives_back_serves_the_others() {
    let budget = budget(1);
    let mock = Mock::new([Attempt::Fails]);
    let ((one, _), (two, _)) = (of(builder(&mock), &budget), shared_by(&budget));
    one.check_out().await.unwrap_err();
    settle().await;
    assert_eq!(used(&budget), (0, 0), "a failed opening keeps its place");
    for give_back in [
        (|pool: &Pool<Mock>, _held| assert!(pool.clear(Clear::new()).unwrap())) as fn(&Pool<Mock>, Connection<Mock>),
        |_, held| held.discard(),
        |_, held| drop(held.detach()),
        |pool, held| {
            pool.close();
            drop(held);
        },
    ] {
        one.ready();
        let held = one.check_out().await.unwrap();
        let mut waiter = pin!(two.check_out());
        assert!(poll_once(waiter.as_mut()).await.is_none());
        give_back(&one, held);
        waiter.await.unwrap().discard();
        settle().await;
        assert_eq!(used(&budget), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connections_of_a_pool_that_is_cleared_or_dropped_free_their_places() {
    let budget = budget(2);
    let ((one, of_one), (two, _)) = (shared_by(&budget), shared_by(&budget));
    drop(check_out::<2>(&one).await);
    one.clear(Clear::new()).unwrap();
    let held = check_out::<1>(&two).await;
    settle().await;
    assert_eq!((used(&budget), of_one.count("ConnectionClosed")), ((1, 0), 2));
    one.ready();
    drop(check_out::<1>(&one).await);
    drop(one);
    let _more = check_out::<1>(&two).await;
    assert_eq!((used(&budget), held.len()), ((2, 0), 1));
}

#[tokio::test(start_paused = true)]
async fn connection_that_becomes_idle_later_is_found_within_a_second() {
    let budget = budget(2);
    let ((one, _), (two, _)) = (shared_by(&budget), shared_by(&budget));
    let (held, _others) = (check_out::<1>(&one).await, check_out::<1>(&two).await);
    let mut waiter = pin!(two.check_out());
    assert!(poll_once(waiter.as_mut()).await.is_none());
    drop(held);
    assert_eq!(counts(&one), (1, 0, 1, 0, 0), "a pool at its fair share gave a connection up");
    let begun = Instant::now();
    let _more = waiter.await.unwrap();
    assert!(begun.elapsed() <= Duration::from_millis(1_001), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn minimum_and_warm_up_take_only_what_the_other_pools_leave() {
    let budget = budget(3);
    let (one, _) = shared_by(&budget);
    let held = check_out::<2>(&one).await;
    let options = PoolOptions::default().min_pool_size(2).max_connecting(1);
    let two = builder(&Mock::new([])).options(options).budget(&budget).build().unwrap();
    two.ready();
    settle().await;
    assert_eq!((two.status().total, used(&budget)), (1, (3, 0)));
    two.warm_up(2, |_| {}).await.unwrap();
    assert_eq!((two.status().total, used(&budget)), (1, (3, 0)));
    held.into_iter().for_each(Connection::discard);
    two.warm_up(2, |_| {}).await.unwrap();
    assert_eq!(two.status().total, 2);
    assert_eq!(two.budget().unwrap().status(), budget.status());
}

/// Opens connections, and counts them across all pools.
#[derive(Clone, Default)]
struct Counted {
    live: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    opened: Arc<AtomicUsize>,
}

struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Establish for Counted {
    type Connection = Alive;

    async fn establish(&self, _: Establishing) -> Result<Alive, EstablishError> {
        let connection = Alive(self.live.clone());
        self.most.fetch_max(self.live.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.opened.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(3)).await;
        Ok(connection)
    }
}

/// Three pools under one budget, and the number of check-outs that each has served.
struct Saturated {
    budget: Budget,
    establish: Counted,
    pools: Vec<Pool<Counted>>,
    served: Arc<[AtomicUsize; 3]>,
    users: JoinSet<()>,
}

impl Saturated {
    fn new(connections: u32) -> Self {
        let (budget, establish) = (budget(connections), Counted::default());
        let pool = |_| {
            let pool = Pool::builder("counted", establish.clone()).budget(&budget).build().unwrap();
            pool.ready();
            pool
        };
        let pools = (0..3).map(pool).collect();
        Self { budget, establish, pools, served: Arc::default(), users: JoinSet::new() }
    }

    /// Lets this many tasks use a pool from now on, each for ten milliseconds at a time.
    fn use_pool(&mut self, number: usize, tasks: usize) {
        for _ in 0..tasks {
            let (pool, served) = (self.pools[number].clone(), self.served.clone());
            self.users.spawn(async move {
                loop {
                    let held = pool.check_out().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    served[number].fetch_add(1, Ordering::SeqCst);
                    drop(held);
                }
            });
        }
    }

    /// Returns how many check-outs each pool serves in ten seconds, and how many connections are opened in that time.
    async fn run(&self) -> ([usize; 3], usize) {
        let read = || [0, 1, 2].map(|number| self.served[number].load(Ordering::SeqCst));
        let (before, opened) = (read(), self.establish.opened.load(Ordering::SeqCst));
        tokio::time::sleep(Duration::from_secs(10)).await;
        let after = read();
        ([0, 1, 2].map(|number| after[number] - before[number]), self.establish.opened.load(Ordering::SeqCst) - opened)
    }

    /// Stops the tasks, and asserts that the budget was never exceeded and got all connections back.
    async fn end(mut self) {
        self.users.shutdown().await;
        for pool in &self.pools {
            pool.close();
        }
        settle().await;
        let most = self.establish.most.load(Ordering::SeqCst);
        assert_eq!(most, self.budget.status().size as usize, "the ceiling");
        assert_eq!((self.establish.live.load(Ordering::SeqCst), used(&self.budget)), (0, (0, 0)));
    }
}

#[tokio::test(start_paused = true)]
async fn saturated_pools_share_the_budget_fairly_and_stop_closing_connections() {
    let mut load = Saturated::new(12);
    load.use_pool(0, 60);
    let (served, _) = load.run().await;
    assert!(served[0] >= 11_000, "{served:?}: the only user of the budget does not get all of it");
    // Two more pools start when the budget is already used up.
    load.use_pool(1, 20);
    load.use_pool(2, 20);
    load.run().await;
    let (served, opened) = load.run().await;
    assert_eq!(opened, 0, "connections wander between pools that have their fair shares");
    assert!(served.iter().all(|served| (3_990..=4_010).contains(served)), "{served:?}");
    assert!(load.pools.iter().all(|pool| pool.status().total == 4));
    load.end().await;
}

#[tokio::test(start_paused = true)]
async fn pool_that_wants_less_than_its_fair_share_leaves_the_rest_to_the_others() {
    let mut load = Saturated::new(12);
    load.use_pool(0, 40);
    load.run().await;
    load.use_pool(1, 40);
    load.use_pool(2, 2);
    load.run().await;
    let (served, _) = load.run().await;
    assert!((1_900..=2_010).contains(&served[2]), "{served:?}");
    assert!(served[..2].iter().all(|served| (4_500..=5_500).contains(served)), "{served:?}");
    load.end().await;
}

#[tokio::test(start_paused = true)]
async fn no_pool_starves_under_a_budget_smaller_than_their_number() {
    let mut load = Saturated::new(2);
    for number in 0..3 {
        load.use_pool(number, 5);
    }
    load.run().await;
    let (served, _) = load.run().await;
    // A connection serves one use before it is closed for the next pool: 13 ms in all.
    let fair = 2 * 10_000 / 13 / 3;
    assert!(served.iter().all(|served| (fair * 9 / 10..=fair * 11 / 10).contains(served)), "{served:?} of {fair}");
    load.end().await;
}

#[tokio::test(start_paused = true)]
async fn check_out_may_open_a_connection_although_no_check_out_may_wait() {
    let budget = budget(2);
    let (pool, log) = of(builder(&Mock::new([Attempt::Held; 2])).max_waiting(Some(0)), &budget);
    let (mut first, mut second, mut third) = (pin!(pool.check_out()), pin!(pool.check_out()), pin!(pool.check_out()));
    assert!(poll_once(first.as_mut()).await.is_none());
    assert!(poll_once(second.as_mut()).await.is_none(), "refused although a place is free");
    settle().await;
    assert_eq!((log.count("ConnectionCreated"), used(&budget)), (2, (2, 0)));
    assert!(matches!(poll_once(third.as_mut()).await, Some(Err(CheckOutError::WaitQueueFull(_)))));
    assert_eq!(used(&budget), (2, 0), "the refused check-out has left the pool in the queue");
}

#[tokio::test(start_paused = true)]
async fn check_out_gets_the_place_of_an_idle_connection_although_no_check_out_may_wait() {
    let budget = budget(2);
    let (other, log) = of(builder(&Mock::new([])), &budget);
    let (pool, _) = of(builder(&Mock::new([])).max_waiting(Some(0)), &budget);
    drop([other.check_out().await.unwrap(), other.check_out().await.unwrap()]);
    let held = pool.check_out().await.unwrap();
    assert_eq!((log.count("ConnectionClosed"), used(&budget)), (1, (2, 0)));
    drop(held);
}

/// The check-out closes the other pool's connection. Foreign code that runs then can return a connection.
#[tokio::test(start_paused = true)]
async fn connection_can_be_returned_while_another_pools_connection_is_closed_although_no_check_out_may_wait() {
    let budget = budget(2);
    let (other, _) = of(builder(&Mock::new([])), &budget);
    let (pool, log) = of(builder(&Mock::new([])).max_waiting(Some(0)), &budget);
    drop(other.check_out().await.unwrap());
    let held = Mutex::new(Some(pool.check_out().await.unwrap()));
    other.subscribe(move |event: &PoolEvent| {
        if matches!(event, PoolEvent::ConnectionClosed { .. }) {
            held.lock().unwrap().take();
        }
    });
    let connection = pool.check_out().await.unwrap();
    assert_eq!((log.count("ConnectionCreated"), used(&budget)), (1, (1, 0)), "it gets the returned connection");
    drop(connection);
}

#[tokio::test(start_paused = true)]
async fn check_out_whose_pool_is_cleared_while_it_asks_for_a_place_leaves_the_queue() {
    let budget = budget(2);
    let (other, _) = of(builder(&Mock::new([])), &budget);
    let (third, _) = of(builder(&Mock::new([])), &budget);
    let (pool, _) = of(builder(&Mock::new([])).max_waiting(Some(0)), &budget);
    let held = third.check_out().await.unwrap();
    drop(other.check_out().await.unwrap());
    let cleared = pool.clone();
    other.subscribe(move |event: &PoolEvent| {
        if matches!(event, PoolEvent::ConnectionClosed { .. }) {
            cleared.clear(Clear::new()).unwrap();
        }
    });
    assert!(matches!(pool.check_out().await, Err(CheckOutError::PoolCleared(_))));
    assert_eq!(used(&budget), (1, 0));
    drop(held);
    assert_eq!(counts(&third).2, 1, "a connection was closed for nothing");
}

#[tokio::test(start_paused = true)]
async fn fair_share_that_grows_when_a_pool_leaves_the_queue_is_served() {
    let budget = budget(8);
    let [(few, _), (leaving, _), (many, _)] = [(); 3].map(|()| of(builder(&Mock::new([])), &budget));
    let mut held = Vec::new();
    for (pool, connections) in [(&few, 2), (&leaving, 2), (&many, 4)] {
        for _ in 0..connections {
            held.push(pool.check_out().await.unwrap());
        }
    }
    let (mut waits, mut leaves) = (pin!(few.check_out()), Box::pin(leaving.check_out()));
    let (mut next, mut later) = (pin!(many.check_out()), pin!(many.check_out()));
    assert!(poll_once(waits.as_mut()).await.is_none() && poll_once(leaves.as_mut()).await.is_none());
    assert!(poll_once(next.as_mut()).await.is_none() && poll_once(later.as_mut()).await.is_none());
    // Each pool's share is two, so the last pool keeps what is returned to it.
    drop(held.pop());
    held.push(next.await.unwrap());
    drop(leaves);
    // The share is now three. The first pool has fewer connections than that, and the last pool has more.
    drop(held.pop());
    let connection = poll_once(waits.as_mut()).await;
    assert!(poll_once(later.as_mut()).await.is_none());
    drop((connection, held));
}
