//! The version of the server's API that the application declares.

/// The declared API (Versioned API specification).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerApi {
    /// `apiVersion`: "1".
    pub version: String,
    /// `apiStrict`: refuse commands that are not part of the version.
    pub strict: Option<bool>,
    /// `apiDeprecationErrors`: refuse commands that are deprecated in the version.
    pub deprecation_errors: Option<bool>,
}
