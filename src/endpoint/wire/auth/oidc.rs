//! The MONGODB-OIDC messages (Authentication specification, "MONGODB-OIDC", "Conversation").
//!
//! Messages are BSON documents in the payloads of `saslStart` and `saslContinue`. A client with an access token sends a
//! single message, [`token`]. A client without a token first asks which identity provider to use ([`principal`]), and
//! reads the answer ([`read_idp`]). It obtains a token from that provider, and then sends the token.

use bson::raw::cstr;
use bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};

use super::document_with_room;
use crate::endpoint::options::IdpInfo;
use crate::endpoint::wire::{PeerText, WireError};

/// Returns `JwtStepRequest`, with the access token.
#[must_use]
pub fn token(jwt: &str) -> RawDocumentBuf {
    let mut message = document_with_room(16 + jwt.len());
    message.append(cstr!("jwt"), jwt);
    message
}

/// Returns `PrincipalStepRequest`, with the name of the user whose identity provider is requested.
#[must_use]
pub fn principal(username: Option<&str>) -> RawDocumentBuf {
    let mut message = RawDocumentBuf::new();
    if let Some(username) = username {
        message.append(cstr!("n"), username);
    }
    message
}

/// Reads the server's answer to [`principal`].
///
/// # Errors
///
/// Returns [`WireError::Document`] if the payload is not a BSON document, and [`WireError::ReplyField`] if a field has
/// the wrong type or the issuer is missing.
pub fn read_idp(payload: &[u8]) -> Result<IdpInfo, WireError> {
    let document = RawDocument::from_bytes(payload)
        .map_err(|error| WireError::Document { field: "payload", reason: PeerText::of(error) })?;
    let text = |field: &'static str| match document.get(field) {
        Ok(Some(RawBsonRef::String(text))) => Ok(Some(text.to_owned())),
        Ok(None | Some(RawBsonRef::Null)) => Ok(None),
        Ok(Some(other)) => Err(refuse(field, format!("{:?}", other.element_type()), "a string")),
        Err(error) => Err(refuse(field, error.to_string(), "a string")),
    };
    let issuer = text("issuer")?.ok_or_else(|| refuse("issuer", "missing".to_owned(), "a string"))?;
    let client_id = text("clientId")?;
    let request_scopes = match document.get("requestScopes") {
        Ok(Some(RawBsonRef::Array(scopes))) => read_scopes(scopes)?,
        Ok(None | Some(RawBsonRef::Null)) => Vec::new(),
        Ok(Some(other)) => return Err(refuse("requestScopes", format!("{:?}", other.element_type()), SCOPES)),
        Err(error) => return Err(refuse("requestScopes", error.to_string(), SCOPES)),
    };
    Ok(IdpInfo { issuer, client_id, request_scopes })
}

const SCOPES: &str = "an array of strings";

fn read_scopes(scopes: &RawArray) -> Result<Vec<String>, WireError> {
    let read = |scope: Result<RawBsonRef<'_>, bson::error::Error>| match scope {
        Ok(RawBsonRef::String(scope)) => Ok(scope.to_owned()),
        Ok(other) => Err(refuse("requestScopes", format!("with a {:?}", other.element_type()), SCOPES)),
        Err(error) => Err(refuse("requestScopes", error.to_string(), SCOPES)),
    };
    scopes.into_iter().map(read).collect()
}

fn refuse(field: &'static str, value: String, allowed: &'static str) -> WireError {
    WireError::ReplyField { field, value: value.into(), allowed }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD as BASE64;
    use bson::rawdoc;

    use super::*;

    #[test]
    fn messages_match_the_specification() {
        assert_eq!(token("abcd1234").as_bytes(), BASE64.decode("FwAAAAJqd3QACQAAAGFiY2QxMjM0AAA=").unwrap());
        assert_eq!(principal(Some("myidp")).as_bytes(), BASE64.decode("EgAAAAJuAAYAAABteWlkcAAA").unwrap());
        assert_eq!(principal(None), rawdoc! {});
        let payload = "WQAAAAJpc3N1ZXIADwAAAGh0dHBzOi8vaXNzdWVyAAJjbGllbnRJZAAFAAAAYWJjZAAEcmVxdWVzdFNjb3BlcwAXAAAAAjAAAgAA\
                       AGEAAjEAAgAAAGIAAAA=";
        let idp = read_idp(&BASE64.decode(payload).unwrap()).unwrap();
        assert_eq!((&*idp.issuer, idp.client_id.as_deref()), ("https://issuer", Some("abcd")));
        assert_eq!(idp.request_scopes, ["a", "b"]);
    }

    #[test]
    fn identity_provider_needs_only_an_issuer() {
        let idp = read_idp(rawdoc! { "issuer": "i" }.as_bytes()).unwrap();
        assert_eq!(idp, IdpInfo { issuer: "i".to_owned(), client_id: None, request_scopes: Vec::new() });
    }

    #[test]
    fn invalid_identity_provider_is_refused() {
        for (document, expected) in [
            (rawdoc! {}, "issuer"),
            (rawdoc! { "issuer": 1 }, "issuer"),
            (rawdoc! { "issuer": "i", "clientId": true }, "clientId"),
            (rawdoc! { "issuer": "i", "requestScopes": "a" }, "requestScopes"),
            (rawdoc! { "issuer": "i", "requestScopes": ["a", 1] }, "requestScopes"),
        ] {
            let Err(WireError::ReplyField { field, .. }) = read_idp(document.as_bytes()) else {
                panic!("{document:?}")
            };
            assert_eq!(field, expected);
        }
        for payload in [&b""[..], b"\x05\0\0\0", b"\x08\0\0\0\x02i\0"] {
            assert!(matches!(read_idp(payload), Err(WireError::Document { .. })));
        }
    }
}
