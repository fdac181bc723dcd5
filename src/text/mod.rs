//! Text for people: the wording of errors and log messages, and whether anything reads the messages.
#[cfg(any(feature = "mongodb", feature = "serde"))]
pub(crate) mod given;
#[cfg(not(loom))]
pub(crate) mod logged;
pub(crate) mod milliseconds;
pub(crate) mod printable;
pub(crate) mod sentence;
#[cfg(feature = "mongodb")]
pub(crate) mod shortened;
