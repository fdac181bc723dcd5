//! event-listener's events, with operations that are single steps in a model.
//!
//! An operation on an event is one section under the event's lock. event-listener also counts references around the
//! section, and stores a number before it releases the lock. loom would try to switch threads at each of these steps.
//! That would reveal nothing about wharf, and event-listener has its own models. So here an operation passes a
//! turnstile, and loom then runs it to completion. Only the section itself orders the steps before it and after it.

use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use event_listener::IntoNotification;

use super::explored::{Turnstile, unexplored};

/// Passes the turnstile, and then calls `f` without exploring switches to other threads during the call. `f` must not
/// wait.
fn step<R>(turnstile: &Turnstile, f: impl FnOnce() -> R) -> R {
    turnstile.pass();
    unexplored(f)
}

#[derive(Debug)]
pub(crate) struct Event<T> {
    turnstile: Arc<Turnstile>,
    event: event_listener::Event<T>,
}

impl<T> Event<T> {
    pub(crate) fn with_tag() -> Self {
        Self { turnstile: Arc::new(Turnstile::new()), event: event_listener::Event::with_tag() }
    }

    pub(crate) fn listen(&self) -> EventListener<T> {
        let listener = ManuallyDrop::new(step(&self.turnstile, || self.event.listen()));
        EventListener { turnstile: self.turnstile.clone(), is_over: false, listener }
    }

    pub(crate) fn notify(&self, notification: impl IntoNotification<Tag = T>) -> usize {
        step(&self.turnstile, || self.event.notify(notification))
    }

    pub(crate) fn total_listeners(&self) -> usize {
        // loom explores this as a separate step, because the call reads, before its section and without the lock,
        // whether the event ever had a listener.
        self.turnstile.pass();
        self.event.total_listeners()
    }
}

#[derive(Debug)]
pub(crate) struct EventListener<T> {
    turnstile: Arc<Turnstile>,
    /// Whether the listener has been notified and has left the event's list.
    is_over: bool,
    listener: ManuallyDrop<event_listener::EventListener<T>>,
}

impl<T> Future for EventListener<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let listener = &mut *self;
        let polled = step(&listener.turnstile, || Pin::new(&mut *listener.listener).poll(context));
        listener.is_over = polled.is_ready();
        polled
    }
}

impl<T> Drop for EventListener<T> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: nothing uses the listener after this.
        let end = || unsafe { ManuallyDrop::drop(&mut self.listener) };
        if self.is_over { unexplored(end) } else { step(&self.turnstile, end) }
    }
}
