//! `find` and `find_one`.

use crate::client::session::SessionError;
use std::marker::PhantomData;

#[cfg(feature = "gridfs")]
use bson::{RawDocument, RawDocumentBuf};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::Client;
use super::super::cursor::{Cursor, CursorType, TimeoutMode, read};
use super::super::error::ClientError;
use super::super::query::Verb;
use super::fields::Shape;
use super::request::{CursorOptions, Ready, Request, first_of_batch};
use super::{AnyClient, Collection};
use crate::endpoint::Limit;

impl<T, C: AnyClient> Collection<T, C> {
    /// Prepares a query for the documents that match `filter`. Await it to get a [`Cursor`].
    #[track_caller]
    pub fn find(&self, filter: impl Serialize) -> Find<'_, T, C> {
        let mut request = self.request("find");
        request.body.put("filter", "filter", Shape::Document, &filter);
        Find {
            request,
            cursor: CursorOptions::default(),
            is_single_batch: false,
            cursor_type: CursorType::NonTailable,
            documents: PhantomData,
        }
    }

    /// Prepares a query for the first document that matches `filter`. Await it to get the document, or `None`.
    #[track_caller]
    pub fn find_one(&self, filter: impl Serialize) -> FindOne<'_, T, C> {
        let mut request = self.request("find");
        request.body.put("filter", "filter", Shape::Document, &filter);
        FindOne { request, document: PhantomData }
    }
}

/// A query, prepared by [`Collection::find`].
#[must_use = "it is sent when it is awaited or run"]
pub struct Find<'c, T, C = Client> {
    request: Request<'c, C>,
    cursor: CursorOptions,
    /// Whether the limit is negative.
    is_single_batch: bool,
    cursor_type: CursorType,
    documents: PhantomData<fn() -> &'c T>,
}

impl<'c, T, C: AnyClient> Find<'c, T, C> {
    options!([request.body]
        allow_disk_use, allow_partial_results, collation, comment, hint, let_vars, max, max_time, min, no_cursor_timeout,
        projection, return_key, show_record_id, skip, sort,
    );
    cursor_options!();

    /// Sets the maximum number of documents to return (`limit`). Zero means all. A negative number requests as many as
    /// its absolute value, in a single batch.
    pub fn limit(mut self, documents: i64) -> Self {
        self.request.body.set("limit", "limit", Shape::Any, &documents.saturating_abs());
        self.is_single_batch = documents < 0;
        self
    }

    /// Sets the cursor's behaviour at the end of its documents (`tailable` and `awaitData`). Only capped collections
    /// support tailable cursors.
    pub fn cursor_type(mut self, cursor_type: CursorType) -> Self {
        self.cursor_type = cursor_type;
        self
    }

    /// Returns the same query for values of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> Find<'c, U, C> {
        let Self { request, cursor, is_single_batch, cursor_type, .. } = self;
        Find { request, cursor, is_single_batch, cursor_type, documents: PhantomData }
    }

    fn send(self) -> impl Future<Output = Result<Cursor<T>, ClientError>> + Send {
        let Self { mut request, cursor, is_single_batch, cursor_type, .. } = self;
        if is_single_batch {
            request.body.put("limit", "singleBatch", Shape::Any, &true);
        }
        if cursor_type != CursorType::NonTailable {
            request.body.put("cursor_type", "tailable", Shape::Any, &true);
        }
        if cursor_type == CursorType::TailableAwait {
            request.body.put("cursor_type", "awaitData", Shape::Any, &true);
        }
        request.query(Verb::Find, cursor)
    }
}

builder!(Find<T> => Cursor<T>, read_preference, read_concern);

/// A query for one document, prepared by [`Collection::find_one`].
#[must_use = "it is sent when it is awaited or run"]
pub struct FindOne<'c, T, C = Client> {
    request: Request<'c, C>,
    document: PhantomData<fn() -> &'c T>,
}

impl<'c, T, C: AnyClient> FindOne<'c, T, C> {
    options!([request.body]
        allow_disk_use, allow_partial_results, collation, comment, hint, let_vars, max, max_time, min, projection,
        return_key, show_record_id, skip, sort,
    );

    /// Returns the same query for a value of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> FindOne<'c, U, C> {
        FindOne { request: self.request, document: PhantomData }
    }

    fn ready(mut self) -> Result<Ready<'c>, ClientError> {
        self.request.body.add("limit", &1);
        self.request.body.add("singleBatch", &true);
        self.request.ready(false)
    }

    /// Sends the query, with a limit that has already started. Returns the document as the server sent it.
    #[cfg(feature = "gridfs")]
    pub(in crate::client) fn document(
        mut self,
        limit: Limit,
    ) -> impl Future<Output = Result<Option<RawDocumentBuf>, ClientError>> + Send {
        self.request.start(limit);
        let ready = self.ready();
        async move { Ok(first_of_batch("find", &ready?.read().await?)?.map(RawDocument::to_owned)) }
    }

    fn send(self) -> impl Future<Output = Result<Option<T>, ClientError>> + Send + 'c
    where
        T: DeserializeOwned,
    {
        let ready = self.ready();
        async move {
            let reply = ready?.read().await?;
            first_of_batch("find", &reply)?.map(read).transpose()
        }
    }
}

builder!(FindOne<T: DeserializeOwned> => Option<T>, read_preference, read_concern);
