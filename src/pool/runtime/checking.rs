//! Checks a connection before it is used.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::environment::TokioEnvironment;
use super::establish::{CheckResult, Establish};
use super::pool::Pool;
use super::timer::on_runtime;
use crate::pool::core::{Checking, Idle};
use crate::pool::sync::{Watch, contain};

enum End {
    Done(CheckResult),
    Panicked,
    /// The connection has gone stale, so a check would be pointless.
    Stale,
}

impl<E: Establish> Pool<E> {
    /// Makes the establisher check a connection. Returns the connection if it passes the check, and otherwise a token
    /// that closes it when dropped. Dropping the future also closes the connection.
    ///
    /// The check is part of the check-out's future, so the check-out's time limit covers it.
    pub(super) async fn check(
        &self,
        idle: Idle<TokioEnvironment<E>>,
    ) -> Result<Idle<TokioEnvironment<E>>, Checking<TokioEnvironment<E>>> {
        let environment = self.core.environment();
        let mut checking = idle.begin_check();
        let Some(runtime) = environment.living_runtime() else { return Err(checking) };
        let end = {
            let mut change = Watch::new(&environment.changed);
            let (connection, is_stale) = checking.connection();
            // The async block defers the call to the first poll, where a panic is caught.
            let mut check = pin!(async move { environment.establish.check(connection).await });
            let end = poll_fn(move |context| {
                if change.poll(context, &is_stale).is_ready() {
                    return Poll::Ready(End::Stale);
                }
                match contain(|| check.as_mut().poll(context)) {
                    Some(polled) => polled.map(End::Done),
                    None => Poll::Ready(End::Panicked),
                }
            });
            on_runtime(&runtime, end).await
        };
        match end {
            Ok(End::Done(Ok(()))) => Ok(checking.pass()),
            Ok(End::Done(Err(error))) => Err(checking.fail(Arc::from(error))),
            Ok(End::Panicked) => Err(checking.fail_by_panic()),
            Ok(End::Stale) | Err(_) => Err(checking),
        }
    }
}
