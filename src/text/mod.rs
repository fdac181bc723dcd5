//! Text for people to read: what errors and log messages say, and whether anything reads them.
#[cfg(not(loom))]
pub(crate) mod logged;
pub(crate) mod milliseconds;
pub(crate) mod printable;
pub(crate) mod sentence;
#[cfg(feature = "mongodb")]
pub(crate) mod shortened;
