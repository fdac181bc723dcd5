//! The version of the server's API that the application declares.

use std::fmt;

/// The declared API (Stable API specification, "Options object"). It is sent with every command.
///
/// ```
/// use wharf::{Options, ServerApi, ServerApiVersion};
///
/// let api = ServerApi::new(ServerApiVersion::V1).strict(true);
/// let options = Options::new(["localhost"])?.server_api(api);
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct ServerApi {
    /// `apiVersion`.
    pub version: ServerApiVersion,
    /// `apiStrict`: whether the server refuses commands that are not part of the version. Not sent if it is not set.
    pub strict: Option<bool>,
    /// `apiDeprecationErrors`: whether the server refuses commands that are deprecated in the version. Not sent if it is
    /// not set.
    pub deprecation_errors: Option<bool>,
}

/// `apiVersion`: a version of the server's API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerApiVersion {
    /// Version `1`.
    V1,
}

impl ServerApiVersion {
    /// Returns the version as it is sent in commands.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "1",
        }
    }
}

impl fmt::Display for ServerApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl ServerApi {
    /// Creates the declaration of this version, with the server's defaults for everything else.
    pub fn new(version: ServerApiVersion) -> Self {
        Self { version, strict: None, deprecation_errors: None }
    }

    /// Sets [`strict`](Self#structfield.strict).
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = Some(strict);
        self
    }

    /// Sets [`deprecation_errors`](Self#structfield.deprecation_errors).
    pub fn deprecation_errors(mut self, errors: bool) -> Self {
        self.deprecation_errors = Some(errors);
        self
    }
}
