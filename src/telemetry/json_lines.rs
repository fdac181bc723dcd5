//! Writes events as text that can be stored and searched.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::pool::event::PoolEvent;
use crate::pool::options::OptionValue;
use crate::pool::runtime::Subscriber;
use crate::text::printable::PrintableError;

/// The number of bytes to collect before they are written.
const CHUNK: usize = 64 * 1024;

/// Writes every event as one line of JSON, in the order of arrival (see [`Subscriber`]). Clones write to the same
/// writer.
///
/// Each line is an object. `type` is [`PoolEvent::name`]; the other fields are the event's own, with their names in the
/// CMAP specification. A line has whichever of the following fields apply: `address`, `options` (only those that differ
/// from the default), `connectionId`, `serviceId` (24 hexadecimal digits), `interruptInUseConnections`, `reason`,
/// `error` (the text of the underlying error), `durationMS` (milliseconds with a fraction, exact to the nanosecond) and
/// `stagesMS` (an object with the milliseconds of each stage of an establishment: `resolve`, `proxy`, `connect`, `tls`,
/// `hello`, `authenticate`).
///
/// ```json
/// {"type":"ConnectionCheckedOut","address":"localhost:27017","connectionId":1,"durationMS":0.004217}
/// ```
///
/// Lines are collected and written 64 KiB at a time, and when the last clone is dropped. [`JsonLines::flush`] writes
/// them immediately. The thread that delivers the events calls the writer, so the writer should not block for long. The
/// writer does not need a buffer.
///
/// # Failures
///
/// The writer's first error stops the writing: later events are dropped, so the written text has no gaps. From then on,
/// every call to `flush`, [`JsonLines::finish`] and [`JsonLines::into_inner`] returns that error. The pool is not
/// affected.
pub struct JsonLines<W: Write + Send + 'static>(Arc<Mutex<Lines<W>>>);

impl<W: Write + Send + 'static> JsonLines<W> {
    /// Creates a subscriber that writes to `writer`.
    pub fn new(writer: W) -> Self {
        let lines = Lines { buffer: Vec::with_capacity(2 * CHUNK), writer: Some(writer), error: None };
        Self(Arc::new(Mutex::new(lines)))
    }

    /// Writes the collected lines, and flushes the writer.
    ///
    /// # Errors
    ///
    /// Returns the writer's first error, if there was one.
    pub fn flush(&self) -> io::Result<()> {
        self.lines().flush()
    }

    /// Writes the collected lines, then flushes and drops the writer, which closes a file. Drops all later events.
    ///
    /// # Errors
    ///
    /// Returns the writer's first error, if there was one.
    pub fn finish(&self) -> io::Result<()> {
        let mut lines = self.lines();
        let outcome = lines.flush();
        lines.writer = None;
        outcome
    }

    /// Like [`JsonLines::finish`], but returns the writer.
    ///
    /// # Errors
    ///
    /// Returns the first error that the writer returned, or [`NotConnected`](io::ErrorKind::NotConnected) if another
    /// clone has already been finished. In both cases, the writer is dropped.
    pub fn into_inner(self) -> io::Result<W> {
        let mut lines = self.lines();
        let outcome = lines.flush();
        let writer = lines.writer.take();
        outcome?;
        writer.ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "the events' writer is already finished"))
    }

    fn lines(&self) -> MutexGuard<'_, Lines<W>> {
        // After a panic in the writer, `writer` is `None` and everything else is unchanged; see `Lines::write_out`.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Write + Send + 'static> Subscriber for JsonLines<W> {
    fn on_event(&self, event: &PoolEvent) {
        self.lines().add(event);
    }
}

impl<W: Write + Send + 'static> Clone for JsonLines<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: Write + Send + 'static> fmt::Debug for JsonLines<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        f.debug_struct("JsonLines")
            .field("collected_bytes", &lines.buffer.len())
            .field("error", &lines.error)
            .finish_non_exhaustive()
    }
}

struct Lines<W: Write> {
    /// Whole lines that have not been written yet.
    buffer: Vec<u8>,
    /// `None` once the lines are finished, and during a call to the writer.
    writer: Option<W>,
    error: Option<Arc<io::Error>>,
}

impl<W: Write> Lines<W> {
    fn add(&mut self, event: &PoolEvent) {
        if self.error.is_some() || self.writer.is_none() {
            return;
        }
        line(&mut self.buffer, event);
        if self.buffer.len() >= CHUNK {
            self.write_out(|_| Ok(()));
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_out(W::flush);
        match &self.error {
            Some(error) => Err(io::Error::new(error.kind(), error.clone())),
            None if self.buffer.is_empty() => Ok(()),
            None => Err(io::Error::other("the events' writer panicked")),
        }
    }

    fn write_out(&mut self, then: impl FnOnce(&mut W) -> io::Result<()>) {
        if self.error.is_some() {
            return;
        }
        // The writer is taken out during the call, so that a writer that panics is not used again and cannot repeat
        // lines.
        let Some(mut writer) = self.writer.take() else { return };
        match writer.write_all(&self.buffer).and_then(|()| then(&mut writer)) {
            Ok(()) => self.buffer.clear(),
            Err(error) => {
                self.error = Some(Arc::new(error));
                self.buffer = Vec::new();
            }
        }
        self.writer = Some(writer);
    }
}

impl<W: Write> Drop for Lines<W> {
    fn drop(&mut self) {
        // There is no caller left to receive an error.
        let _ = self.flush();
    }
}

/// Appends an event's line.
fn line(buffer: &mut Vec<u8>, event: &PoolEvent) {
    buffer.extend_from_slice(b"{\"type\":\"");
    buffer.extend_from_slice(event.name().as_bytes());
    buffer.extend_from_slice(b"\",\"address\":");
    string(buffer, event.address());
    match event {
        PoolEvent::PoolCreated { options, .. } => {
            buffer.extend_from_slice(b",\"options\":{");
            for (index, (name, value)) in options.non_default().into_iter().enumerate() {
                buffer.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
                buffer.extend_from_slice(name.as_bytes());
                buffer.extend_from_slice(b"\":");
                match value {
                    OptionValue::Number(value) => number(buffer, value),
                    OptionValue::Flag(value) => flag(buffer, value),
                }
            }
            buffer.push(b'}');
        }
        PoolEvent::PoolCleared { service_id, interrupt_in_use_connections, .. } => {
            if let Some(service_id) = service_id {
                buffer.extend_from_slice(b",\"serviceId\":");
                string(buffer, &service_id.to_string());
            }
            buffer.extend_from_slice(b",\"interruptInUseConnections\":");
            flag(buffer, *interrupt_in_use_connections);
        }
        _ => {}
    }
    if let Some(connection_id) = event.connection_id() {
        buffer.extend_from_slice(b",\"connectionId\":");
        number(buffer, connection_id);
    }
    if let Some(reason) = event.reason() {
        buffer.extend_from_slice(b",\"reason\":\"");
        buffer.extend_from_slice(reason.as_bytes());
        buffer.push(b'"');
    }
    if let Some(error) = event.error() {
        buffer.extend_from_slice(b",\"error\":");
        string(buffer, &PrintableError(error).to_string());
    }
    if let Some(duration) = event.duration() {
        buffer.extend_from_slice(b",\"durationMS\":");
        milliseconds(buffer, duration);
    }
    if let PoolEvent::ConnectionReady { stages, .. } = event {
        let reported = stages.named().filter_map(|(name, took)| Some((name, (*took)?)));
        let mut count = 0;
        for (name, took) in reported {
            buffer.extend_from_slice(if count == 0 { b",\"stagesMS\":{\"" } else { b",\"" });
            buffer.extend_from_slice(name.as_bytes());
            buffer.extend_from_slice(b"\":");
            milliseconds(buffer, took);
            count += 1;
        }
        if count > 0 {
            buffer.push(b'}');
        }
    }
    buffer.extend_from_slice(b"}\n");
}

fn string(buffer: &mut Vec<u8>, text: &str) {
    // Cannot fail: a vector accepts any bytes, and every string can be encoded in JSON.
    let _ = serde_json::to_writer(buffer, text);
}

fn flag(buffer: &mut Vec<u8>, value: bool) {
    buffer.extend_from_slice(if value { b"true" } else { b"false" });
}

fn number(buffer: &mut Vec<u8>, value: u64) {
    // Cannot fail, as above.
    let _ = serde_json::to_writer(buffer, &value);
}

/// Writes a duration in milliseconds, computed from whole nanoseconds to avoid floating-point rounding.
fn milliseconds(buffer: &mut Vec<u8>, duration: Duration) {
    // Saturates at 584 million years.
    number(buffer, u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    let mut rest = duration.subsec_nanos() % 1_000_000;
    if rest > 0 {
        let mut digits = *b".000000";
        for digit in digits[1..].iter_mut().rev() {
            // A digit plus `b'0'` fits into a byte.
            *digit += (rest % 10) as u8;
            rest /= 10;
        }
        let end = digits.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
        buffer.extend_from_slice(&digits[..end]);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pool::by_stage::ByStage;
    use crate::pool::error::{CheckOutError, EstablishError, Stage};
    use crate::pool::event::{CheckOutFailedReason, ConnectionClosedReason, EventError};
    use crate::pool::options::PoolOptions;
    use crate::pool::service_id::ServiceId;

    /// Returns an event of each kind, in the order in which the kinds are defined.
    pub fn one_of_each() -> Vec<PoolEvent> {
        let address: Arc<str> = "db.example.com:27018".into();
        let duration = Duration::new(1, 2_003_400);
        let service_id = Some(ServiceId::from_bytes(*b"twelve bytes"));
        let options =
            PoolOptions::default().max_pool_size(7).max_idle_time(Duration::from_millis(1_500)).load_balanced(true);
        let connection_id = 42;
        let stages = ByStage {
            connect: Some(Duration::from_micros(2_500)),
            hello: Some(Duration::from_secs(1)),
            ..ByStage::default()
        };
        let stages = Arc::new(stages);
        vec![
            PoolEvent::PoolCreated { address: address.clone(), options },
            PoolEvent::PoolReady { address: address.clone() },
            PoolEvent::PoolCleared {
                address: address.clone(),
                service_id,
                interrupt_in_use_connections: true,
                error: Some(EventError::new(io::Error::other("the monitor\nhears nothing"))),
            },
            PoolEvent::PoolClosed { address: address.clone() },
            PoolEvent::ConnectionCreated { address: address.clone(), connection_id },
            PoolEvent::ConnectionReady { address: address.clone(), connection_id, duration, stages },
            PoolEvent::ConnectionClosed {
                address: address.clone(),
                connection_id,
                reason: ConnectionClosedReason::Error,
                error: Some(EventError::new(io::Error::other("the cable\nis cut"))),
            },
            PoolEvent::ConnectionCheckOutStarted { address: address.clone() },
            PoolEvent::ConnectionCheckOutFailed {
                address: address.clone(),
                reason: CheckOutFailedReason::ConnectionError,
                duration,
                error: Some(EventError::new(CheckOutError::from(
                    EstablishError::overloaded(Stage::Connect, io::Error::other("refused")).in_pool(
                        address.clone(),
                        connection_id,
                        0,
                    ),
                ))),
            },
            PoolEvent::ConnectionCheckedOut { address: address.clone(), connection_id, duration },
            PoolEvent::ConnectionCheckedIn { address, connection_id, duration },
        ]
    }

    fn written(lines: JsonLines<Vec<u8>>) -> Vec<Value> {
        let text = String::from_utf8(lines.into_inner().unwrap()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn every_event_is_one_object_with_the_specifications_fields() {
        let lines = JsonLines::new(Vec::new());
        for event in one_of_each() {
            lines.on_event(&event);
        }
        let address = "db.example.com:27018";
        let service = "7477656c7665206279746573";
        let options = json!({ "maxPoolSize": 7, "maxIdleTimeMS": 1_500, "loadBalanced": true });
        let expected = [
            json!({ "type": "PoolCreated", "address": address, "options": options }),
            json!({ "type": "PoolReady", "address": address }),
            json!({
                "type": "PoolCleared", "address": address, "serviceId": service, "interruptInUseConnections": true,
                "error": r"the monitor\nhears nothing"
            }),
            json!({ "type": "PoolClosed", "address": address }),
            json!({ "type": "ConnectionCreated", "address": address, "connectionId": 42 }),
            json!({
                "type": "ConnectionReady", "address": address, "connectionId": 42, "durationMS": 1002.0034,
                "stagesMS": { "connect": 2.5, "hello": 1_000 }
            }),
            json!({
                "type": "ConnectionClosed", "address": address, "connectionId": 42, "reason": "error",
                "error": r"the cable\nis cut"
            }),
            json!({ "type": "ConnectionCheckOutStarted", "address": address }),
            json!({
                "type": "ConnectionCheckOutFailed", "address": address, "reason": "connectionError",
                "error": "connection 42 to db.example.com:27018 could not be established: connecting: refused",
                "durationMS": 1002.0034
            }),
            json!({ "type": "ConnectionCheckedOut", "address": address, "connectionId": 42, "durationMS": 1002.0034 }),
            json!({ "type": "ConnectionCheckedIn", "address": address, "connectionId": 42, "durationMS": 1002.0034 }),
        ];
        assert_eq!(written(lines), expected);
    }

    #[test]
    fn address_is_escaped() {
        let lines = JsonLines::new(Vec::new());
        let address = "a \"quoted\"\n\\ path\u{1}é";
        lines.on_event(&PoolEvent::PoolReady { address: address.into() });
        assert_eq!(written(lines), [json!({ "type": "PoolReady", "address": address })]);
    }

    #[test]
    fn options_at_their_defaults_are_an_empty_object() {
        let lines = JsonLines::new(Vec::new());
        lines.on_event(&PoolEvent::PoolCreated { address: "here".into(), options: PoolOptions::default() });
        assert_eq!(written(lines), [json!({ "type": "PoolCreated", "address": "here", "options": {} })]);
    }

    #[test]
    fn establishment_without_reported_stages_has_no_field_for_them() {
        let lines = JsonLines::new(Vec::new());
        let (duration, stages) = (Duration::ZERO, Arc::default());
        lines.on_event(&PoolEvent::ConnectionReady { address: "here".into(), connection_id: 1, duration, stages });
        let expected = json!({ "type": "ConnectionReady", "address": "here", "connectionId": 1, "durationMS": 0 });
        assert_eq!(written(lines), [expected]);
    }

    #[test]
    fn milliseconds_are_exact_and_short() {
        for (nanos, text) in [
            (0, "0"),
            (1, "0.000001"),
            (999_999, "0.999999"),
            (1_500_000, "1.5"),
            (20_000_000, "20"),
            (1_000_100, "1.0001"),
        ] {
            let mut buffer = Vec::new();
            milliseconds(&mut buffer, Duration::from_nanos(nanos));
            assert_eq!(String::from_utf8(buffer).unwrap(), text);
        }
    }

    #[test]
    fn lines_are_written_in_chunks_and_on_request() {
        let (sender, chunks) = std::sync::mpsc::channel();
        struct Chunks(std::sync::mpsc::Sender<usize>);
        impl Write for Chunks {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.send(bytes.len()).unwrap();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                self.0.send(0).unwrap();
                Ok(())
            }
        }
        let lines = JsonLines::new(Chunks(sender));
        let event = PoolEvent::PoolReady { address: "x".repeat(1_000).into() };
        while chunks.try_recv().is_err() {
            lines.on_event(&event);
        }
        lines.on_event(&event);
        assert!(chunks.try_recv().is_err());
        lines.flush().unwrap();
        assert!((1_000..1_100).contains(&chunks.try_recv().unwrap()));
        assert_eq!(chunks.try_recv(), Ok(0));
        lines.on_event(&event);
        drop(lines);
        assert!((1_000..1_100).contains(&chunks.try_recv().unwrap()));
    }

    #[test]
    fn first_error_stops_writing_and_is_reported_every_time() {
        #[derive(Debug)]
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"))
            }
            fn flush(&mut self) -> io::Result<()> {
                panic!("flushed after an error")
            }
        }
        let lines = JsonLines::new(Full);
        for _ in 0..5_000 {
            lines.on_event(&PoolEvent::PoolReady { address: "here".into() });
        }
        for outcome in [lines.flush(), lines.finish(), lines.clone().into_inner().map(drop)] {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::StorageFull, "the disk is full"));
        }
    }

    #[test]
    fn writer_that_panics_is_not_written_to_again() {
        struct Panics;
        impl Write for Panics {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                panic!("the writer panics")
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = JsonLines::new(Panics);
        lines.on_event(&PoolEvent::PoolReady { address: "here".into() });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lines.flush())).is_err());
        lines.on_event(&PoolEvent::PoolReady { address: "here".into() });
        assert_eq!(lines.finish().unwrap_err().to_string(), "the events' writer panicked");
    }

    #[test]
    fn events_after_finish_are_dropped() {
        let lines = JsonLines::new(Vec::new());
        lines.finish().unwrap();
        lines.on_event(&PoolEvent::PoolReady { address: "here".into() });
        lines.flush().unwrap();
        assert_eq!(lines.into_inner().unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}
