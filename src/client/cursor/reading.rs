//! Reading a cursor's documents: all at once, or one at a time without a copy.

use serde::de::{Deserialize, DeserializeOwned};

use super::Cursor;
use super::batch::unreadable;
use crate::client::ClientError;
use crate::client::typed::decode;

impl<T> Cursor<T> {
    /// Advances to the next document, which [`current`](Self::current) then reads. Returns false where
    /// [`next`](Self::next) would return `None`.
    ///
    /// # Errors
    ///
    /// The same as for [`next`](Self::next).
    ///
    /// # Cancel safety
    ///
    /// The same as for [`next`](Self::next).
    pub async fn advance(&mut self) -> Result<bool, ClientError> {
        Ok(self.next_document().await?.is_some())
    }

    /// Reads the document that the cursor last returned. Its strings can be borrowed from the batch.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::{Document, doc};
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize)]
    /// struct Customer<'b> {
    ///     name: &'b str,
    /// }
    ///
    /// let mut customers = client.database("shop").collection::<Document>("customers").find(doc! {}).await?;
    /// while customers.advance().await? {
    ///     let customer: Customer<'_> = customers.current()?;
    ///     println!("{}", customer.name);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ClientError::Reply`] if serde cannot read the document, or if there is none: the cursor has not advanced, or
    /// is finished.
    #[doc(alias = "deserialize_current")]
    pub fn current<'b, U: Deserialize<'b>>(&'b self) -> Result<U, ClientError> {
        let document = self.batch.current();
        let document = document.ok_or_else(|| unreadable("the cursor is at no document".to_owned()))?;
        decode(document).map_err(unreadable)
    }
}

impl<T: DeserializeOwned> Cursor<T> {
    /// Reads all documents into a collection that the caller chooses, such as a `Vec`. A tailable cursor yields only
    /// the documents that exist at the moment.
    ///
    /// # Errors
    ///
    /// The same as for [`next`](Self::next). Stops at the first error.
    ///
    /// # Cancel safety
    ///
    /// The documents that were already read are lost.
    pub async fn try_collect<C: Default + Extend<T>>(mut self) -> Result<C, ClientError> {
        let mut documents = C::default();
        while let Some(document) = self.next_if_any().await? {
            documents.extend([document]);
        }
        Ok(documents)
    }
}
