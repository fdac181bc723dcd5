//! All documents of a cursor at once.

use serde::de::DeserializeOwned;

use super::Cursor;
use crate::client::ClientError;

impl<T: DeserializeOwned> Cursor<T> {
    /// Reads all documents into a collection of the caller's, such as a `Vec`. Of a tailable cursor, those that there are at
    /// present.
    ///
    /// # Errors
    ///
    /// Those of [`next_typed`](Self::next_typed): the first one ends it.
    ///
    /// # Cancel safety
    ///
    /// The documents that were read are lost.
    pub async fn try_collect<C: Default + Extend<T>>(mut self) -> Result<C, ClientError> {
        let mut documents = C::default();
        while let Some(document) = self.next_typed().await? {
            documents.extend([document]);
        }
        Ok(documents)
    }
}
