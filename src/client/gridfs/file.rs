//! The documents that describe files.

use bson::{Bson, DateTime, Document};
use serde::de::{Deserialize, Deserializer, Error as _};

/// A file's document in its bucket's files collection.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FilesCollectionDocument {
    /// The file's `_id`: an [`ObjectId`](bson::oid::ObjectId), or a value that the application chose.
    #[serde(rename = "_id")]
    pub id: Bson,
    /// The length in bytes.
    pub length: u64,
    /// The length of each chunk except the last, in bytes (`chunkSize`).
    #[serde(rename = "chunkSize")]
    pub chunk_size_bytes: u32,
    /// When the upload was finished (`uploadDate`).
    pub upload_date: DateTime,
    /// The name. Files with the same name are revisions of one another. Old files may have no name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// Data that the application has stored with the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Document>,
    /// All other fields, such as `md5` and `contentType` from older programs.
    #[serde(flatten)]
    pub other: Document,
}

impl<'de> Deserialize<'de> for FilesCollectionDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of(Document::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl FilesCollectionDocument {
    pub(super) fn of(mut file: Document) -> Result<Self, String> {
        let id = file.remove("_id").ok_or("a file has no _id")?;
        let length = number(&mut file, "length")?;
        let chunk_size_bytes = number(&mut file, "chunkSize")?;
        let Some(Bson::DateTime(upload_date)) = file.remove("uploadDate") else {
            return Err("a file has no date in uploadDate".to_owned());
        };
        let filename = match file.remove("filename") {
            Some(Bson::String(name)) => Some(name),
            Some(Bson::Null) | None => None,
            Some(_) => return Err("the filename of a file must be a text".to_owned()),
        };
        let metadata = match file.remove("metadata") {
            Some(Bson::Document(metadata)) => Some(metadata),
            Some(Bson::Null) | None => None,
            Some(_) => return Err("the metadata of a file must be a document".to_owned()),
        };
        Ok(Self { id, length, chunk_size_bytes, upload_date, filename, metadata, other: file })
    }

    /// Returns how many chunks the file has.
    pub(super) fn chunk_count(&self) -> u64 {
        self.length.div_ceil(u64::from(self.chunk_size_bytes.max(1)))
    }

    pub(super) fn chunk_length(&self, n: u64) -> u64 {
        let size = u64::from(self.chunk_size_bytes);
        size.min(self.length.saturating_sub(n * size))
    }
}

/// Removes a whole number from the document, where it may have any numeric type (GridFS, "Files collection document").
fn number<N: TryFrom<i64>>(file: &mut Document, field: &str) -> Result<N, String> {
    let number = match file.remove(field) {
        Some(Bson::Int32(number)) => Some(number.into()),
        Some(Bson::Int64(number)) => Some(number),
        // A double represents every whole number below 2^53 exactly.
        Some(Bson::Double(number)) if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 => {
            Some(number as i64)
        }
        _ => None,
    };
    number.and_then(|number| N::try_from(number).ok()).ok_or_else(|| format!("a file has no length in {field}"))
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::super::super::cursor::convert;
    use super::*;
    use crate::endpoint::wire::nesting::MOST_LEVELS;

    fn file(length: impl Into<Bson>, chunk_size: impl Into<Bson>) -> Document {
        doc! { "_id": 1, "length": length.into(), "chunkSize": chunk_size.into(), "uploadDate": DateTime::MIN }
    }

    #[test]
    fn lengths_may_have_any_numeric_type() {
        for (length, chunk_size) in [
            (Bson::Int32(10), Bson::Int64(4)),
            (Bson::Int64(10), Bson::Double(4.0)),
            (Bson::Double(10.0), Bson::Int32(4)),
        ] {
            let file = FilesCollectionDocument::of(file(length, chunk_size)).unwrap();
            assert_eq!((file.length, file.chunk_size_bytes, file.chunk_count()), (10, 4, 3));
            assert_eq!([0, 1, 2].map(|n| file.chunk_length(n)), [4, 4, 2]);
        }
    }

    #[test]
    fn lengths_must_be_whole_and_not_negative() {
        for (length, chunk_size, field) in [
            (Bson::Double(1.5), Bson::Int32(4), "length"),
            (Bson::Int32(-1), Bson::Int32(4), "length"),
            (Bson::Int32(1), Bson::Int64(1 << 40), "chunkSize"),
            (Bson::Int32(1), Bson::Null, "chunkSize"),
        ] {
            let error = FilesCollectionDocument::of(file(length, chunk_size)).unwrap_err();
            assert!(error.ends_with(field), "{error}");
        }
    }

    #[test]
    fn file_of_an_older_program_keeps_its_fields_when_it_is_read_and_written() {
        let mut old = file(1, 4);
        old.extend(doc! { "md5": "x", "contentType": "text/plain", "aliases": ["a"] });
        let file = FilesCollectionDocument::of(old).unwrap();
        let written = bson::serialize_to_document(&file).unwrap();
        assert!(
            written.contains_key("uploadDate")
                && written.contains_key("chunkSize")
                && !written.contains_key("metadata")
        );
        assert_eq!(FilesCollectionDocument::of(written), Ok(file.clone()));
        assert_eq!((file.filename, file.metadata), (None, None));
        assert_eq!(file.other, doc! { "md5": "x", "contentType": "text/plain", "aliases": ["a"] });
    }

    #[test]
    fn error_names_the_document_and_deep_documents_are_refused() {
        let read = |file: Document| {
            let file = bson::RawDocumentBuf::try_from(&file).unwrap();
            convert(&file, FilesCollectionDocument::of).map_err(|error| error.to_string())
        };
        let mut named = file(1, Bson::Null);
        named.insert("_id", 7);
        let error = read(named).unwrap_err();
        assert!(error.contains("a file has no length in chunkSize of the document with _id 7"), "{error}");

        let deep = (0..MOST_LEVELS).fold(doc! {}, |inner, _| doc! { "a": inner });
        let mut nested = file(1, 4);
        nested.insert("metadata", deep);
        let error = read(nested).unwrap_err();
        assert!(error.contains("nested in more than"), "{error}");
    }
}
