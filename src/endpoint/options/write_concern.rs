//! Write concerns.

use std::time::Duration;

use bson::RawDocumentBuf;
use bson::raw::cstr;

use super::InvalidOption;
use crate::text::milliseconds::limit_for_server;

/// The conditions under which a write is acknowledged (Read and Write Concern specification). For a field that is not
/// set, the server's default applies.
///
/// A pool sends commands unchanged. A [`Client`](crate::Client) adds the write concern to writes that have none.
///
/// ```
/// use wharf::{Options, WriteConcern};
///
/// let majority = WriteConcern::majority().journal(true);
/// let options = Options::new(["localhost"])?.write_concern(majority);
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct WriteConcern {
    /// `w`: which servers must acknowledge the write.
    pub w: Option<Acknowledgement>,
    /// `journal`: whether the write must be in the journal.
    pub journal: Option<bool>,
    /// `wTimeoutMS`: how long the servers may take to replicate the write; zero means no limit. Deprecated in favour of
    /// `timeoutMS`: an operation on a [`Client`](crate::Client) with `timeoutMS` ignores it.
    pub w_timeout: Option<Duration>,
}

/// `w`: which servers must acknowledge a write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "Acknowledgment")]
pub enum Acknowledgement {
    /// This number of servers.
    ///
    /// With 0, no server acknowledges the write, and the client does not wait for a reply. The write succeeds as soon
    /// as it is sent, its counts are zero, and it is not repeated. The write does not belong to a session, so running
    /// it in an application's session is an error ([`SessionError::UnacknowledgedWrite`](crate::client::SessionError)).
    #[doc(alias = "Nodes")]
    Servers(u32),
    /// `majority`, or a mode that the replica set's configuration defines.
    Mode(String),
}

impl WriteConcern {
    /// Creates a write concern that requires a majority of a replica set's servers to acknowledge the write.
    pub fn majority() -> Self {
        Self::default().w(Acknowledgement::Mode("majority".to_owned()))
    }

    /// Sets [`w`](Self#structfield.w).
    pub fn w(mut self, acknowledgement: Acknowledgement) -> Self {
        self.w = Some(acknowledgement);
        self
    }

    /// Sets [`journal`](Self#structfield.journal).
    pub fn journal(mut self, journal: bool) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Sets [`w_timeout`](Self#structfield.w_timeout).
    pub fn w_timeout(mut self, limit: Duration) -> Self {
        self.w_timeout = Some(limit);
        self
    }

    /// Returns the same write concern without `wTimeoutMS`, which an operation with `timeoutMS` ignores (CSOT,
    /// "Validation and Overrides").
    pub(crate) fn without_w_timeout(self) -> Self {
        Self { w_timeout: None, ..self }
    }

    /// Returns the value of a command's `writeConcern`, or `None` if nothing is set.
    pub(crate) fn document(&self) -> Option<RawDocumentBuf> {
        let mut document = RawDocumentBuf::new();
        match &self.w {
            Some(Acknowledgement::Servers(servers)) => {
                document.append(cstr!("w"), i32::try_from(*servers).unwrap_or(i32::MAX));
            }
            Some(Acknowledgement::Mode(mode)) => document.append(cstr!("w"), mode.as_str()),
            None => {}
        }
        if let Some(journal) = self.journal {
            document.append(cstr!("j"), journal);
        }
        if let Some(limit) = self.w_timeout {
            document.append(cstr!("wtimeout"), limit_for_server(limit));
        }
        (!document.is_empty()).then_some(document)
    }

    pub(super) fn check(&self) -> Result<(), InvalidOption> {
        match &self.w {
            Some(Acknowledgement::Mode(mode)) if mode.is_empty() => {
                Err(InvalidOption::because("w", "must be a number of servers or the name of a mode"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn check_together(&self) -> Result<(), InvalidOption> {
        match (&self.w, self.journal) {
            (Some(Acknowledgement::Servers(0)), Some(true)) => {
                Err(InvalidOption::because("journal", "cannot be true with w=0"))
            }
            _ => Ok(()),
        }
    }
}
