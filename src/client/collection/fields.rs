//! The documents of commands and statements while they are being built.

use std::sync::Arc;

use bson::spec::ElementType;
use bson::{RawDocument, RawDocumentBuf, serialize_to_buffer};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::super::appending::without;
use super::super::error::ClientError;
use super::super::typed::{encode, extend, refuse_second};
use crate::endpoint::wire::reply::has_field;

/// Enough room for most commands and statements, in bytes.
const USUAL_ROOM: usize = 256;

/// The allowed types of a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::client) enum Shape {
    Any,
    Document,
    Array,
    /// The name of an index, or its keys.
    Hint,
    /// Update operators, or a pipeline.
    Update,
}

impl Shape {
    /// Refuses a value of another type.
    fn check(self, argument: &'static str, kind: Option<ElementType>) -> Result<(), ClientError> {
        use ElementType::{Array, EmbeddedDocument, String};

        let (allowed, form): (&[ElementType], _) = match self {
            Self::Any => return Ok(()),
            Self::Document => (&[EmbeddedDocument], "a document"),
            Self::Array => (&[Array], "an array"),
            Self::Hint => (&[EmbeddedDocument, String], "the name of an index or a document of its keys"),
            Self::Update => (&[EmbeddedDocument, Array], "a document of operators or an array of stages"),
        };
        match kind {
            Some(kind) if allowed.contains(&kind) => Ok(()),
            Some(kind) => Err(refused(argument, format!("it must be {form}, got {kind:?}"))),
            None => Err(refused(argument, format!("it must be {form}"))),
        }
    }
}

/// A document that serde serializes field by field into one buffer. If a field is refused, the error is kept instead of
/// the document.
#[derive(Debug, Clone)]
pub(in crate::client) struct Fields {
    /// The whole document, unless a field was refused.
    bytes: Vec<u8>,
    /// Where the last field begins.
    last: usize,
    /// Whether it contains fields chosen by the application, whose names may collide with fields that the client adds
    /// later.
    is_extended: bool,
    refused: Option<ClientError>,
}

impl Fields {
    /// Creates a document without fields.
    pub fn new() -> Self {
        let mut bytes = Vec::with_capacity(USUAL_ROOM);
        bytes.extend_from_slice(&[5, 0, 0, 0, 0]);
        Self { bytes, last: 4, is_extended: false, refused: None }
    }

    /// Creates a command document that contains the command's name and target.
    pub fn command<V: Serialize + ?Sized>(name: &'static str, target: &V) -> Self {
        let mut this = Self::new();
        this.add(name, target);
        this
    }

    /// Adds a field that the client sets itself, and only once.
    pub fn add<V: Serialize + ?Sized>(&mut self, field: &'static str, value: &V) {
        self.put(field, field, Shape::Any, value);
    }

    /// Adds a field that no other call adds. `argument` is its name in errors.
    pub fn put<V: Serialize + ?Sized>(&mut self, argument: &'static str, field: &'static str, shape: Shape, value: &V) {
        if self.refused.is_none()
            && let Err(error) = self.try_put(argument, field, shape, value)
        {
            self.refuse(error);
        }
    }

    /// Sets an option, replacing its earlier value. A null value, such as `None`, unsets the option. `argument` is the
    /// option's name in errors.
    pub fn set<V: Serialize + ?Sized>(&mut self, argument: &'static str, field: &'static str, shape: Shape, value: &V) {
        if self.refused.is_none()
            && let Err(error) = self.try_set(argument, field, shape, value)
        {
            self.refuse(error);
        }
    }

    /// Adds the fields of an argument: anything that serde serializes as a document.
    pub fn extend(&mut self, argument: &'static str, value: &impl Serialize) {
        if self.refused.is_none()
            && let Err(error) = self.append_all(argument, value)
        {
            self.refuse(error);
        }
    }

    /// Records an error, unless one is already recorded.
    pub fn refuse(&mut self, error: ClientError) {
        self.refused.get_or_insert(error);
    }

    /// Returns whether the document contains the field.
    pub fn has(&self, field: &str) -> bool {
        self.document().is_ok_and(|document| has_field(document, field))
    }

    /// Returns the value of a field, if it is a document.
    pub fn document_at(&self, field: &str) -> Option<&RawDocument> {
        self.document().ok()?.get_document(field).ok()
    }

    /// Returns the value that was last added, if it is a document.
    pub fn last_document(&self) -> Option<&RawDocument> {
        let is_document = self.refused.is_none() && self.bytes[self.last] == ElementType::EmbeddedDocument as u8;
        let named = is_document.then(|| &self.bytes[self.last + 1..self.bytes.len() - 1])?;
        let name = named.iter().position(|&byte| byte == 0)?;
        RawDocument::from_bytes(&named[name + 1..]).ok()
    }

    /// Returns the document so far.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] for the first field that was refused.
    pub fn document(&self) -> Result<&RawDocument, ClientError> {
        match &self.refused {
            Some(error) => Err(error.clone()),
            None => RawDocument::from_bytes(&self.bytes).map_err(unreadable),
        }
    }

    /// Returns the whole document.
    ///
    /// # Errors
    ///
    /// The same as for [`document`](Self::document).
    pub fn finish(self) -> Result<RawDocumentBuf, ClientError> {
        match self.refused {
            Some(error) => Err(error),
            None => RawDocumentBuf::from_bytes(self.bytes).map_err(unreadable),
        }
    }

    fn try_put<V: Serialize + ?Sized>(
        &mut self,
        argument: &'static str,
        field: &'static str,
        shape: Shape,
        value: &V,
    ) -> Result<(), ClientError> {
        if self.is_extended {
            refuse_second(argument, self.document()?, field)?;
        }
        let kind = self.append(argument, field, value)?;
        shape.check(argument, kind)
    }

    fn try_set<V: Serialize + ?Sized>(
        &mut self,
        argument: &'static str,
        field: &'static str,
        shape: Shape,
        value: &V,
    ) -> Result<(), ClientError> {
        if self.has(field) {
            self.remove(field)?;
        }
        match self.append(argument, field, value)? {
            Some(ElementType::Null) => self.remove(field),
            kind => shape.check(argument, kind),
        }
    }

    /// Adds a field, and returns the type of its value.
    fn append<V: Serialize + ?Sized>(
        &mut self,
        argument: &'static str,
        field: &'static str,
        value: &V,
    ) -> Result<Option<ElementType>, ClientError> {
        // The new element begins at the byte that ends the document.
        let start = self.bytes.len() - 1;
        self.bytes.truncate(start);
        self.last = start;
        serialize_to_buffer(&Field { name: field, value }, &mut self.bytes)
            .map_err(|error| refused(argument, error.to_string()))?;
        // Serializing wraps the element in a document. The length of this document is removed, and its end becomes the
        // new end.
        self.bytes.copy_within(start + 4.., start);
        self.bytes.truncate(self.bytes.len() - 4);
        let length = i32::try_from(self.bytes.len()).map_err(|error| refused(argument, error.to_string()))?;
        self.bytes[..4].copy_from_slice(&length.to_le_bytes());
        Ok(ElementType::from(self.bytes[start]))
    }

    fn remove(&mut self, field: &str) -> Result<(), ClientError> {
        if let Some(rest) = without(self.document()?, field) {
            self.bytes = rest.into_bytes();
        }
        Ok(())
    }

    fn append_all(&mut self, argument: &'static str, value: &impl Serialize) -> Result<(), ClientError> {
        let fields = encode(argument, value)?;
        let mut whole = RawDocumentBuf::from_bytes(std::mem::take(&mut self.bytes)).map_err(unreadable)?;
        extend(argument, &mut whole, &fields)?;
        (self.bytes, self.is_extended) = (whole.into_bytes(), true);
        Ok(())
    }
}

/// A document with one field.
struct Field<'v, V: ?Sized> {
    name: &'static str,
    value: &'v V,
}

impl<V: Serialize + ?Sized> Serialize for Field<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(self.name, self.value)?;
        map.end()
    }
}

/// Returns the error for a refused argument.
pub(in crate::client) fn refused(argument: &'static str, reason: impl Into<Arc<str>>) -> ClientError {
    ClientError::Argument { name: argument, reason: reason.into() }
}

fn unreadable(error: bson::error::Error) -> ClientError {
    refused("options", error.to_string())
}
