//! The depth of nested documents.

use bson::raw::{RawElement, RawIter};
use bson::spec::ElementType;
use bson::{RawBsonRef, RawDocument};

/// How many levels of documents and arrays a server allows, unless it is configured otherwise (`maxBSONDepth`). A
/// server stores at most 180 levels.
pub(crate) const MOST_LEVELS: usize = 200;

/// The minimum length of a level, in bytes: a type, an empty name, a length and an end.
const SMALLEST_LEVEL: usize = 7;

/// Returns whether a document has more than [`MOST_LEVELS`] levels, including itself.
///
/// serde uses some of the thread's stack for each level, so it must not deserialize such a document. This function
/// looks at each element once, and skips documents that are too short for so many levels.
pub(crate) fn is_too_deep(document: &RawDocument) -> bool {
    if document.as_bytes().len() < MOST_LEVELS * SMALLEST_LEVEL {
        return false;
    }
    // This uses the library's own iterator, because a different one might not stop at the same malformed element.
    let mut open: Vec<RawIter<'_>> = vec![document.iter_elements()];
    while let Some(innermost) = open.last_mut() {
        let Some(element) = innermost.next() else {
            open.pop();
            continue;
        };
        let nested = match element.and_then(|element| nested_in(&element)) {
            Ok(Some(nested)) => nested,
            Ok(None) | Err(_) => continue,
        };
        if open.len() == MOST_LEVELS {
            return true;
        }
        open.push(nested.iter_elements());
    }
    false
}

/// Returns the document in the element's value, if there is one. Values of other types are not read.
fn nested_in<'d>(element: &RawElement<'d>) -> Result<Option<&'d RawDocument>, bson::error::Error> {
    use ElementType::{Array, EmbeddedDocument, JavaScriptCodeWithScope};
    if !matches!(element.element_type(), EmbeddedDocument | Array | JavaScriptCodeWithScope) {
        return Ok(None);
    }
    Ok(match element.value()? {
        RawBsonRef::Document(document) => Some(document),
        RawBsonRef::Array(array) => Some(RawDocument::from_bytes(array.as_bytes())?),
        RawBsonRef::JavaScriptCodeWithScope(code) => Some(code.scope),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use bson::raw::RawJavaScriptCodeWithScope;
    use bson::{Document, RawDocumentBuf, rawdoc};

    use super::*;

    fn nested(levels: usize, wrap: impl Fn(RawDocumentBuf) -> RawDocumentBuf) -> RawDocumentBuf {
        (1..levels).fold(rawdoc! {}, |inner, _| wrap(inner))
    }

    #[test]
    fn levels_of_every_kind_count() {
        let document = |inner| rawdoc! { "": inner };
        assert!(!is_too_deep(&nested(MOST_LEVELS, document)));
        assert!(is_too_deep(&nested(MOST_LEVELS + 1, document)));
        let array = |inner| rawdoc! { "a": 1, "": [1, inner] };
        assert!(!is_too_deep(&nested(MOST_LEVELS / 2, array)));
        assert!(is_too_deep(&nested(MOST_LEVELS / 2 + 2, array)));
        let code = |scope| rawdoc! { "": RawJavaScriptCodeWithScope { code: String::new(), scope } };
        assert!(!is_too_deep(&nested(MOST_LEVELS, code)));
        assert!(is_too_deep(&nested(MOST_LEVELS + 1, code)));
    }

    #[test]
    fn width_and_length_do_not_count() {
        let mut wide = RawDocumentBuf::new();
        (0..10_000).for_each(|_| wide.append(bson::raw::cstr!("x"), rawdoc! { "y": "z".repeat(10) }));
        assert!(!is_too_deep(&wide));
    }

    #[test]
    fn malformed_document_hides_no_depth_behind_it() {
        let mut bytes =
            rawdoc! { "bad": { "x": "y" }, "deep": nested(300, |inner| rawdoc! { "": inner }) }.into_bytes();
        let string = bytes.iter().position(|byte| *byte == b'x').unwrap() - 1;
        bytes[string] = 0x77;
        assert!(is_too_deep(RawDocument::from_bytes(&bytes).unwrap()));
    }

    #[test]
    fn deepest_document_can_be_read() {
        let deepest = nested(MOST_LEVELS, |inner| rawdoc! { "": inner });
        let read = move || bson::deserialize_from_slice::<Document>(deepest.as_bytes()).unwrap().len();
        // Without optimisation, a level takes about ten kilobytes of stack.
        let reading = std::thread::Builder::new().stack_size(16 << 20).spawn(read).unwrap();
        assert_eq!(reading.join().unwrap(), 1);
    }
}
