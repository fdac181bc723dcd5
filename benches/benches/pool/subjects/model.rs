//! A model of the official driver's pool: one task owns the pool's state, and everything else reaches it through channels.
//!
//! This is the design of the `mongodb` crate 3.x (`src/cmap`), written from scratch without I/O, errors, clears,
//! pinning or service ids. Its purpose is to compare the two designs. The comparison with the crate itself, on a real
//! server, is in `perf/`. The model does the same work for a check-out and a check-in:
//!
//! - A check-out emits its first event, sends a request with a one-shot channel to the owner, and waits for the answer.
//! - The owner handles check-ins before requests. It queues the requests, and after each message it serves the oldest
//!   one if a connection is available or can be opened. A separate task opens a connection when one is needed, and the
//!   check-out awaits that task.
//! - A check-in is a message that carries the connection.
//! - The handler receives owned events. The caller emits the events for a check-out, and the owner emits the event for
//!   a check-in. Each event clones the server's address, which is a string.
//!
//! The model leaves out two things that the driver does: it subscribes to cancellations at each check-out, and it
//! allocates two more times to move a connection. The model therefore costs no more than the driver's pool.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};

use super::{Dummy, Handled, Handler, Queue, Subject};

/// The model, with an event handler that hides the event from the compiler.
pub struct Model {
    requests: mpsc::UnboundedSender<oneshot::Sender<Answer>>,
    events: Events,
}

/// The events for check-outs, check-ins and openings, with the driver's fields.
#[expect(dead_code, reason = "no handler here reads them, but the driver fills them in")]
enum Event {
    CheckOutStarted { address: String },
    CheckedOut { address: String, id: u32, duration: Duration },
    CheckedIn { address: String, id: u32 },
    Created { address: String, id: u32 },
    Ready { address: String, id: u32, duration: Duration },
}

/// The event handler, and the server address that is cloned into every event.
#[derive(Clone)]
struct Events {
    handler: Arc<dyn Fn(Event) + Send + Sync>,
    address: String,
}

impl Events {
    fn emit(&self, event: impl FnOnce(String) -> Event) {
        (self.handler)(event(self.address.clone()));
    }
}

struct Pooled {
    _connection: Dummy,
    id: u32,
    /// Never read, because nothing expires here. The driver reads the clock for it at every check-in, so the model does
    /// the same.
    _available_since: Instant,
}

/// The owner's answer to a request. If the check-out has given up, the connection is still returned to the owner.
enum Answer {
    Available(Lent),
    Opening(JoinHandle<Lent>),
}

/// A message that the owner handles before any request.
enum Message {
    CheckIn(Box<Pooled>),
    Opened,
}

/// A connection in use, which is sent back when it is dropped.
pub struct Lent {
    id: u32,
    pooled: Option<Box<Pooled>>,
    messages: mpsc::UnboundedSender<Message>,
}

impl Lent {
    fn new(pooled: Box<Pooled>, messages: mpsc::UnboundedSender<Message>) -> Self {
        Self { id: pooled.id, pooled: Some(pooled), messages }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(pooled) = self.pooled.take() {
            // The owner's task stops along with the pool. After that, a connection is dropped together with its
            // message.
            let _ = self.messages.send(Message::CheckIn(pooled));
        }
    }
}

impl Model {
    fn with_handler(size: usize, handler: Arc<dyn Fn(Event) + Send + Sync>) -> Self {
        let events = Events { handler, address: "bench.example:27017".to_owned() };
        let (requests, request_receiver) = mpsc::unbounded_channel();
        let (messages, message_receiver) = mpsc::unbounded_channel();
        let owner = Owner {
            size,
            total: 0,
            opening: 0,
            opened: 0,
            available: VecDeque::new(),
            waiting: VecDeque::new(),
            requests: request_receiver,
            received: message_receiver,
            messages,
            events: events.clone(),
        };
        tokio::spawn(owner.run());
        Self { requests, events }
    }
}

impl Subject for Model {
    const NAME: &'static str = "model";
    type Guard<'a> = Lent;

    async fn open(size: usize) -> Self {
        Self::with_handler(size, Arc::new(|event| drop(black_box(event))))
    }

    async fn check_out(&self) -> Lent {
        let start = Instant::now();
        self.events.emit(|address| Event::CheckOutStarted { address });
        let (sender, answer) = oneshot::channel();
        self.requests.send(sender).expect("the owner lives as long as the pool");
        let lent = match answer.await.expect("the owner answers every request") {
            Answer::Available(lent) => lent,
            Answer::Opening(task) => task.await.expect("opening a dummy does not fail"),
        };
        self.events.emit(|address| Event::CheckedOut { address, id: lent.id, duration: start.elapsed() });
        lent
    }
}

impl Queue for Model {}

impl Handled for Model {
    async fn open_handled(size: usize, handler: Handler) -> Self {
        Self::with_handler(size, Arc::new(move |_| handler()))
    }

    /// The driver's pool has no time limit of its own, so the caller applies one.
    async fn check_out_within(&self, limit: Duration) -> Option<Lent> {
        timeout(limit, self.check_out()).await.ok()
    }
}

/// The task that owns the pool's state.
struct Owner {
    size: usize,
    total: usize,
    opening: usize,
    opened: u32,
    /// The connection at the back is handed out first.
    available: VecDeque<Box<Pooled>>,
    waiting: VecDeque<oneshot::Sender<Answer>>,
    requests: mpsc::UnboundedReceiver<oneshot::Sender<Answer>>,
    received: mpsc::UnboundedReceiver<Message>,
    messages: mpsc::UnboundedSender<Message>,
    events: Events,
}

impl Owner {
    const MAX_CONNECTING: usize = 2;
    const MAINTENANCE: Duration = Duration::from_millis(500);

    async fn run(mut self) {
        let mut maintenance = interval(Self::MAINTENANCE);
        loop {
            tokio::select! {
                biased;
                Some(message) = self.received.recv() => self.handle(message),
                request = self.requests.recv() => match request {
                    Some(request) => self.waiting.push_back(request),
                    None => return,
                },
                // Nothing perishes in the benchmarks.
                _ = maintenance.tick() => {}
            }
            let may_open = self.total < self.size && self.opening < Self::MAX_CONNECTING;
            if (may_open || !self.available.is_empty())
                && let Some(request) = self.waiting.pop_front()
            {
                self.serve(request);
            }
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::CheckIn(mut pooled) => {
                self.events.emit(|address| Event::CheckedIn { address, id: pooled.id });
                pooled._available_since = Instant::now();
                self.available.push_back(pooled);
            }
            Message::Opened => self.opening -= 1,
        }
    }

    fn serve(&mut self, request: oneshot::Sender<Answer>) {
        let messages = self.messages.clone();
        if let Some(pooled) = self.available.pop_back() {
            let answer = Answer::Available(Lent::new(pooled, messages));
            // If the check-out has given up, the connection becomes available again without having been used.
            if let Err(Answer::Available(mut lent)) = request.send(answer) {
                self.available.extend(lent.pooled.take());
            }
            return;
        }
        self.total += 1;
        self.opening += 1;
        self.opened += 1;
        let (id, events) = (self.opened, self.events.clone());
        events.emit(|address| Event::Created { address, id });
        let task = tokio::spawn(async move {
            let start = Instant::now();
            let pooled = Box::new(Pooled { _connection: Dummy::open(), id, _available_since: start });
            events.emit(|address| Event::Ready { address, id, duration: start.elapsed() });
            let _ = messages.send(Message::Opened);
            Lent::new(pooled, messages)
        });
        let _ = request.send(Answer::Opening(task));
    }
}
