//! The version of the server's API that the application declares.

use std::fmt;

/// The declared API (Stable API specification, "Options object"). It is sent with every command.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct ServerApi {
    /// `apiVersion`.
    pub version: ServerApiVersion,
    /// `apiStrict`: refuse commands that are not part of the version. Not sent if it is not set.
    pub strict: Option<bool>,
    /// `apiDeprecationErrors`: refuse commands that are deprecated in the version. Not sent if it is not set.
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
    /// The version as commands carry it.
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
    /// The version alone.
    pub fn new(version: ServerApiVersion) -> Self {
        Self { version, strict: None, deprecation_errors: None }
    }

    /// `apiStrict`: whether the server refuses commands that are not part of the version.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = Some(strict);
        self
    }

    /// `apiDeprecationErrors`: whether the server refuses commands that are deprecated in the version.
    pub fn deprecation_errors(mut self, errors: bool) -> Self {
        self.deprecation_errors = Some(errors);
        self
    }
}
