//! A pool in a forked child.
//!
//! The parent uses its pool continuously on several threads, so that a fork interrupts them at arbitrary points.
//! Threads that do not exist in the child hold locks, and connections are in transit between owners. The child must
//! start over without these locks and connections, and the parent must not notice.

#![cfg(all(unix, not(loom)))]

mod budget;
mod events;
mod metrics;
mod nearby;

use std::future::Future;
use std::pin::Pin;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use wharf::{
    CheckOutError, Clear, Condition, Connection, Establish, EstablishError, Establishing, Phase, Pool, PoolEvent,
    PoolOptions,
};

/// Counts with atomics only: a lock could be held by a thread that the child does not have.
#[derive(Clone, Default)]
struct Mock(Arc<Counters>);

#[derive(Default)]
struct Counters {
    established: AtomicU32,
    closed: AtomicU32,
    abandoned: AtomicU32,
    /// Connections closed or dropped by a process that did not open them.
    violated: AtomicU32,
    cleared: AtomicU32,
    /// `PoolCleared` events during which a subscriber looked at the pool and found it cleared.
    cleared_in_use: AtomicU32,
    pool_closed: AtomicU32,
    /// Lets a drain complete. Not used while the parent has other threads.
    drained: Notify,
    /// While set, no connection is opened.
    opens_nothing: AtomicBool,
}

fn read(counter: &AtomicU32) -> u32 {
    counter.load(Ordering::SeqCst)
}

fn count(counter: &AtomicU32) {
    counter.fetch_add(1, Ordering::SeqCst);
}

struct MockConnection {
    process: u32,
    mock: Mock,
    needs_drain: bool,
}

impl MockConnection {
    fn is_ours(&self) -> bool {
        self.process == process::id()
    }
}

impl Drop for MockConnection {
    fn drop(&mut self) {
        if !self.is_ours() {
            count(&self.mock.0.violated);
        }
    }
}

impl Establish for Mock {
    type Connection = MockConnection;

    async fn establish(&self, _: Establishing) -> Result<MockConnection, EstablishError> {
        while self.0.opens_nothing.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        count(&self.0.established);
        Ok(MockConnection { process: process::id(), mock: self.clone(), needs_drain: false })
    }

    fn condition(&self, connection: &mut MockConnection) -> Condition {
        if connection.needs_drain { Condition::NeedsDrain } else { Condition::Reusable }
    }

    async fn drain(&self, connection: &mut MockConnection) {
        self.0.drained.notified().await;
        connection.needs_drain = false;
    }

    fn close(&self, connection: MockConnection) -> impl Future<Output = ()> + Send {
        count(if connection.is_ours() { &self.0.closed } else { &self.0.violated });
        std::future::ready(())
    }

    fn abandon_after_fork(&self, connection: MockConnection) {
        count(if connection.is_ours() { &self.0.violated } else { &self.0.abandoned });
        std::mem::forget(connection);
    }
}

/// The number of connections in a parent's pool. One of them is always held.
const SIZE: u32 = 8;
const FORKS: usize = 20;

#[test]
fn forked_child_starts_over_and_the_parent_continues() {
    paused_pool_stays_paused_and_closed_pool_stays_closed();
    child_without_a_runtime_gets_its_background_task_later();
    child_accounts_for_holders_of_its_own();
    inherited_drain_stays_the_parents();
    inherited_background_task_leaves_the_parents_pool_alone();
    inherited_establishment_does_not_continue_in_the_child();
    events::counts_from_events_add_up_in_the_child();
    metrics::child_counts_from_zero();
    budget::budget_of_a_child_counts_the_childs_connections();
    nearby::child_of_a_thread_with_a_note_gets_no_connection_of_the_parent();
    nearby::child_that_goes_on_with_a_check_out_keeps_no_note_of_the_parents_pool();
    events::child_reports_the_end_of_every_connection_of_a_large_pool();
    // With few tasks, some connections are always available. With many tasks, there is always a queue.
    for (tasks, forks) in [(0, 1), (4, FORKS / 2), (20, FORKS / 2)] {
        let mut parent = Parent::new(tasks);
        for number in 0..forks {
            let progress = parent.progress();
            let least_available = (SIZE - 1).saturating_sub(tasks);
            let (pool, held) = (&parent.pool, &mut parent.held);
            in_child(&format!("{tasks} tasks, fork {number}"), || child(pool, held.take(), least_available));
            parent.wait_for_progress(progress);
        }
        parent.end();
    }
}

/// No event is emitted, just as when a paused or closed pool is cleared.
fn paused_pool_stays_paused_and_closed_pool_stays_closed() {
    let parent = Parent::new(0);
    let counters = parent.mock.0.clone();
    parent.pool.clear(Clear::new()).unwrap();
    // The background task's thread may deliver the event after `clear` has returned. The same holds for `close` below.
    parent.wait_until(|| read(&counters.cleared) == 1);
    let cleared = read(&counters.cleared);
    let state = || (parent.pool.status().phase, parent.pool.status().generation);
    let unchanged = || {
        let silent = (read(&counters.cleared), read(&counters.pool_closed)) == (cleared, 0);
        if silent { Ok(()) } else { Err(Wrong::Announced) }
    };
    in_child("paused", || {
        if state() != (Phase::Paused, 2) {
            return Err(Wrong::NotPausedOneGenerationLater);
        }
        unchanged()
    });
    parent.pool.close();
    parent.wait_until(|| read(&counters.pool_closed) == 1);
    let (closed, generation) = (read(&counters.pool_closed), state().1);
    in_child("closed", || {
        if state() != (Phase::Closed, generation) || parent.pool.ready() {
            return Err(Wrong::Reopened);
        }
        if read(&counters.pool_closed) == closed { Ok(()) } else { Err(Wrong::Announced) }
    });
}

/// The child uses its pool before it has a runtime. This does not prevent the pool from being populated once there is a
/// runtime.
fn child_without_a_runtime_gets_its_background_task_later() {
    let parent = Parent::with_options(0, PoolOptions::default().max_pool_size(SIZE).min_pool_size(3));
    in_child("no runtime at first", || {
        if parent.pool.status().phase != Phase::Paused {
            return Err(Wrong::NotPausedOneGenerationLater);
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|_| Wrong::Runtime)?;
        runtime.block_on(async {
            parent.pool.ready();
            while parent.pool.status().available < 3 {
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    });
    parent.end();
}

/// The parent's connection in use does not belong to the child, and the child accounts for holders as the parent does.
fn child_accounts_for_holders_of_its_own() {
    let parent = Parent::new(0);
    parent.pool.account_for_holders(true);
    let held = parent.runtime.block_on(parent.pool.check_out()).unwrap();
    let in_child_only = || {
        if !parent.pool.accounts_for_holders() || !parent.pool.holders().is_empty() {
            return Err(Wrong::Holders);
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|_| Wrong::Runtime)?;
        runtime.block_on(async {
            parent.pool.ready();
            let own = parent.pool.check_out().await.map_err(|_| Wrong::NotServed)?;
            let listed: Vec<_> = parent.pool.holders().iter().map(|holder| holder.connection_id).collect();
            if listed == [own.id()] { Ok(()) } else { Err(Wrong::Holders) }
        })
    };
    in_child("with holders", in_child_only);
    assert!(parent.pool.holders().iter().any(|holder| holder.connection_id == held.id()));
    drop(held);
    parent.end();
}

/// A current-thread runtime continues in the child, and with it the task that drains the parent's connection.
fn inherited_drain_stays_the_parents() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let mock = Mock::default();
    let counters = &mock.0;
    let pool = runtime.block_on(async {
        let pool = Pool::builder("mock:27017", mock.clone()).build().unwrap();
        pool.ready();
        pool.check_out().await.unwrap().needs_drain = true;
        // Runs the tasks until the drain is waiting.
        while pool.status().pending > 0 {
            tokio::task::yield_now().await;
        }
        settle().await;
        pool
    });
    assert_eq!((pool.status().in_use, pool.status().available), (1, 0));
    for child in ["that looks at its pool first", "that runs the task first"] {
        in_child(child, || {
            let first = |pool: &Pool<Mock>| {
                let status = pool.status();
                let anew = (status.phase, status.generation, status.total) == (Phase::Paused, 1, 0);
                if anew { Ok(()) } else { Err(Wrong::NotPausedOneGenerationLater) }
            };
            if child == "that looks at its pool first" {
                first(&pool)?;
            }
            counters.drained.notify_one();
            runtime.block_on(settle());
            first(&pool)?;
            if (read(&counters.abandoned), read(&counters.closed), read(&counters.violated)) != (1, 0, 0) {
                return Err(Wrong::Violated);
            }
            runtime.block_on(async {
                pool.ready();
                let connection = pool.check_out().await.map_err(|_| Wrong::NotServed)?;
                if connection.is_ours() { Ok(()) } else { Err(Wrong::AParentsConnection) }
            })
        });
    }
    counters.drained.notify_one();
    runtime.block_on(async {
        settle().await;
        assert_eq!((pool.status().in_use, pool.status().available), (0, 1));
        let connection = pool.check_out().await.unwrap();
        assert!(connection.is_ours() && connection.id() == 1 && !connection.needs_drain);
    });
    assert_eq!((read(&counters.abandoned), read(&counters.closed), read(&counters.violated)), (0, 0, 0));
}

/// In the parent, the task closes connections that have been idle for too long and keeps `minPoolSize` connections
/// open.
fn inherited_background_task_leaves_the_parents_pool_alone() {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let mock = Mock::default();
    let counters = &mock.0;
    let options = PoolOptions::default().min_pool_size(2).max_idle_time(Duration::from_secs(1));
    let pool = runtime.block_on(async {
        let pool = Pool::builder("mock:27017", mock.clone()).options(options).build().unwrap();
        pool.ready();
        while pool.status().available < 2 {
            tokio::task::yield_now().await;
        }
        pool
    });
    let hour = || runtime.block_on(async { tokio::time::sleep(Duration::from_secs(3_600)).await });
    let of_all = || (read(&counters.established), read(&counters.closed), read(&counters.violated));
    in_child("that inherits the background task", || {
        hour();
        if of_all() != (2, 0, 0) {
            return Err(Wrong::Violated);
        }
        // The child's own pool has its own background task.
        runtime.block_on(async {
            pool.ready();
            while pool.status().available < 2 {
                tokio::task::yield_now().await;
            }
        });
        hour();
        let (established, closed, violated) = of_all();
        let renewed = established > 4 && closed > 0 && established - 2 - closed <= 2;
        if renewed && violated == 0 && read(&counters.abandoned) == 2 { Ok(()) } else { Err(Wrong::Violated) }
    });
    hour();
    assert!(read(&counters.closed) > 0, "the parent's background task has ended");
    assert_eq!((read(&counters.abandoned), read(&counters.violated)), (0, 0));
}

/// In the child, neither the establishment for a check-out nor the establishment for `minPoolSize` continues.
fn inherited_establishment_does_not_continue_in_the_child() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let mock = Mock::default();
    let counters = &mock.0;
    counters.opens_nothing.store(true, Ordering::SeqCst);
    let options = PoolOptions::default().min_pool_size(1).max_pool_size(2);
    let pool = runtime.block_on(async {
        let pool = Pool::builder("mock:27017", mock.clone()).options(options).build().unwrap();
        pool.ready();
        settle().await;
        pool
    });
    let mut check_out = Some(Box::pin(pool.check_out()));
    let opens = |check_out: &mut Option<Pin<Box<_>>>| {
        runtime.block_on(async {
            assert!(check_out.as_mut().is_some_and(is_pending));
            settle().await;
        });
    };
    opens(&mut check_out);
    assert_eq!(pool.status().pending, 2);
    for child in ["that drops its check-out", "that polls its check-out", "that runs the tasks first"] {
        in_child(child, || {
            counters.opens_nothing.store(false, Ordering::SeqCst);
            if child == "that runs the tasks first" {
                runtime.block_on(settle());
            }
            let outcome = (child != "that drops its check-out").then(|| runtime.block_on(check_out.take().unwrap()));
            if outcome.is_some_and(|outcome| !matches!(outcome, Err(CheckOutError::PoolCleared(_)))) {
                return Err(Wrong::ServedWhilePaused);
            }
            drop(check_out.take());
            runtime.block_on(settle());
            if (read(&counters.established), read(&counters.closed), read(&counters.violated)) != (0, 0, 0) {
                return Err(Wrong::Violated);
            }
            runtime.block_on(async {
                pool.ready();
                let connection = pool.check_out().await.map_err(|_| Wrong::NotServed)?;
                if connection.is_ours() && connection.id() > 2 { Ok(()) } else { Err(Wrong::AParentsConnection) }
            })
        });
    }
    counters.opens_nothing.store(false, Ordering::SeqCst);
    runtime.block_on(async {
        assert!(check_out.take().unwrap().await.unwrap().is_ours());
        settle().await;
        assert_eq!((pool.status().total, pool.status().available), (2, 2));
    });
    assert_eq!((read(&counters.established), read(&counters.violated)), (2, 0));
}

fn is_pending<F: Future>(future: &mut Pin<Box<F>>) -> bool {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Lets all tasks on a current-thread runtime run until they are idle.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

struct Parent {
    mock: Mock,
    pool: Pool<Mock>,
    /// This is taken only in children.
    held: Option<Connection<Mock>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    rounds: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    // This is dropped last, because the pool's tasks run on it.
    runtime: Runtime,
}

impl Parent {
    fn new(tasks: u32) -> Self {
        Self::with_options(tasks, PoolOptions::default().max_pool_size(SIZE))
    }

    fn with_options(tasks: u32, options: PoolOptions) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(3).enable_all().build().unwrap();
        let mock = Mock::default();
        let counters = mock.clone();
        let pool = Pool::builder("mock:27017", mock.clone())
            .options(options)
            .runtime(runtime.handle().clone())
            .subscriber(move |event: &PoolEvent| match event {
                PoolEvent::PoolCleared { .. } => count(&counters.0.cleared),
                PoolEvent::PoolClosed { .. } => count(&counters.0.pool_closed),
                _ => {}
            })
            .build()
            .unwrap();
        // A subscriber may use the pool even during the child's first event.
        pool.subscribe({
            let (pool, counters) = (pool.clone(), mock.clone());
            move |event: &PoolEvent| {
                if matches!(event, PoolEvent::PoolCleared { .. }) && pool.status().generation == 1 {
                    count(&counters.0.cleared_in_use);
                }
            }
        });
        pool.ready();
        let held = runtime.block_on(async {
            let mut all = Vec::new();
            for _ in 0..SIZE {
                all.push(pool.check_out().await.unwrap());
            }
            // A connection counts as pending until the task that opened it notices that the connection was delivered.
            let settled = async {
                while pool.status().pending > 0 {
                    tokio::task::yield_now().await;
                }
            };
            within(Duration::from_secs(30), settled).await;
            all.pop()
        });
        let (rounds, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let tasks = (0..tasks)
            .map(|_| {
                let (pool, rounds, stop) = (pool.clone(), rounds.clone(), stop.clone());
                runtime.spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let connection = pool.check_out().await.unwrap();
                        tokio::task::yield_now().await;
                        drop(connection);
                        // Reading the status takes the pool's other locks.
                        let _ = pool.status();
                        count(&rounds);
                    }
                })
            })
            .collect();
        Self { mock, pool, held, tasks, rounds, stop, runtime }
    }

    fn progress(&self) -> u32 {
        read(&self.rounds)
    }

    /// Asserts that the parent's tasks continue after the fork.
    fn wait_for_progress(&self, before: u32) {
        self.wait_until(|| self.tasks.is_empty() || self.progress() >= before + 100);
    }

    fn wait_until(&self, condition: impl Fn() -> bool) {
        let holds = async {
            while !condition() {
                tokio::task::yield_now().await;
            }
        };
        self.runtime.block_on(within(Duration::from_secs(30), holds));
    }

    fn end(self) {
        assert!(self.held.as_ref().unwrap().is_ours());
        self.stop.store(true, Ordering::SeqCst);
        self.runtime.block_on(async {
            for task in self.tasks {
                within(Duration::from_secs(30), task).await.unwrap();
            }
            let status = self.pool.status();
            assert_eq!((status.phase, status.generation), (Phase::Ready, 0));
            assert_eq!((status.total, status.available, status.in_use), (SIZE, SIZE - 1, 1));
            drop(self.held);
            self.pool.close();
            within(Duration::from_secs(30), self.pool.closed()).await;
        });
        let counters = &self.mock.0;
        assert_eq!((read(&counters.established), read(&counters.closed)), (SIZE, SIZE));
        assert_eq!((read(&counters.abandoned), read(&counters.violated), read(&counters.cleared)), (0, 0, 0));
    }
}

async fn within<F: Future>(limit: Duration, future: F) -> F::Output {
    tokio::time::timeout(limit, future).await.expect("the parent hangs")
}

/// The failure of a child. The number is the child's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Wrong {
    Nothing,
    Runtime,
    NotPausedOneGenerationLater,
    NoPoolCleared,
    TooFewAbandoned,
    ServedWhilePaused,
    NotReady,
    NotServed,
    AParentsConnection,
    NotReused,
    GuardNotAbandoned,
    Violated,
    NotClosed,
    Announced,
    Reopened,
    DoesNotAddUp,
    Panicked,
    Holders,
}

impl Wrong {
    const ALL: [Self; 18] = [
        Self::Nothing,
        Self::Runtime,
        Self::NotPausedOneGenerationLater,
        Self::NoPoolCleared,
        Self::TooFewAbandoned,
        Self::ServedWhilePaused,
        Self::NotReady,
        Self::NotServed,
        Self::AParentsConnection,
        Self::NotReused,
        Self::GuardNotAbandoned,
        Self::Violated,
        Self::NotClosed,
        Self::Announced,
        Self::Reopened,
        Self::DoesNotAddUp,
        Self::Panicked,
        Self::Holders,
    ];
}

/// Runs in the child. `held` is the guard of a connection that was in use when the process forked.
fn child(pool: &Pool<Mock>, held: Option<Connection<Mock>>, least_available: u32) -> Result<(), Wrong> {
    let ensure = |holds: bool, wrong: Wrong| if holds { Ok(()) } else { Err(wrong) };
    let counters = pool.establisher().0.clone();
    let established = read(&counters.established);
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|_| Wrong::Runtime)?;
    runtime.block_on(async {
        let status = pool.status();
        let anew = (status.phase, status.generation, status.total, status.waiting) == (Phase::Paused, 1, 0, 0);
        ensure(anew, Wrong::NotPausedOneGenerationLater)?;
        ensure((read(&counters.cleared), read(&counters.cleared_in_use)) == (1, 1), Wrong::NoPoolCleared)?;
        let abandoned = read(&counters.abandoned);
        ensure(abandoned >= least_available, Wrong::TooFewAbandoned)?;
        ensure(matches!(pool.check_out().await, Err(CheckOutError::PoolCleared(_))), Wrong::ServedWhilePaused)?;

        ensure(pool.ready(), Wrong::NotReady)?;
        let first = pool.check_out().await.map_err(|_| Wrong::NotServed)?;
        let second = pool.check_out().await.map_err(|_| Wrong::NotServed)?;
        ensure(first.is_ours() && second.is_ours(), Wrong::AParentsConnection)?;
        // The ids continue the parent's ids: to a subscriber, the child's pool is the parent's pool after a clear.
        ensure((first.id(), first.generation()) == (u64::from(SIZE) + 1, 1), Wrong::AParentsConnection)?;
        drop((first, second));
        drop(pool.check_out().await.map_err(|_| Wrong::NotServed)?);
        ensure(read(&counters.established) == established + 2, Wrong::NotReused)?;

        drop(held);
        ensure(read(&counters.abandoned) == abandoned + 1, Wrong::GuardNotAbandoned)?;
        pool.close();
        pool.closed().await;
        ensure((read(&counters.closed), read(&counters.pool_closed)) == (2, 1), Wrong::NotClosed)?;
        ensure(read(&counters.violated) == 0, Wrong::Violated)
    })
}

/// The number of seconds that a child may take. After that, the operating system kills it.
const DEADLINE: u32 = 20;

/// Forks, runs a function in the child, and panics unless the child reports success.
#[allow(unsafe_code)]
fn in_child(name: &str, run: impl FnOnce() -> Result<(), Wrong>) {
    // SAFETY: only this thread continues in the child. It calls nothing but `run` and `_exit` and never returns, so it
    // runs no destructors from the parent's frames. `run` must not take locks that other threads may have held at the
    // fork: that is what these tests check. The C library keeps its own locks (`malloc`) usable in the child.
    let pid = unsafe { libc::fork() };
    assert_ne!(pid, -1, "fork failed");
    if pid == 0 {
        // SAFETY: the signal has no handler, so it terminates the process.
        unsafe { libc::alarm(DEADLINE) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        let wrong = outcome.unwrap_or(Err(Wrong::Panicked)).err().unwrap_or(Wrong::Nothing);
        // SAFETY: `_exit` may be called at any time.
        unsafe { libc::_exit(wrong as i32) };
    }
    ended_well(pid, name);
}

/// Waits for a child, and panics unless it reports success.
#[allow(unsafe_code)]
fn ended_well(pid: libc::pid_t, name: &str) {
    let mut status = 0;
    // SAFETY: `status` outlives the call. `pid` is this process's child.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "waitpid failed");
    assert!(libc::WIFEXITED(status), "{name}: the child hung until signal {}", libc::WTERMSIG(status));
    let code = libc::WEXITSTATUS(status);
    assert_eq!(Wrong::ALL.get(code as usize), Some(&Wrong::Nothing), "{name}: exit code {code}");
}
