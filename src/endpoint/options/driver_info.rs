//! The metadata that a wrapping library adds to the handshake.

/// A library that wraps wharf (handshake specification, "Supporting Wrapping Libraries").
///
/// ```
/// use wharf::{DriverInfo, Options};
///
/// let library = DriverInfo::new("shop-client").version("1.2.0");
/// let options = Options::new(["localhost"])?.driver_info(library);
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct DriverInfo {
    /// The library's name.
    pub name: String,
    /// The library's version.
    pub version: Option<String>,
    /// The library's platform.
    pub platform: Option<String>,
}

impl DriverInfo {
    /// Creates metadata for a library with this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), version: None, platform: None }
    }

    /// Sets [`version`](Self#structfield.version).
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Sets [`platform`](Self#structfield.platform).
    pub fn platform(mut self, platform: impl Into<String>) -> Self {
        self.platform = Some(platform.into());
        self
    }
}
