//! The event file, and the thread that writes it.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use wharf::telemetry::JsonLines;
use wharf::{PoolEvent, Subscriber};

/// How many events may queue for the writer: about a tenth of a second's worth at a million events a second.
pub const ROOM: usize = 1 << 17;
/// How often an idle writer looks for events. It polls, so that none of the load's tasks has to wake it.
const PAUSE: Duration = Duration::from_millis(2);

/// A file that receives every event as a line of JSON.
///
/// The load's tasks put their events into a queue, which takes tens of nanoseconds for each event. A separate thread
/// turns the events into text and writes them. The tasks never wait for it: while the queue is full, new events are
/// dropped and counted.
pub struct EventFile {
    queue: Arc<Queue>,
    thread: JoinHandle<io::Result<Written>>,
}

/// The totals for a finished event file.
pub struct Written {
    pub events: u64,
    pub bytes: u64,
    /// How many events were dropped because the writer was [`ROOM`] events behind.
    pub dropped: u64,
}

/// The events that are waiting for the writer.
struct Queue {
    events: SyncSender<PoolEvent>,
    dropped: AtomicU64,
    ended: AtomicBool,
}

impl Queue {
    /// Puts an event into the queue. Returns whether there was room.
    fn put(&self, event: &PoolEvent) -> bool {
        let is_put = self.events.try_send(event.clone()).is_ok();
        if !is_put {
            // Relaxed: a statistic.
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        is_put
    }
}

impl EventFile {
    /// Starts the writer's thread. At most `room` events may be waiting for it.
    pub fn start(file: impl Write + Send + 'static, room: usize) -> io::Result<Self> {
        let (events, waiting) = sync_channel(room);
        let queue = Arc::new(Queue { events, dropped: AtomicU64::new(0), ended: AtomicBool::new(false) });
        let thread = thread::Builder::new().name("events".to_owned()).spawn({
            let queue = queue.clone();
            move || write(&queue, &waiting, file)
        })?;
        Ok(Self { queue, thread })
    }

    /// Returns a subscriber that queues events for the writer while there is room.
    pub fn subscriber(&self) -> impl Subscriber {
        let queue = self.queue.clone();
        move |event: &PoolEvent| {
            queue.put(event);
        }
    }

    /// Waits until all events so far have been written, and closes the file.
    pub fn finish(self) -> io::Result<Written> {
        // ORD: Release; pairs with the Acquire in `write`. The writer then finds all events that arrived before this
        // call.
        self.queue.ended.store(true, Ordering::Release);
        self.thread.thread().unpark();
        self.thread.join().expect("the events' writer panicked")
    }
}

/// Writes the queued events until [`EventFile::finish`] is called.
fn write(queue: &Queue, waiting: &Receiver<PoolEvent>, file: impl Write + Send + 'static) -> io::Result<Written> {
    let bytes = Arc::new(AtomicU64::new(0));
    let lines = JsonLines::new(Counted { file, bytes: bytes.clone() });
    let mut events = 0;
    loop {
        // ORD: Acquire; pairs with the Release in `finish`. The flag is read before the queue, so that no event is left
        // behind.
        let ended = queue.ended.load(Ordering::Acquire);
        for event in waiting.try_iter() {
            lines.on_event(&event);
            events += 1;
        }
        if ended {
            break;
        }
        thread::park_timeout(PAUSE);
    }
    lines.finish()?;
    // Relaxed: the bytes were counted by this thread. The other number is a statistic.
    Ok(Written { events, bytes: bytes.load(Ordering::Relaxed), dropped: queue.dropped.load(Ordering::Relaxed) })
}

/// A writer that counts its bytes.
struct Counted<W> {
    file: W,
    bytes: Arc<AtomicU64>,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        // Relaxed: only one thread uses it.
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use wharf::{Endpoint, Pool};

    use super::*;

    /// A writer that blocks at each call until it is released.
    struct Gate {
        reached: Sender<()>,
        let_go: Receiver<()>,
        text: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.reached.send(());
            // `recv` fails once the test has dropped the sender. From then on, the writer does not block.
            let _ = self.let_go.recv();
            self.text.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns an arbitrary event. Only a pool can create events.
    fn some_event() -> PoolEvent {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let seen = Arc::new(Mutex::new(None));
        let _inside = runtime.enter();
        let pool: Pool<Endpoint> = Endpoint::new("localhost").unwrap().pool().build().unwrap();
        pool.subscribe({
            let seen = seen.clone();
            move |event: &PoolEvent| {
                seen.lock().unwrap().get_or_insert_with(|| event.clone());
            }
        });
        pool.ready();
        seen.lock().unwrap().take().unwrap()
    }

    #[test]
    fn events_beyond_the_room_are_dropped_and_counted_without_waiting() {
        let (event, text) = (some_event(), Arc::new(Mutex::new(Vec::new())));
        let (reached, at_gate) = channel();
        let (open, let_go) = channel();
        let file = EventFile::start(Gate { reached, let_go, text: text.clone() }, 10).unwrap();
        let queue = file.queue.clone();
        // The writer buffers the lines for the first events. Once its buffer is full, it waits at the gate.
        let (mut sent, mut dropped) = (0, 0);
        let mut put = || {
            let is_put = queue.put(&event);
            *if is_put { &mut sent } else { &mut dropped } += 1;
            is_put
        };
        while at_gate.try_recv().is_err() {
            put();
            thread::yield_now();
        }
        while put() {}
        for _ in 0..3 {
            assert!(!put());
        }
        drop(open);
        let written = file.finish().unwrap();
        assert_eq!((written.events, written.dropped), (sent, dropped));
        let text = text.lock().unwrap();
        assert_eq!(written.bytes, text.len() as u64);
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count() as u64, written.events);
    }

    #[test]
    fn error_of_the_file_is_returned() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::other("no space left"))
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let file = EventFile::start(Full, 10).unwrap();
        assert!(file.queue.put(&some_event()));
        assert_eq!(file.finish().err().unwrap().to_string(), "no space left");
    }
}
