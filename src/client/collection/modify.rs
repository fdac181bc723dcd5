//! `find_one_and_update`, `find_one_and_replace` and `find_one_and_delete`: the `findAndModify` command.

use crate::client::session::SessionError;
use std::borrow::Borrow;
use std::marker::PhantomData;

use bson::{RawBsonRef, RawDocument};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::Client;
use super::super::cursor::read;
use super::super::error::ClientError;
use super::fields::Shape;
use super::request::Request;
use super::update::{set_replacement, set_update};
use super::{AnyClient, Collection};
use crate::endpoint::Limit;

const COMMAND: &str = "findAndModify";

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares an update of the first document that matches `filter`. Await it to get the document before the update,
    /// or [after](FindOneAndUpdate::return_document) it. `update` has the same form as in
    /// [`update_one`](Self::update_one). With the write concern `w: 0` there is no document.
    #[track_caller]
    pub fn find_one_and_update(&self, filter: impl Serialize, update: impl Serialize) -> FindOneAndUpdate<'_, T, C> {
        let mut request = self.request_of_modify(&filter);
        set_update(&mut request.body, "update", &update);
        FindOneAndUpdate { request, document: PhantomData }
    }

    /// Prepares a replacement of the first document that matches `filter`. Await it to get the document before or
    /// [after](FindOneAndReplace::return_document) the replacement. With the write concern `w: 0` there is no document.
    #[track_caller]
    pub fn find_one_and_replace(
        &self,
        filter: impl Serialize,
        replacement: impl Borrow<T>,
    ) -> FindOneAndReplace<'_, T, C>
    where
        T: Serialize,
    {
        let mut request = self.request_of_modify(&filter);
        set_replacement(&mut request.body, "update", replacement.borrow());
        FindOneAndReplace { request, document: PhantomData }
    }

    /// Prepares a deletion of the first document that matches `filter`. Await it to get the document. With the write
    /// concern `w: 0` there is no document.
    #[track_caller]
    pub fn find_one_and_delete(&self, filter: impl Serialize) -> FindOneAndDelete<'_, T, C> {
        let mut request = self.request_of_modify(&filter);
        request.body.add("remove", &true);
        FindOneAndDelete { request, document: PhantomData }
    }

    #[track_caller]
    fn request_of_modify(&self, filter: &impl Serialize) -> Request<'_, C> {
        let mut request = self.request(COMMAND);
        request.body.put("filter", "query", Shape::Document, filter);
        request
    }
}

/// Which document [`Collection::find_one_and_update`] and [`Collection::find_one_and_replace`] return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReturnDocument {
    /// The document before the change. This is the default.
    Before,
    /// The document after the change.
    After,
}

/// Declares the type of a builder for the command, and the methods that all three share.
macro_rules! modifies {
    ($(#[$doc:meta])* $name:ident: $($option:ident),* $(; $returns:ident)?) => {
        $(#[$doc])*
        #[must_use = "it is sent when it is awaited or run"]
        pub struct $name<'c, T, C = Client> {
            request: Request<'c, C>,
            document: PhantomData<fn() -> &'c T>,
        }

        impl<'c, T, C: AnyClient> $name<'c, T, C> {
            options!([request.body] collation, comment, fields, hint, let_vars, max_time, sort, $($option),*);

            $(
                /// Sets which document to return (`new`).
                pub fn return_document(mut self, $returns: ReturnDocument) -> Self {
                    self.request.body.set("return_document", "new", Shape::Any, &($returns == ReturnDocument::After));
                    self
                }
            )?

            /// Returns the same call with a document of another type.
            #[doc(alias = "with_type")]
            pub fn typed<U>(self) -> $name<'c, U, C> {
                $name { request: self.request, document: PhantomData }
            }

            fn send(self) -> impl Future<Output = Result<Option<T>, ClientError>> + Send
            where
                T: DeserializeOwned,
            {
                let ready = self.request.ready(true);
                async move {
                    let mut ready = ready?;
                    let is_unacknowledged = ready.is_unacknowledged();
                    let reply = ready.write(true, &[]).await?;
                    // The server replies even if the write is unacknowledged.
                    if is_unacknowledged { Ok(None) } else { value_of(&reply)?.map(read).transpose() }
                }
            }
        }

        builder!($name<T: DeserializeOwned> => Option<T>, write_concern);
    };
}

modifies! {
    /// An update that returns the document it changes, prepared by [`Collection::find_one_and_update`].
    FindOneAndUpdate: array_filters, bypass_document_validation, upsert; document
}

modifies! {
    /// A replacement that returns the document it replaces, prepared by [`Collection::find_one_and_replace`].
    FindOneAndReplace: bypass_document_validation, upsert; document
}

modifies! {
    /// A deletion that returns the document it deletes, prepared by [`Collection::find_one_and_delete`].
    FindOneAndDelete:
}

/// Returns the document in the reply, if there is one.
fn value_of(reply: &RawDocument) -> Result<Option<&RawDocument>, ClientError> {
    match reply.get("value") {
        Ok(Some(RawBsonRef::Document(document))) => Ok(Some(document)),
        Ok(Some(RawBsonRef::Null) | None) => Ok(None),
        Ok(Some(_)) => Err(ClientError::unreadable(COMMAND, "value is no document")),
        Err(error) => Err(ClientError::unreadable(COMMAND, error.to_string())),
    }
}
