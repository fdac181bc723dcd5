//! Documents in log messages (Logging, "Configurable Max Document Length").

use std::fmt::{self, Write};
use std::sync::OnceLock;

use bson::raw::{RawIter, RawJavaScriptCodeWithScopeRef};
use bson::{Bson, RawBinaryRef, RawBsonRef, RawDocument};

/// The default length of a document in a log message, in characters.
const DEFAULT_LENGTH: usize = 1_000;

/// The number of characters after which a document in a log message is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MostLogged(usize);

impl MostLogged {
    /// Uses the given number, otherwise the environment variable `MONGODB_LOG_MAX_DOCUMENT_LENGTH`, otherwise 1,000.
    pub(crate) fn new(given: Option<usize>) -> Self {
        static OF_ENVIRONMENT: OnceLock<usize> = OnceLock::new();
        let of_environment = || {
            *OF_ENVIRONMENT.get_or_init(|| of_setting(std::env::var("MONGODB_LOG_MAX_DOCUMENT_LENGTH").ok().as_deref()))
        };
        Self(given.unwrap_or_else(of_environment))
    }

    /// Returns a document as relaxed extended JSON, cut after this many characters.
    pub(crate) fn json(self, document: &RawDocument) -> String {
        let mut cut = Cut { text: String::new(), left: self.0 };
        // The only possible error is that the text is already long enough.
        if write_document(document, &mut cut).is_err() {
            cut.text.push_str("...");
        }
        cut.text
    }
}

/// Returns the length for a value of the variable. An invalid value is treated as if the variable were not set.
fn of_setting(value: Option<&str>) -> usize {
    match value {
        Some(value) if value.eq_ignore_ascii_case("unlimited") => usize::MAX,
        Some(value) => value.parse().unwrap_or(DEFAULT_LENGTH),
        None => DEFAULT_LENGTH,
    }
}

/// A string that accepts a limited number of characters, and refuses more.
struct Cut {
    text: String,
    left: usize,
}

impl Cut {
    /// Returns as much of `text` as there is room for, plus one character.
    fn beginning<'t>(&self, text: &'t str) -> &'t str {
        match text.char_indices().nth(self.left.saturating_add(1)) {
            Some((end, _)) => &text[..end],
            None => text,
        }
    }
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

/// A document or an array whose beginning has been written.
struct Open<'d> {
    elements: RawIter<'d>,
    is_array: bool,
    has_elements: bool,
    end: &'static str,
}

impl<'d> Open<'d> {
    fn document(document: &'d RawDocument) -> Self {
        Self { elements: document.iter_elements(), is_array: false, has_elements: false, end: "}" }
    }

    fn array(array: &'d RawDocument) -> Self {
        Self { is_array: true, end: "]", ..Self::document(array) }
    }

    /// The scope of JavaScript code. Its end also ends the document that contains both.
    fn scope(scope: &'d RawDocument) -> Self {
        Self { end: "}}", ..Self::document(scope) }
    }
}

/// Writes a document without recursion, because a server decides how deeply its reply is nested.
fn write_document(document: &RawDocument, cut: &mut Cut) -> fmt::Result {
    let mut open = vec![Open::document(document)];
    cut.write_str("{")?;
    while let Some(innermost) = open.last_mut() {
        // Commands are always well-formed. If a reply is malformed, only the part before the error is shown.
        let next = innermost.elements.next().and_then(Result::ok);
        let Some((name, value)) = next.and_then(|element| Some((element.key(), element.value().ok()?))) else {
            cut.write_str(innermost.end)?;
            open.pop();
            continue;
        };
        if std::mem::replace(&mut innermost.has_elements, true) {
            cut.write_str(",")?;
        }
        if !innermost.is_array {
            write!(cut, "{}:", serde_json::Value::from(cut.beginning(name.as_str())))?;
        }
        match value {
            RawBsonRef::Document(document) => {
                cut.write_str("{")?;
                open.push(Open::document(document));
            }
            RawBsonRef::Array(array) => {
                cut.write_str("[")?;
                // The iterator has already checked these bytes.
                open.push(Open::array(RawDocument::from_bytes(array.as_bytes()).map_err(|_| fmt::Error)?));
            }
            RawBsonRef::JavaScriptCodeWithScope(RawJavaScriptCodeWithScopeRef { code, scope }) => {
                write!(cut, "{{\"$code\":{},\"$scope\":{{", serde_json::Value::from(cut.beginning(code)))?;
                open.push(Open::scope(scope));
            }
            flat => write_flat(flat, cut)?,
        }
    }
    Ok(())
}

/// Writes a value that does not contain documents. Only the beginning of a long value is converted.
fn write_flat(value: RawBsonRef<'_>, cut: &mut Cut) -> fmt::Result {
    let value = match value {
        RawBsonRef::String(text) => RawBsonRef::String(cut.beginning(text)),
        RawBsonRef::JavaScriptCode(code) => RawBsonRef::JavaScriptCode(cut.beginning(code)),
        RawBsonRef::Symbol(symbol) => RawBsonRef::Symbol(cut.beginning(symbol)),
        // Base64 has at least as many characters as bytes.
        RawBsonRef::Binary(RawBinaryRef { subtype, bytes }) => {
            let shown = bytes.len().min(cut.left.saturating_add(1));
            RawBsonRef::Binary(RawBinaryRef { subtype, bytes: &bytes[..shown] })
        }
        other => other,
    };
    match Bson::try_from(value) {
        Ok(value) => write!(cut, "{}", value.into_relaxed_extjson()),
        Err(_) => cut.write_str("null"),
    }
}

#[cfg(test)]
mod tests {
    use bson::raw::RawJavaScriptCodeWithScope;
    use bson::spec::BinarySubtype;
    use bson::{RawBson, RawDocumentBuf, rawdoc};

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
    fn values_of_all_kinds_are_what_the_library_writes() {
        let nested = rawdoc! { "a": [{}, []], "b": {} };
        let code = RawJavaScriptCodeWithScope { code: "f(\"x\")".into(), scope: nested.clone() };
        let document = rawdoc! {
            "code": code, "nested": nested, "only": RawBson::JavaScriptCode("g()".into()),
            "symbol": RawBson::Symbol("s".into()), "none": null,
            "binary": bson::Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2, 3, 4] },
        };
        let expected: serde_json::Value = Bson::Document((&*document).try_into().unwrap()).into_relaxed_extjson();
        let text = json(&document, 1_000);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected, "{text}");
        for most in 0..text.len() {
            assert_eq!(json(&document, most), format!("{}...", &text[..most]));
        }
    }

    /// A thread's stack could not hold a frame for each of these levels.
    #[test]
    fn deep_nesting_of_any_kind_is_cut() {
        type Wrap = fn(RawDocumentBuf) -> RawDocumentBuf;
        let wraps: [(&str, Wrap); 3] = [
            ("{\"\":{\"\":", |inner| rawdoc! { "": inner }),
            ("{\"\":[{\"\":[", |inner| rawdoc! { "": [inner] }),
            ("{\"\":{\"$code\":\"\",\"$scope\":{\"\":{", |scope| {
                rawdoc! { "": RawJavaScriptCodeWithScope { code: String::new(), scope } }
            }),
        ];
        for (beginning, wrap) in wraps {
            let deep = (0..4_000).fold(rawdoc! {}, |inner, _| wrap(inner));
            let text = json(&deep, 1_000);
            assert!(text.starts_with(beginning) && text.ends_with("..."), "{text}");
            assert_eq!(text.len(), 1_003);
            assert!(json(&deep, usize::MAX).ends_with('}'));
            // Nesting inside a value that is too long anyway.
            let value = RawJavaScriptCodeWithScope { code: "x".repeat(10_000), scope: deep };
            assert!(json(&rawdoc! { "of": value }, 100).starts_with("{\"of\":{\"$code\":\"xxx"));
        }
    }

    #[test]
    fn variable_sets_the_length() {
        assert_eq!([None, Some("5"), Some("Unlimited"), Some("much")].map(of_setting), [1_000, 5, usize::MAX, 1_000]);
    }
}
