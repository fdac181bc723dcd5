//! The runtime of a client with pools. One thread runs the tasks, and any number of calls can run at the same time.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::mpsc::{self, UnboundedSender};

use super::driver::{Erased, event_loop, refuse_runtime};
use crate::client::ClientError;
use crate::client::deployment::Work;
use crate::endpoint::Limit;
use crate::pool::runtime::PerProcess;

/// The name of the thread that drives the tasks, the sockets and the timers.
const THREAD: &str = "wharf-blocking";

/// Drives any number of futures at the same time, each on its caller's thread.
///
/// The first call starts the thread, which exits when this value is dropped. A forked child does not inherit the
/// thread, so its first call starts a new thread.
#[derive(Default)]
pub(super) struct Background(PerProcess<OnceLock<Running>>);

struct Running {
    runtime: Handle,
    /// Gives the thread its last work. The thread exits when this is dropped and the work is done.
    last: UnboundedSender<Work>,
}

impl Running {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let handle = runtime.handle().clone();
        let (last, mut received) = mpsc::unbounded_channel::<Work>();
        thread::Builder::new().name(THREAD.to_owned()).spawn(move || {
            runtime.block_on(async {
                while let Some(work) = received.recv().await {
                    work.await;
                }
            });
        })?;
        Ok(Self { runtime: handle, last })
    }
}

impl Background {
    /// Starts the call's time limit, `running`, and blocks until the call completes.
    ///
    /// # Errors
    ///
    /// [`ClientError::OnRuntime`] inside a tokio runtime. [`ClientError::EventLoop`] if the runtime or its thread
    /// cannot be started, or if the calling thread is exiting.
    pub(super) fn drive(&self, running: &Cell<Limit>, call: Erased<'_>) -> Result<(), ClientError> {
        refuse_runtime()?;
        let current = self.0.get();
        let runtime = match current.get() {
            Some(running) => &running.runtime,
            None => {
                let started = Running::start().map_err(event_loop)?;
                // If another call has stored its runtime first, `started` is dropped and its thread exits.
                &current.get_or_init(|| started).runtime
            }
        };
        running.set(running.get().start());
        runtime.block_on(call);
        Ok(())
    }

    /// Makes the thread do this work before it exits. Does nothing if this process has made no call.
    pub(super) fn finish(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(running) = self.0.get().get() {
            // The thread is waiting for work until `last` is dropped.
            let _ = running.last.send(Box::pin(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};
    use std::time::Duration;

    use super::super::driver::erased;
    use super::*;

    impl Background {
        fn run<T>(&self, future: impl Future<Output = T>) -> Result<T, ClientError> {
            erased(Limit::Unset, |_| future, |running, call| self.drive(running, call))
        }
    }

    #[test]
    fn calls_run_at_the_same_time_and_timers_fire() {
        let (background, all) = (Background::default(), Barrier::new(4));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let call = async {
                        all.wait();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    };
                    background.run(call).unwrap();
                });
            }
        });
    }

    #[test]
    fn call_inside_of_a_runtime_fails() {
        let background = Background::default();
        let nested = background.run(async { background.run(async {}) });
        assert!(matches!(nested, Ok(Err(ClientError::OnRuntime))), "{nested:?}");
    }

    #[test]
    fn last_work_is_done_after_the_drop() {
        let background = Background::default();
        background.run(async {}).unwrap();
        let (go_on, gone_on) = tokio::sync::oneshot::channel::<()>();
        let (done, is_done) = mpsc::channel();
        background.finish(async move {
            gone_on.await.unwrap();
            done.send(()).unwrap();
        });
        drop(background);
        go_on.send(()).unwrap();
        is_done.recv().unwrap();
    }

    #[test]
    fn thread_and_its_tasks_end_with_the_client() {
        let background = Background::default();
        let (kept, dropped) = mpsc::channel::<()>();
        let spawn = async {
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(kept);
            });
        };
        background.run(spawn).unwrap();
        drop(background);
        dropped.recv().unwrap_err();
    }
}
