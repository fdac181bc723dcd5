//! Requests to a responder about one certificate (RFC 6960, section 4.1).

use sha1::{Digest, Sha1};

use super::{Certificate, PublicKey};

/// SHA-1 (RFC 3279, section 2.2.1). Every responder supports it (RFC 5019, section 2.1.1), and nothing depends on its
/// strength: the response is signed.
const SHA_1: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];

/// A certificate's identifier in requests and caches: a `CertID`, in DER.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CertificateId(Vec<u8>);

impl CertificateId {
    /// Returns the identifier of `certificate`, whose issuer has the key `issuer`.
    #[must_use]
    pub fn of(certificate: &Certificate<'_>, issuer: PublicKey<'_>) -> Self {
        Self(element(
            0x30,
            &[
                &element(0x30, &[&element(0x06, &[SHA_1]), &element(0x05, &[])]),
                &element(0x04, &[&Sha1::digest(certificate.issuer)]),
                &element(0x04, &[&Sha1::digest(issuer.bits)]),
                &element(0x02, &[certificate.serial]),
            ],
        ))
    }

    /// Returns an `OCSPRequest` about the certificate, in DER. It is not signed and has no nonce.
    #[must_use]
    pub fn request(&self) -> Vec<u8> {
        [0x30; 4].iter().fold(self.0.clone(), |inside, tag| element(*tag, &[&inside]))
    }
}

/// Returns an element in DER, with a tag of one byte.
fn element(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let contents = contents.concat();
    let length = contents.len().to_be_bytes();
    let digits = &length[contents.len().leading_zeros() as usize / 8..];
    let mut element = vec![tag];
    match digits {
        [] => element.push(0),
        [short @ 0..0x80] => element.push(*short),
        _ => {
            element.push(0x80 | digits.len() as u8);
            element.extend_from_slice(digits);
        }
    }
    element.extend(contents);
    element
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_elements_have_as_few_digits_as_possible() {
        let head = |length: usize| {
            element(0x04, &[&vec![7; length]])[..element(0x04, &[&vec![7; length]]).len() - length].to_vec()
        };
        assert_eq!(head(0), [4, 0]);
        assert_eq!(head(0x7f), [4, 0x7f]);
        assert_eq!(head(0x80), [4, 0x81, 0x80]);
        assert_eq!(head(0x100), [4, 0x82, 1, 0]);
    }
}
