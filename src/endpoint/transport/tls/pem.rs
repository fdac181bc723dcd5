//! Files in PEM (RFC 7468): sections of base64 between a BEGIN line and an END line.
//!
//! They are read here, and not by a library, because they may hold private keys: whatever is made of one on the way is
//! wiped from memory when it is dropped.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;
use zeroize::Zeroizing;

/// The label of a certificate.
pub(super) const CERTIFICATE: &str = "CERTIFICATE";

/// One section of a file.
pub(super) struct Section {
    /// What the section holds, by the name in its BEGIN line.
    pub label: String,
    /// The number of its BEGIN line, from 1.
    pub line: usize,
    /// Whether it is encrypted in the way that precedes PKCS#8: by a header, which says how, in the PEM itself.
    pub legacy_encrypted: bool,
    /// Its contents. Nothing, if it is `legacy_encrypted`.
    pub der: Zeroizing<Vec<u8>>,
}

/// The contents may be a private key.
impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section").field("label", &self.label).field("line", &self.line).finish_non_exhaustive()
    }
}

/// A section is not as it must be.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("line {line}: {problem}")]
pub(super) struct MalformedPem {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// The sections of a file, in their order. What is outside of them is text for people and ignored.
pub(super) fn sections(file: &[u8]) -> Result<Vec<Section>, MalformedPem> {
    let mut sections = Vec::new();
    let mut lines = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).zip(1..);
    while let Some((text, line)) = lines.next() {
        let Some(label) = boundary(text, b"-----BEGIN ") else { continue };
        let mut body = Zeroizing::new(Vec::with_capacity(file.len()));
        let mut legacy_encrypted = false;
        loop {
            let Some((text, line)) = lines.next() else {
                return Err(MalformedPem { line, problem: "this section has no end" });
            };
            if text.starts_with(b"-----") {
                match boundary(text, b"-----END ") {
                    Some(end) if end == label => break,
                    _ => return Err(MalformedPem { line, problem: "the section does not end as it begins" }),
                }
            }
            match text.contains(&b':') {
                true => legacy_encrypted |= text.starts_with(b"Proc-Type:") && text.ends_with(b"ENCRYPTED"),
                false => body.extend_from_slice(text),
            }
        }
        let mut der = Zeroizing::new(Vec::new());
        if !legacy_encrypted {
            // With this much room it never grows, which would leave a copy behind that nobody wipes.
            *der = vec![0; body.len()];
            let length = STANDARD.decode_slice(&*body, &mut der);
            der.truncate(length.map_err(|_| MalformedPem { line, problem: "the section is not valid base64" })?);
        }
        let label = String::from_utf8_lossy(label).into_owned();
        sections.push(Section { label, line, legacy_encrypted, der });
    }
    Ok(sections)
}

/// The label in a BEGIN or END line.
fn boundary<'a>(line: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    line.strip_prefix(prefix)?.strip_suffix(b"-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(file: &str) -> MalformedPem {
        sections(file.as_bytes()).unwrap_err()
    }

    #[test]
    fn a_file_has_sections_and_text_around_them() {
        let file = "subject: a\r\n-----BEGIN A-----\r\nAQID\r\nBA==\r\n-----END A-----\r\nmore\n-----BEGIN B C-----\n-----END B C-----";
        let sections = sections(file.as_bytes()).unwrap();
        let found: Vec<_> = sections.iter().map(|section| (&*section.label, section.line, &**section.der)).collect();
        assert_eq!(found, [("A", 2, &[1, 2, 3, 4][..]), ("B C", 7, &[][..])]);
        assert!(sections.iter().all(|section| !section.legacy_encrypted));
        assert_eq!(format!("{:?}", sections[0]), "Section { label: \"A\", line: 2, .. }");
    }

    #[test]
    fn a_legacy_encrypted_section_is_known_by_its_header() {
        let file = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAQID\n-----END RSA PRIVATE KEY-----\n";
        let sections = sections(file.as_bytes()).unwrap();
        assert!(sections[0].legacy_encrypted && sections[0].der.is_empty());
    }

    #[test]
    fn a_malformed_section_is_refused_with_its_line() {
        let cut = "\n-----BEGIN A-----\nAQID\n";
        assert_eq!(problem(cut), MalformedPem { line: 2, problem: "this section has no end" });
        let crossed = "-----BEGIN A-----\nAQID\n-----END B-----\n";
        assert_eq!(problem(crossed), MalformedPem { line: 3, problem: "the section does not end as it begins" });
        let nested = "-----BEGIN A-----\nAQID\n-----BEGIN A-----\n";
        assert_eq!(problem(nested), MalformedPem { line: 3, problem: "the section does not end as it begins" });
        for body in ["AQI", "A*ID", "AQID===="] {
            let file = format!("-----BEGIN A-----\n{body}\n-----END A-----\n");
            assert_eq!(problem(&file), MalformedPem { line: 1, problem: "the section is not valid base64" });
        }
    }

    #[test]
    fn nothing_in_a_file_is_too_strange() {
        assert!(sections(b"").unwrap().is_empty());
        assert!(sections(&[0, 255, b'\n', 200]).unwrap().is_empty());
        assert!(sections(b"-----BEGIN -----\n-----END -----").unwrap()[0].label.is_empty());
        assert!(sections(b"-----BEGIN A----").unwrap().is_empty());
    }
}
