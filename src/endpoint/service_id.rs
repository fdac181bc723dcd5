//! Conversions between the pool's identifier for a service and BSON's object ID.

use bson::oid::ObjectId;

use crate::pool::service_id::ServiceId;

impl From<ObjectId> for ServiceId {
    fn from(id: ObjectId) -> Self {
        Self::from_bytes(id.bytes())
    }
}

impl From<ServiceId> for ObjectId {
    fn from(id: ServiceId) -> Self {
        Self::from_bytes(id.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_has_the_bytes_and_the_text_of_its_object_id() {
        let id: ObjectId = "0123456789abcdef01234567".parse().unwrap();
        let service = ServiceId::from(id);
        assert_eq!(service.to_string(), id.to_hex());
        assert_eq!(ObjectId::from(service), id);
    }
}
