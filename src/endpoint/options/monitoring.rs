//! The ways in which a client monitors servers.

/// `serverMonitoringMode`: how a monitor learns of changes (Server Monitoring specification).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerMonitoringMode {
    /// `auto`: `poll` if the application runs as a cloud function, `stream` elsewhere.
    #[default]
    Auto,
    /// `stream`: the server reports changes.
    Stream,
    /// `poll`: the monitor asks at intervals.
    Poll,
}

impl ServerMonitoringMode {
    pub(super) const ALL: [Self; 3] = [Self::Auto, Self::Stream, Self::Poll];

    /// Returns the mode's name in connection strings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Stream => "stream",
            Self::Poll => "poll",
        }
    }
}
