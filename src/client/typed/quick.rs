//! Reads documents with serde in one pass, if they consist of the usual types.
//!
//! bson's deserializer takes more than twice as long for a document of ten fields: it looks at each key three times,
//! and checks each value before it reads it. However, it supports every type, and describes every error. So this module
//! gives up with [`Unusual`] on anything unusual, and [`decode`](super::decode) reads the document again with bson's
//! deserializer.
//!
//! Both deserializers pass the same values to a visitor. Fields that the application's type ignores are skipped here
//! without a check.
//!
//! An application's type may swallow an error and use a default value instead. So this module also records that it gave
//! up, and [`read`] then fails even if the type has produced a value.

use std::any::type_name;
use std::cell::Cell;
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
    let attempt = Attempt::default();
    let kind = ElementType::EmbeddedDocument;
    let value = T::deserialize(Value { kind, bytes: document.as_bytes(), level: 1, attempt: &attempt })?;
    match attempt.gave_up.get() {
        true => Err(Unusual),
        false => Ok(value),
    }
}

/// An attempt to read a document.
#[derive(Default)]
struct Attempt {
    gave_up: Cell<bool>,
}

impl Attempt {
    /// Returns the error, and records it in case the application's type swallows it.
    #[cold]
    fn give_up(&self) -> Unusual {
        self.gave_up.set(true);
        Unusual
    }
}

/// An error: the document is invalid, or contains something that only bson's deserializer can read. There are no
/// details, because bson's deserializer finds the error again.
#[derive(Debug, thiserror::Error)]
#[error("the document is not one of the usual types")]
pub(super) struct Unusual;

impl Error for Unusual {
    fn custom<M: Display>(_: M) -> Self {
        Self
    }
}

/// A value in a document. The value has not been read yet.
struct Value<'a, 'de> {
    kind: ElementType,
    bytes: &'de [u8],
    /// The nesting level of the value, if it is a document or an array.
    level: usize,
    attempt: &'a Attempt,
}

impl<'a, 'de> Value<'a, 'de> {
    fn give_up<T>(&self) -> Result<T, Unusual> {
        Err(self.attempt.give_up())
    }

    fn fixed<const N: usize>(&self) -> Result<[u8; N], Unusual> {
        self.bytes.try_into().map_err(|_| self.attempt.give_up())
    }

    fn text(&self) -> Result<&'de str, Unusual> {
        match self.bytes {
            [_, _, _, _, text @ .., 0] => str::from_utf8(text).map_err(|_| self.attempt.give_up()),
            _ => self.give_up(),
        }
    }

    fn elements(&self) -> Result<Elements<'a, 'de>, Unusual> {
        match self.bytes {
            // The length field is right, because it determined how many bytes belong to this value.
            [_, _, _, _, rest @ .., 0] if self.level <= MOST_LEVELS => {
                Ok(Elements { rest, value: None, level: self.level + 1, of_struct: false, attempt: self.attempt })
            }
            _ => self.give_up(),
        }
    }
}

/// The unread elements of a document or array.
struct Elements<'a, 'de> {
    rest: &'de [u8],
    /// The value that belongs to the last key read.
    value: Option<Value<'a, 'de>>,
    /// The nesting level of documents and arrays among the values.
    level: usize,
    /// Whether the keys are compared with the names of a struct's fields rather than kept.
    of_struct: bool,
    attempt: &'a Attempt,
}

impl<'a, 'de> Elements<'a, 'de> {
    #[inline]
    fn next(&mut self) -> Result<Option<(&'de [u8], Value<'a, 'de>)>, Unusual> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let attempt = self.attempt;
        let ((name, kind, bytes), rest) = element::next(self.rest).ok_or_else(|| attempt.give_up())?;
        self.rest = rest;
        let kind = ElementType::from(kind).ok_or_else(|| attempt.give_up())?;
        Ok(Some((name, Value { kind, bytes, level: self.level, attempt })))
    }
}

impl<'de> Deserializer<'de> for Value<'_, 'de> {
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
                _ => self.give_up(),
            },
            ElementType::Binary => match self.bytes {
                // The generic subtype.
                [_, _, _, _, 0, bytes @ ..] => visitor.visit_borrowed_bytes(bytes),
                _ => self.give_up(),
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
            _ => self.give_up(),
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

    /// A struct with a flattened field keeps keys, and calls `deserialize_map` instead.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unusual> {
        match self.kind {
            ElementType::EmbeddedDocument => visitor.visit_map(Elements { of_struct: true, ..self.elements()? }),
            _ => self.deserialize_any(visitor),
        }
    }

    /// Names that begin with `$` are reserved by bson for types that only its own deserializer supports.
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, Unusual> {
        match name.starts_with('$') {
            true => self.give_up(),
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
            _ => self.give_up(),
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
        identifier
    }
}

impl<'de> MapAccess<'de> for Elements<'_, 'de> {
    type Error = Unusual;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unusual> {
        let Some((name, value)) = self.next()? else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(Key { name, of_struct: self.of_struct, attempt: self.attempt }).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Unusual> {
        seed.deserialize(self.value.take().ok_or_else(|| self.attempt.give_up())?)
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Unusual;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Unusual> {
        let Some((_, value)) = self.next()? else { return Ok(None) };
        seed.deserialize(value).map(Some)
    }
}

/// The name of a field, which is ASCII.
struct Key<'a, 'de> {
    name: &'de [u8],
    /// Whether the key is compared with the names of a struct's fields.
    of_struct: bool,
    attempt: &'a Attempt,
}

impl<'de> Key<'_, 'de> {
    fn text(&self) -> Result<&'de str, Unusual> {
        str::from_utf8(self.name).map_err(|_| self.attempt.give_up())
    }
}

impl<'de> Deserializer<'de> for Key<'_, 'de> {
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

    /// A struct compares the bytes, so they need no UTF-8 check. A type with its own code for keys may refuse bytes.
    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unusual> {
        match self.of_struct {
            true => visitor.visit_borrowed_bytes(self.name).map_err(|_: Unusual| self.attempt.give_up()),
            false => self.deserialize_any(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map struct ignored_any
    }
}

/// Returns whether a visitor creates a [`Bson`], as for bson's own types. Such a visitor accepts shorter forms of a
/// value, which need no allocation. If the type names ever failed to match, the visitor would receive the long forms,
/// which it also accepts.
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
    use bson::{Binary, DateTime, Decimal128, Document, RawBson, RawDocumentBuf, Regex, Timestamp, Uuid, rawdoc};
    use proptest::prelude::*;
    use serde::de::DeserializeOwned;
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

    /// Reads a field as `None` if its type refuses it.
    #[derive(Debug, PartialEq, Deserialize)]
    struct Lenient<T> {
        #[serde(deserialize_with = "or_none", bound = "T: DeserializeOwned")]
        a: Option<T>,
    }

    #[expect(clippy::unnecessary_wraps, reason = "serde calls it")]
    fn or_none<'de, T: DeserializeOwned, D: Deserializer<'de>>(value: D) -> Result<Option<T>, D::Error> {
        Ok(T::deserialize(value).ok())
    }

    /// Asserts that [`decode`](super::super::decode) reads a value as bson's deserializer does, and returns the value.
    #[track_caller]
    fn decoded<T: DeserializeOwned + PartialEq + std::fmt::Debug>(document: &RawDocument) -> T {
        let value = super::super::decode::<T>(document).unwrap();
        assert_eq!(value, bson::deserialize_from_slice::<T>(document.as_bytes()).unwrap());
        value
    }

    #[test]
    fn type_that_swallows_errors_reads_unusual_values() {
        #[track_caller]
        fn is_read<T: DeserializeOwned + PartialEq + std::fmt::Debug>(value: impl Into<RawBson>) {
            let document = rawdoc! { "a": value.into() };
            assert!(decoded::<Lenient<T>>(&document).a.is_some(), "{document:?}");
        }

        #[derive(Debug, PartialEq, Deserialize)]
        enum Shape {
            Circle { radius: i32 },
        }

        is_read::<Decimal128>(Decimal128::from_bytes([0; 16]));
        is_read::<Timestamp>(Timestamp { time: 1, increment: 2 });
        is_read::<Uuid>(RawBson::Binary(Uuid::new().into()));
        is_read::<Binary>(RawBson::Binary(Binary { subtype: BinarySubtype::Md5, bytes: vec![1] }));
        is_read::<Regex>(Regex { pattern: cstr!("a").into(), options: cstr!("i").into() });
        is_read::<RawBson>(1);
        is_read::<RawDocumentBuf>(rawdoc! { "b": 1 });
        is_read::<Bson>(RawBson::MaxKey);
        is_read::<Shape>(rawdoc! { "Circle": { "radius": 1 } });
        is_read::<Nested>(rawdoc! { "a": 1, "größe": 1 });
    }

    /// A struct with its own code for keys, which accepts them only as text.
    #[derive(Debug, PartialEq)]
    struct OfText(i32);

    impl<'de> Deserialize<'de> for OfText {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Field;

            impl Visitor<'_> for Field {
                type Value = Self;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a field")
                }

                fn visit_str<E: Error>(self, _: &str) -> Result<Self, E> {
                    Ok(self)
                }
            }

            impl<'de> DeserializeSeed<'de> for Field {
                type Value = Self;

                fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_identifier(self)
                }
            }

            struct Fields;

            impl<'de> Visitor<'de> for Fields {
                type Value = OfText;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a document")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OfText, A::Error> {
                    map.next_key_seed(Field)?;
                    map.next_value().map(OfText)
                }
            }

            deserializer.deserialize_struct("OfText", &["a"], Fields)
        }
    }

    #[test]
    fn type_that_reads_its_keys_as_text_is_read() {
        assert_eq!(decoded::<OfText>(&rawdoc! { "a": 1 }), OfText(1));
        assert_eq!(decoded::<Lenient<OfText>>(&rawdoc! { "a": { "a": 1 } }).a, Some(OfText(1)));
    }

    #[test]
    fn refusal_by_the_application_is_not_unusual() {
        let document = rawdoc! { "a": "text" };
        assert_eq!(read::<Lenient<i32>>(&document).unwrap(), Lenient { a: None });
        assert_eq!(decoded::<Lenient<i32>>(&document), Lenient { a: None });
    }

    #[test]
    fn flattened_field_that_swallows_errors_gets_its_keys_as_text() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Flattened<R> {
            #[serde(flatten)]
            rest: R,
        }

        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(untagged)]
        enum Rest {
            ByState(BTreeMap<State, i32>),
            Numbers(BTreeMap<String, i32>),
            Nothing {},
        }

        let states = rawdoc! { "New": 1, "Paid": 2 };
        let numbers = rawdoc! { "a": 1 };
        assert!(decoded::<Flattened<Option<serde_json::Value>>>(&numbers).rest.is_some());
        assert!(decoded::<Flattened<Option<BTreeMap<State, i32>>>>(&states).rest.is_some());
        assert!(matches!(decoded::<Flattened<Rest>>(&states).rest, Rest::ByState(_)));
        assert!(matches!(decoded::<Flattened<Rest>>(&numbers).rest, Rest::Numbers(_)));
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
