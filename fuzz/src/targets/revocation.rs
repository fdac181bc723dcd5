//! The response that a TLS server staples to its handshake, and the certificate that the response is about.

use wharf::unstable::wire::ocsp::{Certificate, OcspError, OcspResponse, PublicKey, ResponderId, Status};

use crate::Target;
use crate::seeds::{CERTIFICATES, OCSP_RESPONSES};

pub const OCSP: Target = Target {
    name: "ocsp",
    run: ocsp,
    seeds: || OCSP_RESPONSES.map(<[u8]>::to_vec).into(),
    mend: outer_length,
    words: &[
        b"\x30\x80",
        b"\x30\x82\xff\xff",
        b"\x30\x84\xff\xff\xff\xff",
        b"\x0a\x01\x00",
        b"\x80\x00",
        b"\x82\x00",
        b"\xa1\x11\x18\x0f20260101000000Z",
        b"\x18\x0f20991231235960Z",
        b"\x02\x01\x00",
        b"\x03\x01\x00",
        b"\x05\x2b\x0e\x03\x02\x1a",
    ],
};

fn ocsp(bytes: &[u8]) -> bool {
    let Ok(response) = OcspResponse::read(bytes) else { return false };
    // The signed part is exactly what was received: one element and nothing else.
    assert!(is_within(response.signed, bytes) && response.signed[0] == 0x30);
    assert!(is_within(response.signature, bytes) && is_within(response.algorithm, bytes));
    let said = match response.responder {
        ResponderId::Name(said) | ResponderId::KeyHash(said) => said,
    };
    // The signature covers the responder and the statuses.
    assert!(is_within(said, response.signed));

    let authority = Certificate::read(CERTIFICATES[0]).expect("the certificate is refused");
    let server = Certificate::read(CERTIFICATES[1]).expect("the certificate is refused");
    let issuer = authority.public_key;
    let covering: Vec<_> = response.entries.iter().filter(|entry| entry.covers(&server, issuer)).collect();
    for now in covering.iter().map(|entry| entry.this_update).chain([0, u64::MAX]) {
        match response.status_of(&server, issuer, now) {
            Ok(status) => {
                let worst = covering.iter().any(|entry| entry.status == Status::Revoked);
                assert_eq!(worst, status == Status::Revoked);
                assert!(covering.iter().all(|entry| entry.next_update.is_none_or(|next| now < next)));
            }
            Err(OcspError::NotCovered) => assert!(covering.is_empty()),
            Err(_) => assert!(!covering.is_empty()),
        }
    }
    for certificate in &response.certificates {
        assert!(is_within(certificate, bytes));
        self::certificate(certificate);
    }
    true
}

pub const CERTIFICATE: Target = Target {
    name: "certificate",
    run: certificate,
    seeds: || CERTIFICATES.map(<[u8]>::to_vec).into(),
    mend: outer_length,
    words: &[b"\x30\x80", b"\xa3\x03\x30\x01\x00", b"\x01\x01\xff", b"\x30\x03\x02\x01\x05", b"\x03\x01\x00"],
};

fn certificate(bytes: &[u8]) -> bool {
    let Ok(certificate) = Certificate::read(bytes) else { return false };
    let PublicKey { algorithm, bits } = certificate.public_key;
    for part in [certificate.serial, certificate.issuer, certificate.subject, algorithm, bits] {
        assert!(is_within(part, bytes));
    }
    assert!(ResponderId::Name(certificate.subject).is(certificate.subject, certificate.public_key));
    true
}

fn is_within(part: &[u8], whole: &[u8]) -> bool {
    whole.as_ptr_range().start <= part.as_ptr_range().start && part.as_ptr_range().end <= whole.as_ptr_range().end
}

/// Corrects the outermost element's length, which takes two bytes in all seeds.
#[allow(clippy::ptr_arg, reason = "`Target::mend` has one type")]
fn outer_length(bytes: &mut Vec<u8>) {
    let length = (bytes.len().saturating_sub(4) as u16).to_be_bytes();
    if let [0x30, 0x82, first, second, ..] = bytes.as_mut_slice() {
        [*first, *second] = length;
    }
}
