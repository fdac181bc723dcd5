//! Closes the connections that have left their pool.

use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::boxed::Boxed;
use super::environment::TokioEnvironment;
use super::establish::Establish;
use super::fork;
use crate::pool::core::Closing;
use crate::pool::sync::contain;

const LIMIT: Duration = Duration::from_secs(5);

/// Makes the establisher close a connection. The connection counts towards `maxPoolSize` until `closing` is dropped.
///
/// A close that completes immediately does not need a task. A longer close continues in a task on the pool's runtime
/// or, without one, on the caller's runtime. If there is no runtime, the future is dropped.
///
/// Catches a panic, so that the pool still closes its other connections. The panic hook has already reported it.
#[cold]
pub(super) fn begin<E: Establish>(
    environment: &TokioEnvironment<E>,
    connection: E::Connection,
    closing: Closing<TokioEnvironment<E>>,
) {
    let Some(runtime) = environment.living_runtime().or_else(|| Handle::try_current().ok()) else {
        // The part of `close` that is not async runs in this call.
        contain(|| drop(environment.establish.close(connection)));
        return drop(closing);
    };
    let establish = environment.establish.present();
    let begun = contain(|| {
        let mut close: Boxed<'static, ()> = Box::pin(async move { establish.close(connection).await });
        let _entered = runtime.enter();
        let is_done = close.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        (!is_done).then_some(close)
    });
    if let Some(Some(close)) = begun {
        fork::spawn(&runtime, async move {
            // The connection is closed before its capacity is released.
            let _ = timeout(LIMIT, close).await;
            drop(closing);
        });
    }
}
