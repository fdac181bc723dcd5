//! A mutex around a queue of connections and a queue of waiters.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;

use super::{Design, Mailbox};
use crate::shared::Lock;

/// The pool.
pub struct MutexAndDeque {
    queues: Lock<Queues>,
}

#[derive(Default)]
struct Queues {
    idle: VecDeque<u32>,
    waiters: VecDeque<Arc<Mailbox>>,
}

/// A connection in use.
pub struct Guard {
    pool: Arc<MutexAndDeque>,
    connection: u32,
}

impl Design for MutexAndDeque {
    const NAME: &'static str = "mutex and deque";
    type Guard = Guard;

    fn open(_cores: usize, size: usize, _owners: usize) -> Arc<Self> {
        let idle = (0..size as u32).collect();
        Arc::new(Self { queues: Lock::new(Queues { idle, waiters: VecDeque::new() }) })
    }

    async fn check_out(self: &Arc<Self>) -> Guard {
        let mailbox = {
            let mut queues = self.queues.lock();
            match queues.idle.pop_front() {
                Some(connection) => return Guard { pool: Arc::clone(self), connection },
                None => {
                    let mailbox = Arc::new(Mailbox::default());
                    queues.waiters.push_back(Arc::clone(&mailbox));
                    mailbox
                }
            }
        };
        let connection = poll_fn(|context| mailbox.poll(context)).await;
        Guard { pool: Arc::clone(self), connection }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let waiter = {
            let mut queues = self.pool.queues.lock();
            let waiter = queues.waiters.pop_front();
            if waiter.is_none() {
                queues.idle.push_back(self.connection);
            }
            waiter
        };
        if let Some(waiter) = waiter {
            waiter.put(self.connection);
        }
    }
}
