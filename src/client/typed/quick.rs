//! Reads documents with serde in one pass, if they consist of the usual types.
//!
//! bson's deserializer takes more than twice as long for a document of ten fields: it looks at each key three times, and
//! checks each value before it reads it. However, it supports every type, and describes every error. So this module
//! gives up with [`Unusual`] at anything unusual, and [`decode`](super::decode) reads the document again with bson's
//! deserializer.
//!
//! Both deserializers give a visitor the same values. Fields that the application's type ignores are skipped here
//! without a check.

use std::any::type_name;
use std::fmt::Display;
use std::str;

use bson::oid::ObjectId;
use bson::spec::ElementType;
use bson::{Bson, RawDocument};
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use crate::endpoint::wire::element;
use crate::endpoint::wire::nesting::MOST_LEVELS;

/// Reads a document, or gives up.
pub(super) fn read<'de, T: Deserialize<'de>>(document: &'de RawDocument) -> Result<T, Unusual> {
    T::deserialize(Value { kind: ElementType::EmbeddedDocument, bytes: document.as_bytes(), level: 1 })
}

/// The document contains an error, or something that only bson's deserializer can read. There are no details, because
/// bson's deserializer finds the error again.
#[derive(Debug, thiserror::Error)]
#[error("the document is not one of the usual types")]
pub(super) struct Unusual;

impl Error for Unusual {
    fn custom<M: Display>(_: M) -> Self {
        Self
    }
}

/// A value in a document, not yet read.
struct Value<'de> {
    kind: ElementType,
    bytes: &'de [u8],
    /// The nesting level of the value, if it is a document or an array.
    level: usize,
}

impl<'de> Value<'de> {
    fn fixed<const N: usize>(&self) -> Result<[u8; N], Unusual> {
        self.bytes.try_into().map_err(|_| Unusual)
    }

    fn text(&self) -> Result<&'de str, Unusual> {
        match self.bytes {
            [_, _, _, _, text @ .., 0] => str::from_utf8(text).map_err(|_| Unusual),
            _ => Err(Unusual),
        }
    }

    fn elements(&self) -> Result<Elements<'de>, Unusual> {
        match self.bytes {
            // The length field is right, because it determined how many bytes belong to this value.
            [_, _, _, _, rest @ .., 0] if self.level <= MOST_LEVELS => {
                Ok(Elements { rest, value: None, level: self.level + 1 })
            }
            _ => Err(Unusual),
        }
    }
}

/// The unread elements of a document or array.
struct Elements<'de> {
    rest: &'de [u8],
    /// The value that belongs to the last key read.
    value: Option<Value<'de>>,
    /// The nesting level of documents and arrays among the values.
    level: usize,
}

impl<'de> Elements<'de> {
    #[inline]
    fn next(&mut self) -> Result<Option<(&'de [u8], Value<'de>)>, Unusual> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let ((name, kind, bytes), rest) = element::next(self.rest).ok_or(Unusual)?;
        self.rest = rest;
        let kind = ElementType::from(kind).ok_or(Unusual)?;
        Ok(Some((name, Value { kind, bytes, level: self.level })))
    }
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Unusual;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unusual> {
        match self.kind {
            ElementType::String => visitor.visit_borrowed_str(self.text()?),
            ElementType::Int32 => visitor.visit_i32(i32::from_le_bytes(self.fixed()?)),
            ElementType::Int64 => visitor.visit_i64(i64::from_le_bytes(self.fixed()?)),
            ElementType::Double => visitor.visit_f64(f64::from_le_bytes(self.fixed()?)),
            ElementType::EmbeddedDocument => visitor.visit_map(self.elements()?),
            ElementType::Array => visitor.visit_seq(self.elements()?),
            ElementType::Null => visitor.visit_unit(),
            ElementType::Boolean => match self.bytes {
                [0] => visitor.visit_bool(false),
                [1] => visitor.visit_bool(true),
                _ => Err(Unusual),
            },
            ElementType::Binary => match self.bytes {
                // The generic subtype.
                [_, _, _, _, 0, bytes @ ..] => visitor.visit_borrowed_bytes(bytes),
                _ => Err(Unusual),
            },
            ElementType::ObjectId => {
                let id = self.fixed()?;
                visitor.visit_map(match is_for_bson::<V::Value>() {
                    true => Extended { keys: ["$oid"].iter(), value: Leaf::Bytes(id) },
                    false => Extended { keys: ["$oid"].iter(), value: Leaf::Text(ObjectId::from_bytes(id).to_hex()) },
                })
            }
            ElementType::DateTime => {
                let time = i64::from_le_bytes(self.fixed()?);
                visitor.visit_map(match is_for_bson::<V::Value>() {
                    true => Extended { keys: ["$date"].iter(), value: Leaf::Number(time) },
                    false => Extended { keys: ["$date", "$numberLong"].iter(), value: Leaf::Text(time.to_string()) },
                })
            }
            _ => Err(Unusual),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unusual> {
        match self.kind {
            ElementType::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unusual> {
        match self.kind {
            ElementType::ObjectId => visitor.visit_borrowed_bytes(self.bytes),
            _ => self.deserialize_any(visitor),
        }
    }

    /// The names that begin with `$` are bson's own, for types that only its deserializer knows.
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Unusual> {
        match name.starts_with('$') {
            true => Err(Unusual),
            false => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unusual> {
        match self.kind {
            ElementType::String => visitor.visit_enum(self.text()?.into_deserializer()),
            _ => Err(Unusual),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unusual> {
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string byte_buf unit unit_struct seq tuple tuple_struct map
        struct identifier
    }
}

impl<'de> MapAccess<'de> for Elements<'de> {
    type Error = Unusual;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unusual> {
        let Some((key, value)) = self.next()? else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(Key(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Unusual> {
        seed.deserialize(self.value.take().ok_or(Unusual)?)
    }
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Unusual;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Unusual> {
        let Some((_, value)) = self.next()? else { return Ok(None) };
        seed.deserialize(value).map(Some)
    }
}

/// The name of a field, which is ASCII.
struct Key<'de>(&'de [u8]);

impl<'de> Key<'de> {
    fn text(&self) -> Result<&'de str, Unusual> {
        str::from_utf8(self.0).map_err(|_| Unusual)
    }
}

impl<'de> Deserializer<'de> for Key<'de> {
    type Error = Unusual;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unusual> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unusual> {
        BorrowedStrDeserializer::new(self.text()?).deserialize_enum(name, variants, visitor)
    }

    /// A struct compares the bytes, so they need no check.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unusual> {
        visitor.visit_borrowed_bytes(self.0)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct ignored_any
    }
}

/// Returns whether a visitor creates a [`Bson`], as for bson's own types. Such a visitor accepts shorter forms of a
/// value, which need no allocation. If the type names did not match, the visitor would get the long forms, which it
/// accepts as well.
fn is_for_bson<T>() -> bool {
    type_name::<T>() == type_name::<Bson>()
}

/// A value in Extended JSON, wrapped in documents with one key each.
struct Extended {
    keys: std::slice::Iter<'static, &'static str>,
    value: Leaf,
}

enum Leaf {
    Text(String),
    Number(i64),
    Bytes([u8; 12]),
}

impl<'de> MapAccess<'de> for Extended {
    type Error = Unusual;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unusual> {
        let Some(key) = self.keys.next() else { return Ok(None) };
        seed.deserialize(BorrowedStrDeserializer::new(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Unusual> {
        let value = std::mem::replace(&mut self.value, Leaf::Number(0));
        seed.deserialize(Self { keys: std::mem::take(&mut self.keys), value })
    }
}

impl<'de> Deserializer<'de> for Extended {
    type Error = Unusual;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unusual> {
        match (self.keys.len(), self.value) {
            (0, Leaf::Text(text)) => visitor.visit_string(text),
            (0, Leaf::Number(number)) => visitor.visit_i64(number),
            (0, Leaf::Bytes(bytes)) => visitor.visit_bytes(&bytes),
            (_, value) => visitor.visit_map(Self { keys: self.keys, value }),
        }
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bson::raw::cstr;
    use bson::spec::BinarySubtype;
    use bson::{Binary, DateTime, Decimal128, Document, RawDocumentBuf, Timestamp, Uuid, rawdoc};
    use proptest::prelude::*;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Everything<'d> {
        #[serde(rename = "_id")]
        id: Option<ObjectId>,
        none: Option<String>,
        small: u8,
        large: i64,
        real: f64,
        yes: bool,
        letter: char,
        text: String,
        borrowed: &'d str,
        many: Vec<i32>,
        pair: (i32, String),
        nested: Nested,
        map: BTreeMap<String, Nested>,
        state: State,
        by_state: BTreeMap<State, i32>,
        wrapped: Wrapped,
        time: DateTime,
        tagged: Tagged,
        untagged: Vec<Untagged>,
        json: serde_json::Value,
        document: Document,
        #[serde(flatten)]
        rest: BTreeMap<String, Bson>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Nested {
        a: i32,
        #[serde(default)]
        b: Vec<String>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Wrapped(i64);

    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    enum State {
        New,
        Paid,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Card { number: i32 },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(i64),
        Text(String),
    }

    fn everything() -> RawDocumentBuf {
        let id = ObjectId::from_bytes([7; 12]);
        rawdoc! {
            "_id": id,
            "none": null,
            "small": 200,
            "large": 1_i64 << 40,
            "real": 0.5,
            "yes": true,
            "letter": "x",
            "text": "größer",
            "borrowed": "borrowed",
            "many": [1, 2, 3],
            "pair": [1, "one"],
            "nested": { "a": 1, "b": ["x"], "c": { "ignored": [{}] } },
            "map": { "x": { "a": 2 } },
            "state": "Paid",
            "by_state": { "New": 1, "Paid": 2 },
            "wrapped": 7_i64,
            "time": DateTime::from_millis(-1),
            "tagged": { "kind": "Card", "number": 5 },
            "untagged": [1, "two"],
            "json": { "id": id, "time": DateTime::from_millis(1) },
            "document": { "id": id, "times": [DateTime::MIN, DateTime::MAX], "bytes": Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2] } },
            "other": 1,
            "another": { "id": id },
        }
    }

    #[test]
    fn usual_types_are_read_as_by_bson() {
        let document = everything();
        let expected: Everything<'_> = bson::deserialize_from_slice(document.as_bytes()).unwrap();
        assert_eq!(read::<Everything<'_>>(&document).unwrap(), expected);
        let expected: Document = bson::deserialize_from_slice(document.as_bytes()).unwrap();
        assert_eq!(read::<Document>(&document).unwrap(), expected);
    }

    #[test]
    fn unusual_documents_are_left_to_bson() {
        let decimal = Decimal128::from_bytes([0; 16]);
        let time = Timestamp { time: 1, increment: 2 };
        let mut named = RawDocumentBuf::new();
        named.append(cstr!("größe"), 1);
        for unusual in [
            rawdoc! { "a": decimal },
            rawdoc! { "a": Binary::from(Uuid::new()) },
            rawdoc! { "a": { "b": time } },
            named,
        ] {
            assert!(read::<Document>(&unusual).is_err(), "{unusual:?}");
            let expected: Document = bson::deserialize_from_slice(unusual.as_bytes()).unwrap();
            assert_eq!(super::super::decode::<Document>(&unusual).unwrap(), expected);
        }
        // Only bson's deserializer reads bson's raw types.
        assert!(read::<RawDocumentBuf>(&everything()).is_err());
        assert_eq!(super::super::decode::<RawDocumentBuf>(&everything()).unwrap(), everything());
    }

    #[test]
    fn ignored_field_may_have_an_unusual_type() {
        let document = rawdoc! { "a": 1, "decimal": Decimal128::from_bytes([0; 16]) };
        assert_eq!(read::<Nested>(&document).unwrap(), Nested { a: 1, b: Vec::new() });
    }

    #[test]
    fn depth_is_limited() {
        let nested = |levels| (1..levels).fold(rawdoc! {}, |inner, _| rawdoc! { "": [inner] });
        assert!(read::<Document>(&nested(MOST_LEVELS / 2)).is_ok());
        assert!(read::<Document>(&nested(MOST_LEVELS / 2 + 2)).is_err());
    }

    proptest! {
        /// If a damaged document can be read at all, bson's deserializer reads the same value.
        #[test]
        fn damaged_document_is_read_as_by_bson(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = everything().into_bytes();
            let changeable = bytes.len() - 5;
            for (at, value) in changes {
                bytes[4 + at.index(changeable)] = value;
            }
            let document = RawDocument::from_bytes(&bytes).unwrap();
            if let Ok(read) = read::<Document>(document) {
                let expected: Document = bson::deserialize_from_slice(&bytes).unwrap();
                prop_assert_eq!(bson::serialize_to_vec(&read).unwrap(), bson::serialize_to_vec(&expected).unwrap());
            }
        }
    }
}
