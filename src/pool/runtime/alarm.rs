//! Waits of several seconds that do not leave a timer in the runtime.
//!
//! Even a timer that does not fire has a cost. While a runtime has a timer, each of its threads reads the clock before
//! it goes to sleep, and the kernel sets and removes a timer for that sleep. A thread that runs commands on a server
//! goes to sleep after almost every command, so the timer makes commands up to 4 % slower. A client's background work
//! therefore waits for an *alarm*. On Linux, an alarm is a file descriptor that the kernel makes readable when the time
//! is up (`timerfd`). On other systems, it is tokio's timer.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// Waits until `after` has elapsed. Must be polled on a runtime.
///
/// # Cancel safety
///
/// Dropping the future ends the wait.
pub(crate) async fn alarm(after: Duration) {
    // A test that has paused tokio's clock expects waits to follow that clock.
    if is_clock_running() && kernel::alarm(after).await.is_ok() {
        return;
    }
    sleep(after).await;
}

/// Waits for `future`, but no longer than `limit`. Returns `None` when the time is up.
pub(crate) async fn before_alarm<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = alarm(limit) => None,
    }
}

/// Returns whether tokio's clock agrees with the system clock. The clocks differ if a test has paused or advanced
/// tokio's clock.
fn is_clock_running() -> bool {
    let before = std::time::Instant::now();
    let shown = Instant::now().into_std();
    (before..=std::time::Instant::now()).contains(&shown)
}

#[cfg(target_os = "linux")]
mod kernel {
    use std::io;
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::time::Duration;

    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// Waits for a kernel timer.
    ///
    /// # Errors
    ///
    /// Returns the system's error immediately. The usual cause is that the process has too many open files.
    #[allow(deprecated, reason = "tokio 1.48 has nothing else; the timer stays open, because it is owned")]
    pub(super) async fn alarm(after: Duration) -> io::Result<()> {
        let timer = AsyncFd::with_interest(timer(after)?, Interest::READABLE)?;
        // The timer fires only once, so the descriptor does not have to be read, and may stay readable.
        timer.readable().await.map(drop)
    }

    /// Returns a descriptor that becomes readable after this time, as measured by the [`std::time::Instant`] clock.
    #[allow(unsafe_code)]
    fn timer(after: Duration) -> io::Result<OwnedFd> {
        // SAFETY: the call does not take a pointer.
        let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created, so it is open, and nothing else owns it.
        let timer = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // A time of zero would leave the timer disarmed. A time that does not fit is replaced with one so long that the
        // timer never expires.
        let after = after.max(Duration::from_nanos(1));
        let once = libc::itimerspec {
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: libc::timespec {
                tv_sec: after.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: after.subsec_nanos().into(),
            },
        };
        // SAFETY: `once` is valid during the call, which only reads it, and the last pointer may be null.
        match unsafe { libc::timerfd_settime(descriptor, 0, &raw const once, std::ptr::null_mut()) } {
            0 => Ok(timer),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    use std::io;
    use std::time::Duration;

    /// Fails, because this system does not have `timerfd`.
    pub(super) async fn alarm(_after: Duration) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::runtime::Builder;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[cfg(target_os = "linux")]
    #[test]
    fn alarm_needs_no_timer_of_the_runtime() {
        // tokio's timers would panic on this runtime.
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        for after in [Duration::ZERO, 20 * MS] {
            let start = std::time::Instant::now();
            runtime.block_on(alarm(after));
            assert!(start.elapsed() >= after);
        }
    }

    #[test]
    fn alarm_waits_for_the_time_that_was_asked_for() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let start = Instant::now();
            assert_eq!(before_alarm(20 * MS, pending::<()>()).await, None);
            assert!(start.elapsed() >= 20 * MS);
            assert_eq!(before_alarm(Duration::MAX, sleep(MS)).await, Some(()), "it does not come at once");
            assert_eq!(before_alarm(Duration::ZERO, ready(7)).await, Some(7));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn alarm_follows_a_clock_that_a_test_has_paused() {
        let (start, real) = (Instant::now(), std::time::Instant::now());
        alarm(Duration::from_secs(3_600)).await;
        assert!(start.elapsed() >= Duration::from_secs(3_600) && real.elapsed() < Duration::from_secs(60));
    }
}
