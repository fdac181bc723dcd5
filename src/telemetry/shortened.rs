//! Documents in log messages (Logging, "Configurable Max Document Length").

use std::fmt::{self, Write};
use std::sync::OnceLock;

use bson::{Bson, RawArray, RawBsonRef, RawDocument};

/// The length of a document in a log message, in characters, if nothing else is set.
const DEFAULT_LENGTH: usize = 1_000;

/// After how many characters a document in a log message is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MostLogged(usize);

impl MostLogged {
    /// Takes the number that is given, or that of the environment variable `MONGODB_LOG_MAX_DOCUMENT_LENGTH`, or 1,000.
    pub(crate) fn new(given: Option<usize>) -> Self {
        static OF_ENVIRONMENT: OnceLock<usize> = OnceLock::new();
        let of_environment = || {
            *OF_ENVIRONMENT.get_or_init(|| of_setting(std::env::var("MONGODB_LOG_MAX_DOCUMENT_LENGTH").ok().as_deref()))
        };
        Self(given.unwrap_or_else(of_environment))
    }

    /// Returns a document as relaxed extended JSON, cut after so many characters.
    pub(crate) fn json(self, document: &RawDocument) -> String {
        let mut cut = Cut { text: String::new(), left: self.0 };
        // The only error is that the text is long enough.
        if write_document(document, &mut cut).is_err() {
            cut.text.push_str("...");
        }
        cut.text
    }
}

/// Returns the length for a value of the variable. A value that is no length counts as not set.
fn of_setting(value: Option<&str>) -> usize {
    match value {
        Some(value) if value.eq_ignore_ascii_case("unlimited") => usize::MAX,
        Some(value) => value.parse().unwrap_or(DEFAULT_LENGTH),
        None => DEFAULT_LENGTH,
    }
}

/// A text that takes a number of characters, and refuses more.
struct Cut {
    text: String,
    left: usize,
}

impl Write for Cut {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for character in more.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(character);
        }
        Ok(())
    }
}

fn write_document(document: &RawDocument, cut: &mut Cut) -> fmt::Result {
    cut.write_str("{")?;
    for (index, element) in document.iter().enumerate() {
        // Commands are well-formed. Of a malformed reply, the part before the error is shown.
        let Ok((name, value)) = element else { break };
        if index > 0 {
            cut.write_str(",")?;
        }
        write!(cut, "{}:", serde_json::Value::from(name.as_str()))?;
        write_value(value, cut)?;
    }
    cut.write_str("}")
}

fn write_array(array: &RawArray, cut: &mut Cut) -> fmt::Result {
    cut.write_str("[")?;
    for (index, value) in array.into_iter().enumerate() {
        let Ok(value) = value else { break };
        if index > 0 {
            cut.write_str(",")?;
        }
        write_value(value, cut)?;
    }
    cut.write_str("]")
}

fn write_value(value: RawBsonRef<'_>, cut: &mut Cut) -> fmt::Result {
    match value {
        RawBsonRef::Document(document) => write_document(document, cut),
        RawBsonRef::Array(array) => write_array(array, cut),
        // Much longer than what is shown, so only its beginning is converted.
        RawBsonRef::String(text) if text.len() > cut.left.saturating_mul(4) => {
            let shown: String = text.chars().take(cut.left + 1).collect();
            write!(cut, "{}", serde_json::Value::from(shown))
        }
        other => match Bson::try_from(other) {
            Ok(value) => write!(cut, "{}", value.into_relaxed_extjson()),
            Err(_) => cut.write_str("null"),
        },
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn json(document: &RawDocument, most: usize) -> String {
        MostLogged::new(Some(most)).json(document)
    }

    #[test]
    fn documents_are_relaxed_extended_json() {
        let document = rawdoc! { "find": "o\"1", "limit": 5_i64, "of": [1, 2.5, { "x": bson::oid::ObjectId::from_bytes([1; 12]) }] };
        let text = json(&document, 1_000);
        assert_eq!(text, r#"{"find":"o\"1","limit":5,"of":[1,2.5,{"x":{"$oid":"010101010101010101010101"}}]}"#);
        assert_eq!(json(&document, text.chars().count()), text);
    }

    #[test]
    fn long_documents_are_cut_between_characters() {
        let document = rawdoc! { "x": "ä".repeat(10_000) };
        assert_eq!(json(&document, 8), "{\"x\":\"ää...");
        assert_eq!(json(&document, 0), "...");
        assert_eq!(json(&document, 1_000).chars().count(), 1_003);
    }

    #[test]
    fn variable_sets_the_length() {
        assert_eq!([None, Some("5"), Some("Unlimited"), Some("much")].map(of_setting), [1_000, 5, usize::MAX, 1_000]);
    }
}
