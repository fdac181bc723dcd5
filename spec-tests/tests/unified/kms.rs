//! The structure of KMS providers. This runner checks the structure, but does not use the providers.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::format::Object;

/// KMS providers that are well-formed.
#[derive(Debug, Clone)]
pub struct KmsProviders;

impl<'de> Deserialize<'de> for KmsProviders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        for (name, fields) in Object::deserialize(deserializer)? {
            let (kind, named) = name.split_once(':').map_or((&*name, None), |(kind, name)| (kind, Some(name)));
            let allowed: &[&str] = match kind {
                "aws" => &["accessKeyId", "secretAccessKey", "sessionToken"],
                "azure" => &["tenantId", "clientId", "clientSecret", "identityPlatformEndpoint", "accessToken"],
                "gcp" => &["email", "privateKey", "endpoint", "accessToken"],
                "kmip" => &["endpoint"],
                "local" => &["key"],
                _ => return Err(D::Error::custom(format!("{name} is no KMS provider"))),
            };
            let is_word = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let is_placeholder = |value: &Value| {
                value.as_object().is_some_and(|object| object.len() == 1 && object.contains_key("$$placeholder"))
            };
            let is_allowed = |(name, value): (&String, &Value)| {
                allowed.contains(&&**name) && (value.is_string() || is_placeholder(value))
            };
            if !named.is_none_or(is_word) || !fields.as_object().is_some_and(|fields| fields.iter().all(is_allowed)) {
                return Err(D::Error::custom(format!("the KMS provider {name} is malformed")));
            }
        }
        Ok(Self)
    }
}
