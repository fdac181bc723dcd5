//! Certificates and OCSP responses that OpenSSL generated.

use wharf::unstable::wire::ocsp::{CLOCK_SKEW, Certificate, MAX_AGE, OcspError, OcspResponse, ResponderId, Status};

const GOOD: &[u8] = include_bytes!("../../../fuzz/corpus/ocsp-good.bin");
const REVOKED: &[u8] = include_bytes!("../../../fuzz/corpus/ocsp-revoked-delegated.bin");
const UNKNOWN: &[u8] = include_bytes!("../../../fuzz/corpus/ocsp-unknown.bin");
const AUTHORITY: &[u8] = include_bytes!("../../../fuzz/corpus/certificate-authority.bin");
const SERVER: &[u8] = include_bytes!("../../../fuzz/corpus/certificate-must-staple.bin");
const RESPONDER: &[u8] = include_bytes!("../../../fuzz/corpus/certificate-responder.bin");

/// When the responses were created, and how long they are valid, in seconds.
const MADE: u64 = 1_795_269_133;
const WEEK: u64 = 7 * 86_400;

fn certificate(der: &'static [u8]) -> Certificate<'static> {
    Certificate::read(der).unwrap()
}

fn response(der: &'static [u8]) -> OcspResponse<'static> {
    OcspResponse::read(der).unwrap()
}

fn status(response: &OcspResponse<'_>, now: u64) -> Result<Status, OcspError> {
    response.status_of(&certificate(SERVER), certificate(AUTHORITY).public_key, now)
}

#[test]
fn must_staple_is_read_from_certificates() {
    assert_eq!([AUTHORITY, SERVER, RESPONDER].map(|der| certificate(der).must_staple), [false, true, false]);
    // The leading zero byte keeps the serial number from being negative.
    assert_eq!(certificate(SERVER).serial, [0, 0xf1, 0xe2, 0xd3, 0xc4, 0xb5, 0xa6, 0x97]);
    assert_eq!(certificate(SERVER).issuer, certificate(AUTHORITY).subject);
}

#[test]
fn responses_apply_only_to_their_certificate_and_issuer() {
    for (der, said) in [(GOOD, Status::Good), (REVOKED, Status::Revoked)] {
        assert_eq!(status(&response(der), MADE), Ok(said));
        assert_eq!(response(der).entries[0].next_update, Some(MADE + WEEK));
    }
    // With a different issuer, or for a different certificate, the response does not apply.
    let (server, authority) = (certificate(SERVER), certificate(AUTHORITY));
    let not_covered = Err(OcspError::NotCovered);
    assert_eq!(response(GOOD).status_of(&server, server.public_key, MADE), not_covered);
    assert_eq!(response(GOOD).status_of(&certificate(RESPONDER), authority.public_key, MADE), not_covered);
    let other_issuer = Certificate { issuer: server.subject, ..server };
    assert_eq!(response(GOOD).status_of(&other_issuer, authority.public_key, MADE), not_covered);
    assert_eq!(status(&response(UNKNOWN), MADE), Ok(Status::Unknown));
}

#[test]
fn signers_are_identified_by_name_or_key() {
    let (authority, responder) = (certificate(AUTHORITY), certificate(RESPONDER));
    for (der, signer, other) in [(GOOD, authority, responder), (REVOKED, responder, authority)] {
        let id = response(der).responder;
        assert!(id.is(signer.subject, signer.public_key));
        assert!(!id.is(other.subject, other.public_key));
        // The part of the signer that the id does not contain may differ.
        let by_name = matches!(id, ResponderId::Name(_));
        assert_eq!(id.is(signer.subject, other.public_key), by_name);
        assert_eq!(id.is(other.subject, signer.public_key), !by_name);
    }
    assert!(response(GOOD).certificates.is_empty());
    assert_eq!(response(REVOKED).certificates, [RESPONDER]);
}

#[test]
fn validity_is_exact_to_the_second() {
    let mut response = response(GOOD);
    let next_update = MADE + WEEK;
    assert_eq!(status(&response, next_update - 1), Ok(Status::Good));
    let expired = |next_update, now| Err(OcspError::Expired { next_update, now });
    assert_eq!(status(&response, next_update), expired(next_update, next_update));
    let early = MADE - CLOCK_SKEW;
    assert_eq!(status(&response, early), Ok(Status::Good));
    let not_yet = Err(OcspError::NotYetValid { this_update: MADE, now: early - 1 });
    assert_eq!(status(&response, early - 1), not_yet);
    response.entries[0].next_update = None;
    assert_eq!(status(&response, MADE + MAX_AGE - 1), Ok(Status::Good));
    assert_eq!(status(&response, MADE + MAX_AGE), expired(MADE + MAX_AGE, MADE + MAX_AGE));
    response.entries[0].this_update = u64::MAX;
    assert!(matches!(status(&response, u64::MAX), Err(OcspError::Expired { .. })));
}

#[test]
fn other_response_type_is_refused() {
    const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
    let at = GOOD.windows(BASIC.len()).position(|bytes| bytes == BASIC).unwrap();
    let mut other = GOOD.to_vec();
    other[at + BASIC.len() - 1] = 2;
    assert_eq!(OcspResponse::read(&other), Err(OcspError::Unsupported { what: "a type" }));
}

#[test]
fn truncated_input_is_refused() {
    for der in [GOOD, REVOKED, UNKNOWN] {
        for end in 0..der.len() {
            let error = OcspResponse::read(&der[..end]).unwrap_err();
            assert!(matches!(error, OcspError::Malformed { .. }), "{end}: {error}");
        }
    }
    for end in 0..SERVER.len() {
        Certificate::read(&SERVER[..end]).unwrap_err();
    }
}
