//! A semaphore that counts the idle connections, and a mutex around them: deadpool's design, with tokio's semaphore.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;

use super::{Design, Mailbox};
use crate::shared::{Lock, Word};

/// The pool.
pub struct SemaphoreAndMutex {
    permits: Word,
    waiters: Lock<VecDeque<Arc<Mailbox>>>,
    idle: Lock<VecDeque<u32>>,
}

/// A connection in use.
pub struct Guard {
    pool: Arc<SemaphoreAndMutex>,
    connection: u32,
}

impl SemaphoreAndMutex {
    fn try_acquire(&self) -> bool {
        let mut permits = self.permits.load();
        while permits > 0 {
            match self.permits.replace(permits, permits - 1) {
                Ok(()) => return true,
                Err(now) => permits = now,
            }
        }
        false
    }
}

impl Design for SemaphoreAndMutex {
    const NAME: &'static str = "semaphore and mutex";
    type Guard = Guard;

    fn open(_cores: usize, size: usize, _owners: usize) -> Arc<Self> {
        let idle = Lock::new((0..size as u32).collect());
        Arc::new(Self { permits: Word::new(size as u64), waiters: Lock::default(), idle })
    }

    async fn check_out(self: &Arc<Self>) -> Guard {
        if !self.try_acquire() {
            let mailbox = {
                let mut waiters = self.waiters.lock();
                // A permit may have been released since the first attempt.
                let mailbox = (!self.try_acquire()).then(Arc::<Mailbox>::default);
                mailbox.inspect(|mailbox| waiters.push_back(Arc::clone(mailbox)))
            };
            if let Some(mailbox) = mailbox {
                poll_fn(|context| mailbox.poll(context)).await;
            }
        }
        let connection = self.idle.lock().pop_front().expect("BUG: a permit without a connection");
        Guard { pool: Arc::clone(self), connection }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pool.idle.lock().push_back(self.connection);
        let waiter = {
            let mut waiters = self.pool.waiters.lock();
            let waiter = waiters.pop_front();
            if waiter.is_none() {
                self.pool.permits.add(1);
            }
            waiter
        };
        if let Some(waiter) = waiter {
            waiter.put(0);
        }
    }
}
