//! The official driver's design: one task owns the connections and receives requests through a channel.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Design, Mailbox};
use crate::runtime::{self, Work};
use crate::shared::Word;

/// The pool.
pub struct OneTask {
    /// The tail of the channel, which all senders update.
    tail: Word,
    /// Whether the task is asleep.
    sleeps: Word,
    channel: Mutex<Channel>,
}

#[derive(Default)]
struct Channel {
    requests: VecDeque<Request>,
    task: Option<Waker>,
    idle: VecDeque<u32>,
}

enum Request {
    CheckOut(Arc<Mailbox>),
    CheckIn(u32),
}

/// A connection in use.
pub struct Guard {
    pool: Arc<OneTask>,
    connection: u32,
}

impl OneTask {
    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, request: Request) {
        self.tail.add(1);
        self.channel().requests.push_back(request);
        if self.sleeps.load() == 1 && self.sleeps.swap(0) == 1 {
            let task = self.channel().task.take();
            task.into_iter().for_each(Waker::wake);
        }
    }

    /// Takes the next request.
    fn poll_request(&self, context: &mut Context<'_>) -> Poll<Request> {
        for attempt in 0..2 {
            self.tail.load();
            let request = self.channel().requests.pop_front();
            if let Some(request) = request {
                return Poll::Ready(request);
            }
            if attempt == 0 {
                self.channel().task = Some(context.waker().clone());
                self.sleeps.swap(1);
            }
        }
        Poll::Pending
    }
}

impl Design for OneTask {
    const NAME: &'static str = "one task, a channel";
    type Guard = Guard;

    fn open(_cores: usize, size: usize, _owners: usize) -> Arc<Self> {
        let channel = Channel { idle: (0..size as u32).collect(), ..Channel::default() };
        Arc::new(Self { tail: Word::default(), sleeps: Word::default(), channel: Mutex::new(channel) })
    }

    async fn check_out(self: &Arc<Self>) -> Guard {
        let mailbox = Arc::new(Mailbox::default());
        self.send(Request::CheckOut(Arc::clone(&mailbox)));
        let connection = poll_fn(|context| mailbox.poll(context)).await;
        Guard { pool: Arc::clone(self), connection }
    }

    fn tasks(self: &Arc<Self>) -> Vec<Work> {
        let pool = Arc::clone(self);
        let task = async move {
            let mut waiters = VecDeque::new();
            let mut idle = std::mem::take(&mut pool.channel().idle);
            loop {
                match poll_fn(|context| pool.poll_request(context)).await {
                    Request::CheckOut(mailbox) => waiters.push_back(mailbox),
                    Request::CheckIn(connection) => idle.push_back(connection),
                }
                while !waiters.is_empty()
                    && let Some(connection) = idle.pop_front()
                {
                    let mailbox: Option<Arc<Mailbox>> = waiters.pop_front();
                    mailbox.into_iter().for_each(|mailbox| mailbox.put(connection));
                }
                if crate::machine::is_over() {
                    return;
                }
            }
        };
        vec![runtime::task(task)]
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.pool.send(Request::CheckIn(self.connection));
    }
}
