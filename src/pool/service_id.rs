//! The identifier of a service behind a load balancer.

use std::fmt;

/// Identifies a service behind a load balancer: the 12 bytes of `serviceId`, a server's `ObjectId`. It is displayed in
/// hexadecimal.
///
/// With the `mongodb` feature, it converts to and from `bson::oid::ObjectId`. A pool of connections to anything other
/// than MongoDB may use any 12 bytes.
///
/// ```
/// let service = wharf::ServiceId::from_bytes(*b"twelve bytes");
/// assert_eq!(service.to_string(), "7477656c7665206279746573");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId([u8; 12]);

impl ServiceId {
    /// Returns the identifier with these bytes.
    pub const fn from_bytes(bytes: [u8; 12]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub const fn bytes(self) -> [u8; 12] {
        self.0
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({self})")
    }
}
