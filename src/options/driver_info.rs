//! What a library that wraps wharf adds to the handshake's metadata.

/// A library that wraps wharf (handshake specification, "Supporting Wrapping Libraries").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    /// The library's name.
    pub name: String,
    /// The library's version.
    pub version: Option<String>,
    /// The library's platform.
    pub platform: Option<String>,
}
