//! Documents in log messages (Logging, "Configurable Max Document Length").

use std::sync::OnceLock;

use bson::RawDocument;

/// The length of a document in a log message, in characters, unless `MONGODB_LOG_MAX_DOCUMENT_LENGTH` sets another.
const DEFAULT_LENGTH: usize = 1000;

/// Returns the document in extended JSON, cut to the length that the environment allows.
pub(crate) fn shortened(document: &RawDocument) -> String {
    static LENGTH: OnceLock<usize> = OnceLock::new();
    let length = LENGTH.get_or_init(|| of_setting(std::env::var("MONGODB_LOG_MAX_DOCUMENT_LENGTH").ok().as_deref()));
    // A document that is invalid midway has no text.
    cut(serde_json::to_string(&document).unwrap_or_default(), *length)
}

/// Returns the length for a value of the variable. A value that is no length counts as not set.
fn of_setting(value: Option<&str>) -> usize {
    match value {
        Some(value) if value.eq_ignore_ascii_case("unlimited") => usize::MAX,
        Some(value) => value.parse().unwrap_or(DEFAULT_LENGTH),
        None => DEFAULT_LENGTH,
    }
}

fn cut(mut text: String, length: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(length) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_marked() {
        assert_eq!(cut("größe".to_owned(), 3), "grö...");
        assert_eq!(cut("größe".to_owned(), 5), "größe");
    }

    #[test]
    fn variable_sets_the_length() {
        assert_eq!([None, Some("5"), Some("Unlimited"), Some("much")].map(of_setting), [1000, 5, usize::MAX, 1000]);
    }

    #[test]
    fn document_is_extended_json() {
        let id = bson::oid::ObjectId::from_bytes([1; 12]);
        let text = shortened(&bson::rawdoc! { "ok": 1.0, "n": 5, "id": id });
        assert_eq!(text, r#"{"ok":1.0,"n":5,"id":{"$oid":"010101010101010101010101"}}"#);
    }
}
