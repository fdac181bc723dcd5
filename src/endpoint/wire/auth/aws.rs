//! The MONGODB-AWS messages (Authentication specification, "MONGODB-AWS"), and their signature.
//!
//! Messages are BSON documents in the payloads of `saslStart` and `saslContinue`:
//!
//! 1. the client sends a nonce ([`client_first`]),
//! 2. the server extends the nonce and names a Security Token Service host ([`ServerFirst`]),
//! 3. the client signs a request to that host, but does not send it ([`client_second`]). The server sends it on the
//!    client's behalf, and learns the client's identity from the answer.
//!
//! The signature is AWS Signature Version 4. The inputs to [`signature`] are general enough for AWS's published test
//! vectors.

use std::fmt;
use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::raw::cstr;
use bson::spec::BinarySubtype;
use bson::{RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::document_with_room;
use crate::endpoint::wire::{PeerText, WireError};

/// The length of the client's nonce, and of the server's addition to it, in bytes.
pub const NONCE_LENGTH: usize = 32;

/// The maximum length of a host, in bytes.
const MAX_HOST: usize = 255;

/// The region of hosts whose names contain no region.
const DEFAULT_REGION: &str = "us-east-1";

/// The body of the signed request.
const BODY: &str = "Action=GetCallerIdentity&Version=2011-06-15";

/// `gs2-cb-flag`: the letter `n`, for no channel binding. No server supports channel binding.
const NO_CHANNEL_BINDING: i32 = b'n' as i32;

/// Returns the first message, with the client's nonce.
#[must_use]
pub fn client_first(nonce: &[u8; NONCE_LENGTH]) -> RawDocumentBuf {
    let mut message = RawDocumentBuf::new();
    message.append(cstr!("r"), RawBsonRef::Binary(RawBinaryRef { subtype: BinarySubtype::Generic, bytes: nonce }));
    message.append(cstr!("p"), NO_CHANNEL_BINDING);
    message
}

/// The server's answer to the first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFirst {
    /// The client's nonce, followed by the same number of bytes from the server.
    pub nonce: [u8; 2 * NONCE_LENGTH],
    /// The Security Token Service host.
    pub host: String,
}

impl ServerFirst {
    /// Reads the answer to a first message that contained `client_nonce`.
    ///
    /// # Errors
    ///
    /// Returns [`WireError::Document`] if the payload is not a BSON document. Returns [`WireError::ReplyField`] if the
    /// nonce does not extend the client's nonce, or if the host is not a series of labels separated by periods, 1 to
    /// 255 bytes long in total.
    pub fn read(payload: &[u8], client_nonce: &[u8; NONCE_LENGTH]) -> Result<Self, WireError> {
        let document = RawDocument::from_bytes(payload)
            .map_err(|error| WireError::Document { field: "payload", reason: PeerText::of(error) })?;
        let nonce = match document.get("s") {
            Ok(Some(RawBsonRef::Binary(RawBinaryRef { bytes, .. }))) => bytes,
            other => return Err(refuse("s (server nonce)", kind(other), "64 bytes of binary data")),
        };
        let length = || refuse("s (server nonce)", format!("{} bytes", nonce.len()), "64 bytes of binary data");
        let nonce: [u8; 2 * NONCE_LENGTH] = nonce.try_into().map_err(|_| length())?;
        if nonce[..NONCE_LENGTH] != *client_nonce {
            let allowed = "the client's nonce followed by the server's";
            return Err(refuse("s (server nonce)", "another conversation's".to_owned(), allowed));
        }
        let host = match document.get("h") {
            Ok(Some(RawBsonRef::String(host))) => host,
            other => return Err(refuse("h (sts host)", kind(other), "a host's name")),
        };
        region(host)?;
        Ok(Self { nonce, host: host.to_owned() })
    }
}

fn refuse(field: &'static str, value: String, allowed: &'static str) -> WireError {
    WireError::ReplyField { field, value: value.into(), allowed }
}

fn kind(value: Result<Option<RawBsonRef<'_>>, bson::error::Error>) -> String {
    match value {
        Ok(Some(value)) => format!("{:?}", value.element_type()),
        Ok(None) => "missing".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Returns the region of a Security Token Service host: its second label, if any.
///
/// # Errors
///
/// Returns [`WireError::ReplyField`] if the host is empty, is longer than 255 bytes, or has an empty label. The only
/// allowed characters are letters, digits, hyphens, underscores, periods, and a colon before a port. Other characters
/// are refused, because the host becomes a line of the signed text, and the region becomes part of the scope, in which
/// slashes and commas are separators.
pub fn region(host: &str) -> Result<&str, WireError> {
    const FIELD: &str = "h (sts host)";
    if host.is_empty() || host.len() > MAX_HOST {
        return Err(refuse(FIELD, format!("{} bytes", host.len()), "1 to 255 bytes"));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
    if !host.bytes().all(is_allowed) {
        return Err(refuse(FIELD, format!("{host:?}"), "of letters, digits, periods, hyphens, underscores and colons"));
    }
    if host.split('.').any(str::is_empty) {
        return Err(refuse(FIELD, format!("{host:?}"), "without empty labels"));
    }
    // The two names of the service's global endpoint. Host names are case-insensitive.
    let is_global = ["sts.amazonaws.com", "aws.amazonaws.com"].iter().any(|global| host.eq_ignore_ascii_case(global));
    match host.split('.').nth(1) {
        Some(second) if !is_global => match second.split_once(':') {
            // A port follows the last label.
            Some((region, _)) => Ok(region),
            None => Ok(second),
        },
        _ => Ok(DEFAULT_REGION),
    }
}

/// The keys of an identity, borrowed while a message is built from them.
#[derive(Clone, Copy)]
pub struct AccessKeys<'a> {
    /// The access key's identifier, which is sent to the server.
    pub access_key_id: &'a str,
    /// The secret access key, which is used only to sign and is never sent.
    pub secret_access_key: &'a str,
    /// The session token of temporary credentials, which is sent to the server.
    pub session_token: Option<&'a str>,
}

/// Returns the second message: the `Authorization` header of a request for the client's identity, signed at `now`.
///
/// # Errors
///
/// Returns [`WireError::ReplyField`] if the host is invalid, which [`ServerFirst::read`] rules out.
pub fn client_second(server: &ServerFirst, keys: AccessKeys<'_>, now: Timestamp) -> Result<RawDocumentBuf, WireError> {
    let nonce = BASE64.encode(server.nonce);
    let date = now.to_string();
    let mut headers = vec![
        ("content-length", "43"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("host", server.host.as_str()),
        ("x-amz-date", date.as_str()),
    ];
    headers.extend(keys.session_token.map(|token| ("x-amz-security-token", token)));
    headers.extend([("x-mongodb-gs2-cb-flag", "n"), ("x-mongodb-server-nonce", nonce.as_str())]);
    let request = CanonicalRequest { method: "POST", path: "/", query: "", headers: &headers, body: BODY.as_bytes() };
    let scope = Scope { date: &date, region: region(&server.host)?, service: "sts" };
    let signature = signature(&request, scope, keys.secret_access_key);
    let AccessKeys { access_key_id, session_token, .. } = keys;
    let names = request.signed_headers();
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={access_key_id}/{}, SignedHeaders={names}, Signature={signature}",
        scope.text()
    );

    let room = 64 + authorization.len() + date.len() + session_token.map_or(0, str::len);
    let mut message = document_with_room(room);
    message.append(cstr!("a"), authorization);
    message.append(cstr!("d"), date.as_str());
    if let Some(token) = session_token {
        message.append(cstr!("t"), token);
    }
    Ok(message)
}

/// A request in the form that is signed, which AWS calls the canonical request. Debug output omits the values of
/// headers, because one may be a session token.
#[derive(Clone, Copy)]
pub struct CanonicalRequest<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The absolute path, already encoded.
    pub path: &'a str,
    /// The query, already encoded and in order.
    pub query: &'a str,
    /// The headers, with names in lower case and in order.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
}

impl fmt::Debug for CanonicalRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, path, query: _, headers: _, body } = self;
        f.debug_struct("CanonicalRequest")
            .field("method", method)
            .field("path", path)
            .field("headers", &self.signed_headers())
            .field("body_bytes", &body.len())
            .finish_non_exhaustive()
    }
}

impl CanonicalRequest<'_> {
    fn signed_headers(&self) -> String {
        self.headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";")
    }

    fn hash(&self) -> String {
        let Self { method, path, query, headers, body } = self;
        // This is allocated in full, because the headers may include a session token, and growing would leave behind a
        // copy of it.
        let length = headers.iter().map(|(name, value)| 2 * name.len() + value.len() + 3).sum::<usize>();
        let length = length + method.len() + path.len() + query.len() + 80;
        let mut text = Zeroizing::new(String::with_capacity(length));
        for part in [method, path, query] {
            text.push_str(part);
            text.push('\n');
        }
        for (name, value) in *headers {
            for part in [name, ":", value, "\n"] {
                text.push_str(part);
            }
        }
        text.push('\n');
        text.push_str(&self.signed_headers());
        text.push('\n');
        text.push_str(&hex(&Sha256::digest(body)));
        hex(&Sha256::digest(text.as_bytes()))
    }
}

/// The scope of a signature.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The time of the signature, in the format of [`Timestamp`]: its first eight characters are the date.
    pub date: &'a str,
    /// The region.
    pub region: &'a str,
    /// The service.
    pub service: &'a str,
}

impl Scope<'_> {
    fn day(&self) -> &str {
        self.date.get(..8).unwrap_or(self.date)
    }

    fn text(&self) -> String {
        format!("{}/{}/{}/aws4_request", self.day(), self.region, self.service)
    }
}

/// Returns the signature of a request, in hexadecimal digits (AWS Signature Version 4).
#[must_use]
pub fn signature(request: &CanonicalRequest<'_>, scope: Scope<'_>, secret_access_key: &str) -> String {
    // This is allocated in full from the start, because growing would leave behind a copy that is never wiped.
    let mut first = Zeroizing::new(Vec::with_capacity(4 + secret_access_key.len()));
    first.extend_from_slice(b"AWS4");
    first.extend_from_slice(secret_access_key.as_bytes());
    let mut key = keyed_hash(&first, scope.day());
    for part in [scope.region, scope.service, "aws4_request"] {
        key = keyed_hash(&*key, part);
    }
    let to_sign = format!("AWS4-HMAC-SHA256\n{}\n{}\n{}", scope.date, scope.text(), request.hash());
    hex(&*keyed_hash(&*key, &to_sign))
}

fn keyed_hash(key: &[u8], text: &str) -> Zeroizing<[u8; 32]> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("BUG: HMAC refused a key");
    mac.update(text.as_bytes());
    Zeroizing::new(mac.finalize().into_bytes().into())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("BUG: writing to a string failed");
        text
    })
}

/// A time, in whole seconds since 1970. It is displayed in AWS's format, `YYYYMMDDTHHMMSSZ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.0 / 86_400);
        let second = self.0 % 86_400;
        write!(f, "{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", second / 3600, second / 60 % 60, second % 60)
    }
}

impl Timestamp {
    /// Parses an RFC 3339 time in UTC, such as `2026-01-31T12:00:00Z`. Drops fractions of seconds. Returns `None` if
    /// the text is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('Z')?;
        let (text, fraction) = text.split_once('.').unwrap_or((text, "0"));
        if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) || text.len() != 19 {
            return None;
        }
        if !text.bytes().zip(*b"0000-00-00T00:00:00").all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            other => byte == other,
        }) {
            return None;
        }
        let number = |range: std::ops::Range<usize>| text[range].parse::<u64>().ok();
        let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
        let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
        let days = days_before(year, month, day)?;
        // A leap second is numbered 60.
        (hour < 24 && minute < 60 && second <= 60).then(|| Self(days * 86_400 + hour * 3600 + minute * 60 + second))
    }
}

/// Returns the date (year, month, day) that is `days` days after 1 January 1970, in the Gregorian calendar.
///
/// Each year is counted from March, so that a leap day comes last. Every 400-year cycle has 146,097 days.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

/// Returns the number of days from 1 January 1970 to a date, or `None` if the date does not exist.
fn days_before(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    let from_march = year - u64::from(month <= 2);
    let (era, year_of_era) = (from_march / 400, from_march % 400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    (date_of(days) == (year, month, day)).then_some(days)
}

#[cfg(test)]
#[path = "aws_tests.rs"]
mod tests;
