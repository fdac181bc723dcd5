//! Finds elements of a document without decoding the other elements.

use bson::spec::ElementType;
use bson::{RawDocument, Timestamp};

/// The type of a timestamp.
pub(crate) const TIMESTAMP: u8 = ElementType::Timestamp as u8;

/// Reads the value of a timestamp.
pub(crate) fn timestamp(value: &[u8]) -> Option<Timestamp> {
    let both = u64::from_le_bytes(*value.first_chunk()?);
    Some(Timestamp { time: (both >> 32) as u32, increment: both as u32 })
}

/// Returns the type of the element `name`, and the bytes of its value. `name` must include the terminating zero byte.
///
/// The search steps over earlier elements by their lengths. It does not check them, so it takes a fraction of the time
/// that [`RawDocument::get`] takes. At an element of a rare type or at invalid bytes, the search returns `None`, and
/// the caller must use `get`. If it finds an element, `get` would have found the same one.
pub(crate) fn find<'d>(document: &'d RawDocument, name: &[u8]) -> Option<(u8, &'d [u8])> {
    let bytes = document.as_bytes();
    // The elements are between the document's length and the zero byte at its end.
    let mut rest = bytes.get(4..bytes.len() - 1)?;
    loop {
        let (&kind, named) = rest.split_first()?;
        if let Some(value) = named.strip_prefix(name) {
            return Some((kind, value.get(..length(kind, value)?)?));
        }
        let end = end_of_name(named)?;
        if named[end] != 0 {
            // The name may be invalid UTF-8, which `get` refuses.
            return None;
        }
        let value = &named[end + 1..];
        rest = value.get(length(kind, value)?..)?;
    }
}

/// Calls `visit` with the name, type and value bytes of each element. Steps from one element to the next like [`find`].
///
/// Returns whether all elements were visited. The walk ends early at an element of a rare type or at invalid bytes.
pub(crate) fn walk<'d>(document: &'d RawDocument, mut visit: impl FnMut(&'d [u8], u8, &'d [u8])) -> bool {
    let bytes = document.as_bytes();
    let Some(mut rest) = bytes.get(4..bytes.len() - 1) else { return false };
    while let Some((element, further)) = next(rest) {
        let (name, kind, value) = element;
        visit(name, kind, value);
        rest = further;
    }
    rest.is_empty()
}

/// Returns whether a document has an element with this name. Steps from one element to the next like [`find`], and
/// returns `None` if it meets an element of a rare type or invalid bytes first.
pub(crate) fn has(document: &RawDocument, name: &[u8]) -> Option<bool> {
    let bytes = document.as_bytes();
    let mut rest = bytes.get(4..bytes.len() - 1)?;
    while !rest.is_empty() {
        let ((other, _, _), further) = next(rest)?;
        if other == name {
            return Some(true);
        }
        rest = further;
    }
    Some(false)
}

/// An element's name, type and value.
pub(crate) type Element<'d> = (&'d [u8], u8, &'d [u8]);

/// Returns the first element, and the bytes after it. Returns `None` if there is no element, if its type is rare, if
/// its name is not ASCII, or if it is invalid.
#[inline]
pub(crate) fn next(elements: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&kind, named) = elements.split_first()?;
    let end = end_of_name(named)?;
    let (name, ended) = named.split_at(end);
    let (&0, value) = ended.split_first()? else { return None };
    let (value, further) = value.split_at_checked(length(kind, value)?)?;
    Some(((name, kind, value), further))
}

/// Returns the position of the first byte that is zero or not ASCII. Looks at eight bytes at a time: the names in a
/// reply take about thirty bytes.
#[inline]
fn end_of_name(named: &[u8]) -> Option<usize> {
    const LOWEST: u64 = u64::MAX / 0xff;
    const HIGHEST: u64 = LOWEST << 7;
    let mut at = 0;
    while let Some(&eight) = named.get(at..)?.first_chunk() {
        let word = u64::from_le_bytes(eight);
        // The highest bit of a byte is set in `ends` if the byte ends the search: subtracting one from a zero byte sets
        // the bit, and a byte that is not ASCII already has it. The borrow may also set the bit of a later byte, but
        // never of an earlier byte.
        let ends = (word.wrapping_sub(LOWEST) | word) & HIGHEST;
        if ends != 0 {
            return Some(at + ends.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    let rest = named.get(at..)?.iter().position(|&byte| byte == 0 || !byte.is_ascii())?;
    Some(at + rest)
}

/// Returns the length in bytes of a value of type `kind` at the start of `value`.
fn length(kind: u8, value: &[u8]) -> Option<usize> {
    let declared = || usize::try_from(i32::from_le_bytes(*value.first_chunk()?)).ok();
    // The value ends with a zero byte, and is at least as long as an empty value.
    let ended = |length: usize, least: usize| {
        let is_whole = length >= least && *value.get(length - 1)? == 0;
        is_whole.then_some(length)
    };
    match ElementType::from(kind)? {
        ElementType::Null => Some(0),
        ElementType::Boolean => Some(1),
        ElementType::Int32 => Some(4),
        ElementType::Double | ElementType::Int64 | ElementType::DateTime | ElementType::Timestamp => Some(8),
        ElementType::ObjectId => Some(12),
        ElementType::Decimal128 => Some(16),
        ElementType::String => ended(4 + declared()?, 5),
        ElementType::EmbeddedDocument | ElementType::Array => ended(declared()?, 5),
        ElementType::Binary => Some(5 + declared()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::oid::ObjectId;
    use bson::raw::cstr;
    use bson::{Binary, DateTime, Decimal128, RawDocumentBuf, Timestamp, rawdoc, spec::BinarySubtype};
    use proptest::prelude::*;

    use super::*;

    /// An element of every type that the search steps over, and then the element to find.
    fn reply() -> RawDocumentBuf {
        rawdoc! {
            "cursor": { "firstBatch": [{ "ok": 7.0 }], "ns": "shop.orders" },
            "okay": 0.0,
            "o": "ok",
            "null": null,
            "yes": true,
            "int": 1,
            "long": 1_i64,
            "when": DateTime::from_millis(1),
            "operationTime": Timestamp { time: 1, increment: 2 },
            "processId": ObjectId::from_bytes([7; 12]),
            "decimal": Decimal128::from_bytes([0; 16]),
            "hash": Binary { subtype: BinarySubtype::Generic, bytes: vec![0, 1, 2] },
            "ok": 1.0,
            "after": 1,
        }
    }

    #[test]
    fn element_is_found_after_others_of_any_common_type() {
        let reply = reply();
        assert_eq!(find(&reply, b"ok\0"), Some((1, &1.0_f64.to_le_bytes()[..])));
        assert_eq!(find(&reply, b"after\0"), Some((16, &1_i32.to_le_bytes()[..])));
        assert_eq!(find(&reply, b"afte\0"), None);
        assert_eq!(find(&rawdoc! {}, b"ok\0"), None);
    }

    #[test]
    fn walk_shows_all_elements_of_common_types() {
        let reply = reply();
        let mut shown = Vec::new();
        assert!(walk(&reply, |name, kind, value| shown.push((name.to_vec(), kind, value.len()))));
        let elements = reply.iter_elements().map(Result::unwrap);
        let expected: Vec<_> = elements
            .map(|element| (element.key().as_str().as_bytes().to_vec(), element.element_type() as u8, element.size()))
            .collect();
        assert_eq!(shown, expected);
        assert!(walk(&rawdoc! {}, |_, _, _| panic!("nothing is there")));
    }

    #[test]
    fn walk_stops_at_a_rare_type() {
        let reply = rawdoc! { "ok": 1.0, "rare": bson::Regex { pattern: cstr!("a").into(), options: cstr!("").into() }, "after": 1 };
        let mut shown = 0;
        assert!(!walk(&reply, |_, _, _| shown += 1));
        assert_eq!(shown, 1);
    }

    proptest! {
        #[test]
        fn name_ends_at_the_first_byte_that_is_zero_or_not_ascii(
            mut bytes in proptest::collection::vec(1_u8..=0x7f, 0..30),
            ends in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![Just(0), Just(0x80), any::<u8>()]), 0..4),
        ) {
            for (at, end) in ends {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = end;
                }
            }
            prop_assert_eq!(end_of_name(&bytes), bytes.iter().position(|&byte| byte == 0 || !byte.is_ascii()));
        }

        /// Even in invalid bytes, the search finds only elements that `get` also finds.
        #[test]
        fn found_element_is_what_a_strict_search_finds(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = reply().into_bytes();
            let changeable = bytes.len() - 5;
            for (at, value) in changes {
                bytes[4 + at.index(changeable)] = value;
            }
            let document = RawDocument::from_bytes(&bytes).unwrap();
            if let Some((kind, value)) = find(document, b"ok\0") {
                let element = document.iter_elements().map(Result::unwrap).find(|element| element.key() == "ok").unwrap();
                prop_assert_eq!(element.element_type() as u8, kind);
                prop_assert_eq!(element.size(), value.len());
                if let Some(number) = element.value().ok().and_then(|value| value.as_f64()) {
                    prop_assert_eq!(number.to_bits(), u64::from_le_bytes(value.try_into().unwrap()));
                }
            }
        }
    }
}
