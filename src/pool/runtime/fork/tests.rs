//! Tests of a fork that happens while another thread holds the pool's locks, a situation that only this crate can
//! arrange. The other fork tests are in `system-tests/tests/fork/main.rs`.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Builder;

use crate::pool::runtime::tests::{CheckOut, Numbers};
use crate::{CheckOutError, Phase, Pool, PoolOptions};

fn poll<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a function in a forked child. Returns the child's exit code, which is 0 if the function succeeds. If the child
/// hung and was killed by a signal, returns the negated number of the signal.
///
/// The function must not start a thread. Starting a thread takes a global lock of `std`, which another test's thread
/// may hold at the time of the fork.
#[allow(unsafe_code)]
pub(crate) fn in_child(run: impl FnOnce() -> Result<(), i32>) -> i32 {
    // SAFETY: only this thread continues in the child. It calls only `run` and `_exit`, and never returns. The C
    // library makes its own locks (those of `malloc`) usable in the child.
    let pid = unsafe { libc::fork() };
    assert_ne!(pid, -1, "fork failed");
    if pid == 0 {
        // SAFETY: the signal has no handler, so it kills the process.
        unsafe { libc::alarm(20) };
        let code = catch_unwind(AssertUnwindSafe(run)).map_or(99, |outcome| outcome.err().unwrap_or(0));
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call, which waits only for the child forked above.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid, "waitpid failed");
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}

#[test]
fn child_takes_no_lock_that_another_thread_held_at_the_fork() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    let options = PoolOptions::default().max_pool_size(1);
    let pool = {
        let _entered = runtime.enter();
        Pool::builder("mock:27017", Numbers).options(options).build().unwrap()
    };
    pool.ready();
    let mut held = Some(runtime.block_on(pool.check_out()).unwrap());
    let mut waits: Vec<Option<CheckOut<'_>>> = (0..3).map(|_| Some(Box::pin(pool.check_out()) as _)).collect();
    let mut timed: Option<CheckOut<'_>> = {
        let _entered = runtime.enter();
        let hour = std::time::Duration::from_secs(3_600);
        Some(Box::pin(pool.check_out_until(tokio::time::Instant::now() + hour)))
    };
    let mut closed = Some(Box::pin(pool.closed()));
    runtime.block_on(async {
        assert!(waits.iter_mut().flatten().all(|wait| poll(wait).is_pending()));
        assert!(timed.iter_mut().all(|wait| poll(wait).is_pending()));
        assert!(closed.iter_mut().all(|wait| poll(wait).is_pending()));
    });
    std::thread::scope(|scope| {
        let (is_held, hears) = mpsc::channel();
        let (release, is_released) = mpsc::channel::<()>();
        let core = pool.core.clone();
        scope.spawn(move || {
            let locks = core.hold_locks();
            is_held.send(()).unwrap();
            let _ = is_released.recv();
            drop(locks);
        });
        hears.recv().unwrap();
        let code = in_child(|| {
            let ensure = |holds: bool, code: i32| if holds { Ok(()) } else { Err(code) };
            // Two waits are dropped before the child uses the pool, and the others afterwards.
            drop(waits[0].take());
            drop(timed.take());
            let status = pool.status();
            ensure((status.phase, status.generation, status.total) == (Phase::Paused, 1, 0), 1)?;
            drop(waits[1].take());
            let failed = waits[2].as_mut().map(poll);
            ensure(matches!(failed, Some(Poll::Ready(Err(CheckOutError::PoolCleared(_))))), 2)?;
            drop(waits[2].take());
            // `closed` now waits for the child's pool.
            ensure(closed.as_mut().map(poll).is_some_and(|polled| polled.is_pending()), 3)?;
            pool.close();
            ensure(closed.as_mut().map(poll).is_some_and(|polled| polled.is_ready()), 4)?;
            drop(closed.take());
            drop(held.take());
            Ok(())
        });
        release.send(()).unwrap();
        assert_eq!(code, 0);
    });
    // The parent's check-outs still complete.
    for wait in waits.iter_mut().chain([&mut timed]).flatten() {
        drop(held.take());
        let Poll::Ready(connection) = poll(wait) else { panic!("the first waiter got no connection") };
        held = Some(connection.unwrap());
        assert_eq!(held.as_deref(), Some(&1));
    }
}
