//! A `tracing` subscriber that collects spans and messages.

use std::sync::{Arc, Mutex, MutexGuard};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};
use tracing_core::span::Current;
use wharf_testbed::log::{Fields, Recorder, ask_all_subscribers};

#[derive(Debug)]
pub struct Span {
    metadata: &'static Metadata<'static>,
    pub parent: Option<u64>,
    pub follows: Vec<u64>,
    pub fields: Fields,
    handles: u32,
}

#[derive(Default)]
struct State {
    /// Span `n` is entry `n - 1`.
    spans: Vec<Span>,
    messages: Vec<Fields>,
    /// The spans that the test's only thread has entered.
    entered: Vec<u64>,
}

/// Collects spans and messages up to a level.
#[derive(Clone)]
pub struct Collector {
    most: Level,
    reads: fn(&Metadata<'_>) -> bool,
    state: Arc<Mutex<State>>,
}

impl Collector {
    /// Creates a collector for the spans and messages of pools.
    pub fn of_pools(most: Level) -> Self {
        Self::new(most, |metadata| metadata.target() == "wharf::connection")
    }

    /// Creates a collector for all spans, including the test's own.
    pub fn of_operations(most: Level) -> Self {
        Self::new(most, |metadata| metadata.is_span())
    }

    fn new(most: Level, reads: fn(&Metadata<'_>) -> bool) -> Self {
        ask_all_subscribers();
        Self { most, reads, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn span<T>(&self, id: u64, of: impl FnOnce(&mut Span) -> T) -> T {
        of(&mut self.state().spans[id as usize - 1])
    }

    /// Returns the names of all spans, and asserts that they are closed.
    pub fn names(&self) -> Vec<&'static str> {
        let spans = &self.state().spans;
        assert!(spans.iter().all(|span| span.handles == 0), "open spans: {spans:#?}");
        spans.iter().map(|span| span.metadata.name()).collect()
    }

    /// Returns the names of the spans, indented by two spaces for each enclosing span. Asserts that all have ended.
    pub fn tree(&self) -> Vec<String> {
        self.names();
        let spans = &self.state().spans;
        let mut told = Vec::new();
        for span in spans {
            let mut depth = 0;
            let mut parent = span.parent;
            while let Some(id) = parent {
                depth += 1;
                parent = spans[id as usize - 1].parent;
            }
            // Leaves out the establishment that a check-out waits for.
            if span.metadata.target() != "wharf::connection" || span.metadata.name() == "check_out" {
                let name = span.fields.get("otel.name").map_or(span.metadata.name(), String::as_str);
                told.push(format!("{}{name}", "  ".repeat(depth)));
            }
        }
        told
    }

    /// Returns the number of the only span with this name.
    pub fn only(&self, name: &str) -> u64 {
        let spans = &self.state().spans;
        let found: Vec<_> =
            (1..).zip(spans).filter(|(_, span)| span.metadata.name() == name).map(|(id, _)| id).collect();
        assert_eq!(found.len(), 1, "{spans:#?}");
        found[0]
    }

    /// Returns the fields of the only span with this name.
    pub fn fields(&self, name: &str) -> Fields {
        self.span(self.only(name), |span| span.fields.clone())
    }

    pub fn field(&self, name: &str, field: &str) -> String {
        self.fields(name).remove(field).unwrap_or_default()
    }

    /// Returns the messages since the last call.
    pub fn take_messages(&self) -> Vec<Fields> {
        std::mem::take(&mut self.state().messages)
    }
}

impl tracing::Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        (self.reads)(metadata) && *metadata.level() <= self.most
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut state = self.state();
        let here = state.entered.last().copied();
        let parent = if attributes.is_contextual() { here } else { attributes.parent().map(Id::into_u64) };
        let mut fields = Fields::new();
        attributes.record(&mut Recorder(&mut fields));
        state.spans.push(Span { metadata: attributes.metadata(), parent, follows: Vec::new(), fields, handles: 1 });
        Id::from_u64(state.spans.len() as u64)
    }
    fn record(&self, id: &Id, values: &Record<'_>) {
        self.span(id.into_u64(), |span| values.record(&mut Recorder(&mut span.fields)));
    }
    fn record_follows_from(&self, id: &Id, follows: &Id) {
        assert!(self.span(follows.into_u64(), |span| span.handles) > 0, "the span that is followed is closed");
        self.span(id.into_u64(), |span| span.follows.push(follows.into_u64()));
    }
    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::from([("level", event.metadata().level().to_string())]);
        event.record(&mut Recorder(&mut fields));
        self.state().messages.push(fields);
    }
    fn enter(&self, id: &Id) {
        self.state().entered.push(id.into_u64());
    }
    fn exit(&self, id: &Id) {
        assert_eq!(self.state().entered.pop(), Some(id.into_u64()));
    }
    fn clone_span(&self, id: &Id) -> Id {
        self.span(id.into_u64(), |span| span.handles += 1);
        id.clone()
    }
    fn try_close(&self, id: Id) -> bool {
        self.span(id.into_u64(), |span| {
            span.handles -= 1;
            span.handles == 0
        })
    }
    fn current_span(&self) -> Current {
        let state = self.state();
        match state.entered.last() {
            Some(&id) => Current::new(Id::from_u64(id), state.spans[id as usize - 1].metadata),
            None => Current::none(),
        }
    }
}
