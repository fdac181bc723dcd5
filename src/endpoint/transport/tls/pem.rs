//! PEM files (RFC 7468): sections of base64 between a BEGIN line and an END line.
//!
//! These files are parsed here rather than by a library, because they may hold private keys. Every copy of a key that
//! the parser makes is wiped from memory when it is dropped.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;
use zeroize::Zeroizing;

/// The label of a certificate.
pub(super) const CERTIFICATE: &str = "CERTIFICATE";

/// A section of a file.
pub(super) struct Section {
    /// The label of the BEGIN line, which says what the section holds.
    pub label: String,
    /// The number of the BEGIN line, from 1.
    pub line: usize,
    /// Whether the section is encrypted in the legacy format that preceded PKCS#8, in which a PEM header names the
    /// algorithm.
    pub legacy_encrypted: bool,
    /// The decoded contents. Empty if `legacy_encrypted`.
    pub der: Zeroizing<Vec<u8>>,
}

/// Leaves out the contents, which may be a private key.
impl fmt::Debug for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Section").field("label", &self.label).field("line", &self.line).finish_non_exhaustive()
    }
}

/// A malformed section.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("line {line}: {problem}")]
pub(super) struct MalformedPem {
    /// The line number, starting at 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// The UTF-8 byte order mark, which some editors write at the start of a file.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Returns the sections of a file, in order. Text outside them is ignored.
pub(super) fn sections(file: &[u8]) -> Result<Vec<Section>, MalformedPem> {
    let file = file.strip_prefix(MARK).unwrap_or(file);
    let mut sections = Vec::new();
    let mut lines = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).zip(1..);
    while let Some((text, line)) = lines.next() {
        let Some(label) = boundary(text, b"-----BEGIN ") else { continue };
        // This capacity keeps the vector from growing, which would leave behind a copy that is never wiped. If the
        // capacity were the length of the whole file, wiping the vectors of all sections would take quadratic time.
        let rest = lines.clone().map(|(text, _)| text).take_while(|text| !text.starts_with(b"-----"));
        let mut body = Zeroizing::new(Vec::with_capacity(rest.map(<[u8]>::len).sum()));
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
            // This vector does not grow either.
            *der = vec![0; body.len()];
            let length = STANDARD.decode_slice(&*body, &mut der);
            der.truncate(length.map_err(|_| MalformedPem { line, problem: "the section is not valid base64" })?);
        }
        let label = String::from_utf8_lossy(label).into_owned();
        sections.push(Section { label, line, legacy_encrypted, der });
    }
    Ok(sections)
}

/// Returns the label in a BEGIN or END line.
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
    fn file_has_sections_with_text_around_them() {
        let file = "subject: a\r\n-----BEGIN A-----\r\nAQID\r\nBA==\r\n-----END A-----\r\nmore\n-----BEGIN B C-----\n-----END B C-----";
        let sections = sections(file.as_bytes()).unwrap();
        let found: Vec<_> = sections.iter().map(|section| (&*section.label, section.line, &**section.der)).collect();
        assert_eq!(found, [("A", 2, &[1, 2, 3, 4][..]), ("B C", 7, &[][..])]);
        assert!(sections.iter().all(|section| !section.legacy_encrypted));
        assert_eq!(format!("{:?}", sections[0]), "Section { label: \"A\", line: 2, .. }");
    }

    #[test]
    fn byte_order_mark_at_the_beginning_is_left_out() {
        let sections = sections(b"\xef\xbb\xbf-----BEGIN A-----\nAQID\n-----END A-----\n").unwrap();
        let found: Vec<_> = sections.iter().map(|section| (&*section.label, section.line, &**section.der)).collect();
        assert_eq!(found, [("A", 1, &[1, 2, 3][..])]);
    }

    #[test]
    fn legacy_encrypted_section_is_recognised_by_its_header() {
        let file = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAQID\n-----END RSA PRIVATE KEY-----\n";
        let sections = sections(file.as_bytes()).unwrap();
        assert!(sections[0].legacy_encrypted && sections[0].der.is_empty());
    }

    #[test]
    fn malformed_section_is_refused_with_its_line() {
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

    /// Parsing in quadratic time would take minutes.
    #[test]
    fn file_of_many_sections_is_parsed_in_linear_time() {
        const SECTION: &str = "-----BEGIN A-----\n-----END A-----\n";
        let many = (4 << 20) / SECTION.len();
        assert_eq!(sections(SECTION.repeat(many).as_bytes()).unwrap().len(), many);
    }

    #[test]
    fn odd_files_are_parsed_without_a_panic() {
        assert!(sections(b"").unwrap().is_empty());
        assert!(sections(&[0, 255, b'\n', 200]).unwrap().is_empty());
        assert!(sections(b"-----BEGIN -----\n-----END -----").unwrap()[0].label.is_empty());
        assert!(sections(b"-----BEGIN A----").unwrap().is_empty());
    }
}
