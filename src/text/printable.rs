//! Text from the network that is shown in errors. Errors end up in logs.
//!
//! A peer's text may be crafted to mislead the reader of a log. A line break starts a line that the peer made up, an
//! escape sequence changes what a terminal shows, a change of direction reorders the text after it, and a megabyte of
//! text hides the rest. Errors therefore show a peer's text through [`Printable`] and keep it as [`PeerText`], both of
//! which escape and cut it.

use std::fmt::{self, Write};
use std::ops::Deref;

/// How many bytes of a peer's text an error shows, after escaping. The shown text ends with the number of bytes that
/// were left out.
const SHOWN: usize = 1_024;

/// How many bytes of an error's whole text are shown if the error is the source of another error.
const SHOWN_OF_ERROR: usize = 4_096;

/// Displays text, escaping every character that would break the line or change what a terminal shows. All other
/// characters stay unchanged, including quotation marks and backslashes, which `{:?}` would escape.
///
/// The text is truncated to 1,024 bytes.
pub(crate) struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.0, SHOWN, f)
    }
}

/// Like [`Printable`], for an error from another library, or an error that quotes several strings. The text is cut
/// after 4,096 bytes.
pub(crate) struct PrintableError<T>(pub T);

impl<T: fmt::Display> fmt::Display for PrintableError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(&self.0, SHOWN_OF_ERROR, f)
    }
}

/// Text from a peer, or text that quotes a peer, in the form that an error stores, which is safe to print.
///
/// Control characters, line breaks and changes of text direction are escaped, as in `\n` and `\u{1b}`. The text is cut
/// after 1,024 bytes. Text that was cut ends with the number of bytes that were left out. Every value of this type is
/// escaped and cut.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PeerText(Box<str>);

impl PeerText {
    /// Escapes and cuts `text`.
    pub(crate) fn of(text: impl fmt::Display) -> Self {
        Self(Printable(text).to_string().into_boxed_str())
    }

    /// Returns the escaped text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for PeerText {
    fn from(text: &str) -> Self {
        Self::of(text)
    }
}

impl From<String> for PeerText {
    fn from(text: String) -> Self {
        Self::of(text)
    }
}

impl Deref for PeerText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PeerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

fn show(text: &dyn fmt::Display, room: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut escaping = Escaping { shown: f, room, left_out: 0 };
    write!(escaping, "{text}")?;
    match escaping.left_out {
        0 => Ok(()),
        bytes => write!(f, "… ({bytes} more bytes)"),
    }
}

/// Escapes the text written to it, and counts the bytes that do not fit.
struct Escaping<'a, 'f> {
    shown: &'a mut fmt::Formatter<'f>,
    room: usize,
    left_out: usize,
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(is_unprintable).unwrap_or(rest.len());
            let fits = floor_char_boundary(&rest[..end], self.room);
            self.shown.write_str(&rest[..fits])?;
            self.room -= fits;
            rest = &rest[fits..];
            let next = rest.chars().next();
            if fits < end {
                // All later text is left out, even text that would fit.
                self.room = 0;
            } else if let Some(character) = next {
                let escaped = character.escape_default();
                if escaped.len() <= self.room {
                    write!(self.shown, "{escaped}")?;
                    self.room -= escaped.len();
                    rest = &rest[character.len_utf8()..];
                } else {
                    self.room = 0;
                }
            }
            if self.room == 0 {
                self.left_out += rest.len();
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Returns whether a character is a control character or a line or paragraph separator, changes the text direction, or
/// is invisible.
pub(crate) fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns the last character boundary at or before `index`.
///
/// Stands in for `str::floor_char_boundary`, which requires Rust 1.91.
pub(crate) fn floor_char_boundary(text: &str, index: usize) -> usize {
    (0..=index.min(text.len())).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deceptive_characters_are_escaped() {
        for (text, shown) in [
            ("", ""),
            ("index \"a\\b\" is not there: é, 数据库", "index \"a\\b\" is not there: é, 数据库"),
            ("no\r\n2026-01-01 INFO user admin logged in", "no\\r\\n2026-01-01 INFO user admin logged in"),
            ("\u{1b}[2J\u{7}\0\t", "\\u{1b}[2J\\u{7}\\u{0}\\t"),
            ("a\u{2028}b\u{85}c\u{202e}d\u{2066}e\u{feff}", "a\\u{2028}b\\u{85}c\\u{202e}d\\u{2066}e\\u{feff}"),
        ] {
            assert_eq!(Printable(text).to_string(), shown, "{text:?}");
            assert_eq!(PeerText::of(text).as_str(), shown, "{text:?}");
            assert_eq!(Printable(PeerText::of(text)).to_string(), shown, "escaping twice changes nothing");
        }
    }

    #[test]
    fn text_is_cut_at_its_limit_and_says_so() {
        let fits = "a".repeat(SHOWN);
        assert_eq!(Printable(&fits).to_string(), fits);
        assert_eq!(Printable(format!("{fits}b")).to_string(), format!("{fits}… (1 more bytes)"));
        let long = "é\n".repeat(500_000);
        let shown = Printable(&long).to_string();
        assert!(shown.starts_with("é\\né\\n") && shown.len() < SHOWN + 40, "{}", shown.len());
        assert!(shown.ends_with(" more bytes)") && !shown.contains('\n'), "{shown}");
        // The cut does not split a character or an escape, and no later text is appended, even if it would fit.
        let before_the_end = format!("{}\u{1b}b", "a".repeat(SHOWN - 3));
        assert_eq!(Printable(before_the_end).to_string(), format!("{}… (2 more bytes)", "a".repeat(SHOWN - 3)));
        let within = format!("{}éb", "a".repeat(SHOWN - 1));
        assert_eq!(Printable(within).to_string(), format!("{}… (3 more bytes)", "a".repeat(SHOWN - 1)));
        assert!(PrintableError(&long).to_string().len() > 2 * SHOWN);
        assert!(PrintableError(&long).to_string().len() < SHOWN_OF_ERROR + 40);
    }

    #[test]
    fn error_written_in_parts_is_cut_as_a_whole() {
        struct InParts;
        impl fmt::Display for InParts {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (0..SHOWN).try_for_each(|_| f.write_str("ab\n"))
            }
        }
        let shown = Printable(InParts).to_string();
        assert!(shown.starts_with("ab\\nab\\n") && shown.len() <= SHOWN + 40);
        assert!(shown.ends_with(&format!("… ({} more bytes)", 3 * SHOWN - SHOWN / 4 * 3)), "{shown}");
    }
}
