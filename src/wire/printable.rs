//! Texts of the other end in errors, which end up in logs.

use std::fmt;

/// Shows a text with all that would break its line, or make a terminal show something else, escaped as Rust does it. All
/// else stays as it is: unlike with `{:?}`, quotation marks and backslashes do, so that people read what the server says.
pub(crate) struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(at) = rest.find(is_unprintable) {
            let (before, after) = rest.split_at(at);
            f.write_str(before)?;
            let mut characters = after.chars();
            characters.next().into_iter().flat_map(char::escape_default).try_for_each(|part| write!(f, "{part}"))?;
            rest = characters.as_str();
        }
        f.write_str(rest)
    }
}

/// Control characters, the separators of lines and paragraphs, and what changes the direction of the text after it.
fn is_unprintable(character: char) -> bool {
    let changes_lines_or_directions =
        matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || changes_lines_or_directions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_would_deceive_a_reader_is_escaped() {
        for (text, shown) in [
            ("", ""),
            ("index \"a\\b\" is not there: é, 数据库", "index \"a\\b\" is not there: é, 数据库"),
            ("no\r\n2026-01-01 INFO user admin logged in", "no\\r\\n2026-01-01 INFO user admin logged in"),
            ("\u{1b}[2J\u{7}\0\t", "\\u{1b}[2J\\u{7}\\u{0}\\t"),
            ("a\u{2028}b\u{85}c\u{202e}d", "a\\u{2028}b\\u{85}c\\u{202e}d"),
        ] {
            assert_eq!(Printable(text).to_string(), shown, "{text:?}");
        }
    }
}
