//! Commands and their time limits.

use std::fmt;
use std::time::Duration;

use bson::RawDocument;
use tokio::time::Instant;

use crate::endpoint::options::Options;
use crate::endpoint::wire::Flags;
use crate::endpoint::wire::op_msg::OutgoingSequence;
use crate::text::milliseconds::limit_for_server;

/// A command for a server, as raw BSON that is sent unchanged.
///
/// ```
/// use std::time::Duration;
/// use bson::rawdoc;
/// use wharf::endpoint::{Command, OutgoingSequence};
///
/// let insert = rawdoc! { "insert": "orders" };
/// let orders = [rawdoc! { "_id": 1 }, rawdoc! { "_id": 2 }];
/// let sequences = [OutgoingSequence::new("documents", &orders)];
/// let command = Command::new("shop", &insert).sequences(&sequences).timeout(Duration::from_millis(200));
/// # let _ = command;
/// ```
///
/// # Added elements
///
/// wharf appends `$db`, the API declared in [`Options::server_api`] and, with a time limit, `maxTimeMS`. It does not
/// search the document for these fields, so the document must not contain them. If a field appears twice, the behaviour
/// is undefined, and usually an error (Run Command specification, "RunCommand implementation details").
#[derive(Clone, Copy)]
#[must_use = "a command does nothing until it is run"]
pub struct Command<'a> {
    pub(super) database: &'a str,
    pub(super) body: &'a RawDocument,
    pub(super) sequences: &'a [OutgoingSequence<'a>],
    pub(super) flags: Flags,
    pub(super) limit: Limit,
    pub(super) appended: &'a [u8],
    round_trip_time: Duration,
    sends_max_time: bool,
}

/// Shows only the command's name: its document may hold secrets, such as a new user's password.
impl fmt::Debug for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.body.iter().next().and_then(Result::ok).map(|(name, _)| name);
        f.debug_struct("Command")
            .field("database", &self.database)
            .field("name", &name)
            .field("flags", &self.flags)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The time limit of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// The command has no limit of its own, so the options' limit applies. Without a limit in the options, the command
    /// may take as long as the server needs, although each read and write on the socket may be limited.
    Unset,
    /// The command may take as long as the server needs (`timeoutMS` of 0).
    Infinite,
    /// The limit starts when the command is run.
    For(Duration),
    /// The limit has started.
    Until {
        /// When the time runs out.
        at: Instant,
        /// The total time allowed.
        limit: Duration,
    },
}

impl Limit {
    /// Returns a limit of this length. Zero means no limit.
    pub fn of(timeout: Duration) -> Self {
        if timeout.is_zero() { Self::Infinite } else { Self::For(timeout) }
    }

    /// Returns the time that is left; `None` if no limit has started.
    pub fn left(self) -> Option<Duration> {
        match self {
            Self::Until { at, .. } => Some(at.saturating_duration_since(Instant::now())),
            Self::Unset | Self::Infinite | Self::For(_) => None,
        }
    }

    /// Returns the deadline and the length of the limit; `None` if no limit has started.
    pub fn deadline(self) -> Option<(Instant, Duration)> {
        match self {
            Self::Until { at, limit } => Some((at, limit)),
            Self::Unset | Self::Infinite | Self::For(_) => None,
        }
    }

    /// Returns the whole limit without starting it.
    pub fn unstarted(self) -> Self {
        match self {
            Self::Until { limit, .. } => Self::For(limit),
            other => other,
        }
    }

    /// Returns the whole limit, starting now, even if it has already started.
    pub fn refreshed(self) -> Self {
        self.unstarted().start()
    }

    /// Returns this limit or, if it is unset, the given limit.
    #[inline]
    pub fn or(self, timeout: Option<Duration>) -> Self {
        match (self, timeout) {
            (Self::Unset, Some(timeout)) => Self::of(timeout),
            (limit, _) => limit,
        }
    }

    /// Returns this limit or, if it is unset, `other`.
    #[cfg(feature = "gridfs")]
    pub fn or_limit(self, other: Self) -> Self {
        if self.is_set() { self } else { other }
    }

    /// Returns whether `timeoutMS` is set at all, even to no limit. If so, it replaces the limits of a single step or
    /// retry.
    pub fn is_set(self) -> bool {
        !matches!(self, Self::Unset)
    }

    /// Starts the clock. A deadline beyond the clock's range means no limit.
    pub fn start(self) -> Self {
        self.start_after(Duration::ZERO)
    }

    /// Like [`start`](Self::start), but for a caller that has already waited for this long.
    pub fn start_after(self, waited: Duration) -> Self {
        match self {
            Self::For(limit) => match Instant::now().checked_add(limit.saturating_sub(waited)) {
                Some(at) => Self::Until { at, limit },
                None => Self::Infinite,
            },
            running => running,
        }
    }
}

impl<'a> Command<'a> {
    /// Creates the command `body` for `database`.
    pub fn new(database: &'a str, body: &'a RawDocument) -> Self {
        Self {
            database,
            body,
            sequences: &[],
            flags: Flags::NONE,
            limit: Limit::Unset,
            appended: &[],
            round_trip_time: Duration::ZERO,
            sends_max_time: true,
        }
    }

    /// Sets the arguments that are sent as document sequences, outside the command's document (OP_MSG, "sections").
    pub fn sequences(mut self, sequences: &'a [OutgoingSequence<'a>]) -> Self {
        self.sequences = sequences;
        self
    }

    /// Appends encoded BSON elements to the command's document. They do not include a document's length and terminator.
    pub(crate) fn appended(mut self, elements: &'a [u8]) -> Self {
        self.appended = elements;
        self
    }

    /// Sends a CRC-32C checksum with the message. Servers verify the checksum. Over TLS, it is redundant.
    pub fn checksum(mut self) -> Self {
        self.flags = self.flags.with(Flags::CHECKSUM_PRESENT);
        self
    }

    /// Sets `timeoutMS`: how long the command may take in total, instead of [`Options::timeout`]. Zero means no limit.
    ///
    /// The remaining time is sent to the server as `maxTimeMS`, so the command's document must not contain that field.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = Limit::of(limit);
        self
    }

    /// Sets the shortest measured round trip to the server (`minRoundTripTime`).
    ///
    /// The round trip is subtracted from the time limit that is sent to the server. The command is sent only if more
    /// time than this is left. The default is zero, which is also what a monitor reports until it has measured twice.
    pub fn round_trip_time(mut self, least: Duration) -> Self {
        self.round_trip_time = least;
        self
    }

    /// Does not send the time limit to the server.
    ///
    /// Used for `getMore` on cursors that are not tailable, and for commands without `maxTimeMS` (CSOT, "Cursors").
    pub fn without_max_time(mut self) -> Self {
        self.sends_max_time = false;
        self
    }

    pub(crate) fn database(&self) -> &'a str {
        self.database
    }

    /// Returns the documents of all sequences, each with the name of its sequence.
    pub(crate) fn all_in_sequences(&self) -> impl Iterator<Item = (&'a str, &'a RawDocument)> {
        self.sequences.iter().flat_map(|sequence| {
            (0..sequence.documents.len())
                .filter_map(|place| Some((sequence.identifier, sequence.documents.get(place)?)))
        })
    }

    /// Returns the same command with another document.
    pub(crate) fn with_body(self, body: &'a RawDocument) -> Self {
        Self { body, ..self }
    }

    pub(crate) fn body(&self) -> &'a RawDocument {
        self.body
    }

    /// Returns the command's name, which is the name of its first field, or an empty string if there is no field.
    pub(crate) fn name(&self) -> &'a str {
        self.body.iter().next().and_then(Result::ok).map_or("", |(name, _)| name.as_str())
    }

    /// Returns the elements that are [appended](Self::appended).
    pub(crate) fn added(&self) -> &'a [u8] {
        self.appended
    }

    pub(crate) fn document_sequences(&self) -> &'a [OutgoingSequence<'a>] {
        self.sequences
    }

    /// Returns the command's limit or, if it has none, the options' limit. The clock starts now.
    #[inline]
    pub(crate) fn limit(&self, options: &Options) -> Limit {
        self.unstarted_limit(options).start()
    }

    /// Returns the command's own limit, which may not have started yet.
    pub(crate) fn own_limit(&self) -> Limit {
        self.limit
    }

    /// Returns the command's limit or, if it has none, the options' limit. Does not start it.
    #[inline]
    pub(crate) fn unstarted_limit(&self, options: &Options) -> Limit {
        self.limit.or(options.timeout)
    }

    /// Returns the same command with a limit that has already started.
    pub(crate) fn within(mut self, limit: Limit) -> Self {
        self.limit = limit;
        self
    }

    /// Sets a limit that has already started.
    pub(crate) fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
    }

    pub(super) fn with_flags(mut self, flags: Flags) -> Self {
        self.flags = self.flags.with(flags);
        self
    }

    /// Returns the `maxTimeMS` for a command with this much time left, or `None` if too little is left to send it.
    pub(super) fn max_time(&self, left: Duration) -> Option<MaxTime> {
        let for_server = left.checked_sub(self.round_trip_time).filter(|time| !time.is_zero())?;
        match i32::try_from(limit_for_server(for_server)) {
            Ok(milliseconds) if self.sends_max_time => Some(MaxTime::of(milliseconds.into())),
            // A limit that is too long for a server is not sent.
            _ => Some(MaxTime::NONE),
        }
    }
}

/// An encoded `maxTimeMS` element to append to a command, or no element.
#[derive(Debug, Clone, Copy)]
pub(super) struct MaxTime {
    element: [u8; MaxTime::LENGTH],
    len: usize,
}

impl MaxTime {
    /// The element's type (64-bit integer) and name.
    const START: &'static [u8] = b"\x12maxTimeMS\0";
    const LENGTH: usize = Self::START.len() + 8;

    /// No element: no limit is sent to the server.
    pub const NONE: Self = Self { element: [0; Self::LENGTH], len: 0 };

    fn of(milliseconds: i64) -> Self {
        let mut element = [0; Self::LENGTH];
        let (start, value) = element.split_at_mut(Self::START.len());
        start.copy_from_slice(Self::START);
        value.copy_from_slice(&milliseconds.to_le_bytes());
        Self { element, len: Self::LENGTH }
    }

    /// Returns the element's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.element[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn max_time(command: &Command<'_>, left: Duration) -> Option<Option<i64>> {
        command.max_time(left).map(|element| {
            if element.bytes().is_empty() {
                return None;
            }
            let mut document = (element.bytes().len() as u32 + 5).to_le_bytes().to_vec();
            document.extend_from_slice(element.bytes());
            document.push(0);
            Some(RawDocument::from_bytes(&document).unwrap().get_i64("maxTimeMS").unwrap())
        })
    }

    #[test]
    fn max_time_is_the_remaining_time_less_a_round_trip() {
        let body = rawdoc! { "ping": 1 };
        let command = Command::new("admin", &body);
        let ms = Duration::from_millis;
        assert_eq!(max_time(&command, ms(200)), Some(Some(200)));
        assert_eq!(max_time(&command, Duration::from_micros(300)), Some(Some(1)), "0 would be no limit");
        assert_eq!(max_time(&command, Duration::ZERO), None);
        let command = command.round_trip_time(ms(20));
        assert_eq!(max_time(&command, ms(200)), Some(Some(180)));
        assert_eq!(max_time(&command, ms(20)), None, "the round trip must be less than the time left");
        assert_eq!(max_time(&command, ms(21)), Some(Some(1)));
        let command = command.without_max_time();
        assert_eq!(max_time(&command, ms(200)), Some(None));
        assert_eq!(max_time(&command, ms(20)), None);
        assert_eq!(max_time(&Command::new("admin", &body), Duration::from_secs(1 << 40)), Some(None));
    }
}
