//! Percent-encoding.

use percent_encoding::percent_decode_str;

/// Decodes percent-encoded text. Returns `None` if a percent sign does not begin an escape, or if the result is not UTF-8.
pub(super) fn decode(text: &str) -> Option<String> {
    let mut escapes = text.split('%').skip(1);
    let is_escape = |after: &str| after.len() >= 2 && after.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if !escapes.all(is_escape) {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(|decoded| decoded.into_owned())
}

/// Returns whether the text consists of characters that occur in option names.
pub(super) fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-+.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escape_is_a_percent_sign_and_two_hexadecimal_digits() {
        assert_eq!(decode("a%20b%2Fc%c3%A4").as_deref(), Some("a b/cä"));
        for text in ["%", "a%", "%2", "%2x", "%%20", "%+1", "%ff", "%é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(text in ".*") {
            prop_assert_eq!(decode(&utf8_percent_encode(&text, NON_ALPHANUMERIC).to_string()), Some(text));
        }

        #[test]
        fn decoding_never_panics(text in "[%0-9a-fA-Fé]*") {
            let _ = decode(&text);
        }
    }
}
