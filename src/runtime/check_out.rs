//! The future of a check-out, which is made for the case that it ends where it begins.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::attempt::Attempt;
use super::connection::Connection;
use super::establish::Establish;
use super::pool::Pool;
use crate::error::CheckOutError;

pin_project! {
    /// Looks for a connection in the calling thread's stack, and only where there is none becomes what `wait` makes of
    /// the attempt.
    ///
    /// By hand, and not an `async fn`: that would set up, look up and take down its state with each check-out, as many
    /// instructions as taking the connection.
    #[project = Stage]
    pub(super) enum CheckOut<'p, E: Establish, W, F> {
        Begins { pool: &'p Pool<E>, wait: W },
        Waits { #[pin] waiting: F },
    }
}

impl<'p, E: Establish, W, F> CheckOut<'p, E, W, F>
where
    W: Fn(Attempt<'p, E>) -> F,
    F: Future<Output = Result<Connection<E>, CheckOutError>>,
{
    pub(super) fn new(pool: &'p Pool<E>, wait: W) -> Self {
        Self::Begins { pool, wait }
    }

    #[cold]
    #[inline(never)]
    fn wait(mut self: Pin<&mut Self>, attempt: Attempt<'p, E>, context: &mut Context<'_>) -> Poll<F::Output> {
        if let Stage::Begins { wait, .. } = self.as_mut().project() {
            let waiting = wait(attempt);
            self.as_mut().set(Self::Waits { waiting });
        }
        self.poll_waiting(context)
    }

    #[inline(never)]
    fn poll_waiting(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            Stage::Begins { .. } => unreachable!("BUG: a check-out that waits before it began"),
            Stage::Waits { waiting } => waiting.poll(context),
        }
    }
}

impl<'p, E: Establish, W, F> Future for CheckOut<'p, E, W, F>
where
    W: Fn(Attempt<'p, E>) -> F,
    F: Future<Output = Result<Connection<E>, CheckOutError>>,
{
    type Output = Result<Connection<E>, CheckOutError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.as_mut().project() {
            Stage::Begins { pool, .. } => match Attempt::begin(pool) {
                Ok(connection) => Poll::Ready(Ok(connection)),
                Err(attempt) => self.wait(attempt, context),
            },
            Stage::Waits { .. } => self.poll_waiting(context),
        }
    }
}
