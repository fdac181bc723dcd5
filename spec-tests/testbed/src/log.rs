//! Subscribers of `tracing`, and the log messages of one thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The fields of a span, or of a message, including its text as `message`.
pub type Fields = BTreeMap<&'static str, String>;

/// Calls `work`, and returns the messages that a target logs on this thread in the meantime.
///
/// # Panics
///
/// If the target logs at a higher level than `level`.
pub fn kept(target: &'static str, level: Level, work: impl FnOnce()) -> Vec<Fields> {
    ask_all_subscribers();
    let messages = Arc::<Mutex<Vec<Fields>>>::default();
    let reads = move |metadata: &Metadata<'_>| metadata.target() == target && *metadata.level() <= level;
    let kept = messages.clone();
    let on_event = move |event: &Event<'_>| {
        let mut fields = Fields::new();
        event.record(&mut Recorder(&mut fields));
        assert_eq!(*event.metadata().level(), level, "{fields:?}");
        kept.lock().unwrap().push(fields);
    };
    tracing::subscriber::with_default(Listener { reads, on_event }, work);
    std::mem::take(&mut *messages.lock().unwrap())
}

/// Lets every call site ask all subscribers from now on. If there is just one, a call site that no thread has reached
/// before asks the current thread's subscriber, and a thread without one would switch it off for all.
pub fn ask_all_subscribers() {
    static OTHERS: LazyLock<[Dispatch; 2]> = LazyLock::new(|| {
        [(); 2].map(|()| Dispatch::new(Listener { reads: |_: &Metadata<'_>| false, on_event: |_: &Event<'_>| {} }))
    });
    LazyLock::force(&OTHERS);
}

/// A subscriber that passes log messages to a function.
#[derive(Debug)]
pub struct Listener<R, F> {
    /// Whether to pass on the messages of a call site.
    pub reads: R,
    /// Receives each message.
    pub on_event: F,
}

impl<R, F> Subscriber for Listener<R, F>
where
    R: Fn(&Metadata<'_>) -> bool + 'static,
    F: Fn(&Event<'_>) + 'static,
{
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        (self.reads)(metadata)
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        (self.on_event)(event);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Records fields as text.
#[derive(Debug)]
pub struct Recorder<'f>(pub &'f mut Fields);

impl Visit for Recorder<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_if_a_thread_without_a_subscriber_reaches_the_call_site_first() {
        let log = || tracing::debug!(target: "log", number = 1, "text");
        let messages = kept("log", Level::DEBUG, || {
            std::thread::scope(|scope| _ = scope.spawn(log));
            log();
        });
        assert_eq!(messages, [Fields::from([("message", "text".to_owned()), ("number", "1".to_owned())])]);
    }
}
