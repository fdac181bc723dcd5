//! A type for text that must not be printed.

use std::fmt;

use zeroize::Zeroizing;

/// A password or another secret. It prints as asterisks, and its memory is wiped when it is dropped.
///
/// ```
/// use wharf::Secret;
///
/// let password = Secret::new("swordfish");
/// assert_eq!(format!("{password:?}"), "***");
/// assert_eq!(password.reveal(), "swordfish");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps `text` as a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(Zeroizing::new(text.into()))
    }

    /// Returns the text. The caller must not print or keep it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
