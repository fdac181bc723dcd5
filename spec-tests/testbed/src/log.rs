//! The log messages of one thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The fields of a message, including its text as `message`.
pub type Message = BTreeMap<&'static str, String>;

/// Calls `work`, and returns the messages that a target logs on this thread in the meantime.
///
/// # Panics
///
/// If the target logs at a higher level than `level`.
pub fn kept(target: &'static str, level: Level, work: impl FnOnce()) -> Vec<Message> {
    ask_all_subscribers();
    let kept = Kept::new(target, level);
    tracing::subscriber::with_default(kept.clone(), work);
    std::mem::take(&mut *kept.messages.lock().unwrap())
}

/// Lets every call site ask all subscribers from now on. If there is just one, a call site that no thread has reached
/// before asks the current thread's subscriber, and a thread without one would switch it off for all.
pub fn ask_all_subscribers() {
    static OTHERS: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Kept::new("", Level::ERROR))));
    LazyLock::force(&OTHERS);
}

#[derive(Clone)]
struct Kept {
    target: &'static str,
    level: Level,
    messages: Arc<Mutex<Vec<Message>>>,
}

impl Kept {
    fn new(target: &'static str, level: Level) -> Self {
        Self { target, level, messages: Arc::default() }
    }
}

impl Subscriber for Kept {
    fn register_callsite(&self, _: &Metadata<'_>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == self.target && *metadata.level() <= self.level
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        assert_eq!(*event.metadata().level(), self.level, "{:?}", fields.0);
        self.messages.lock().unwrap().push(fields.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Fields(Message);

impl Visit for Fields {
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
        assert_eq!(messages, [Message::from([("message", "text".to_owned()), ("number", "1".to_owned())])]);
    }
}
