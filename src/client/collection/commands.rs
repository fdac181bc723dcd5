//! The application's own commands: `run_command` and `run_cursor_command`.

use std::marker::PhantomData;
use std::time::Duration;

use bson::Document;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::Client;
use super::super::cursor::{Cursor, CursorType, TimeoutMode};
use super::super::error::ClientError;
use super::super::typed::decode;
use super::fields::{Fields, Shape};
use super::request::Request;
use super::{AnyClient, Database};
use crate::client::session::SessionError;
use crate::endpoint::Limit;

impl<C: AnyClient> Database<C> {
    /// Prepares a command of the application's choice, to run on the primary. The command is a document, or any value
    /// that serde serializes as a document. Await it to get the reply or, after [`typed`](RunCommand::typed), the reply
    /// as any type. The client adds no read or write concern to the command.
    #[track_caller]
    #[doc(alias = "run_raw_command")]
    pub fn run_command(&self, command: impl Serialize) -> RunCommand<'_, Document, C> {
        RunCommand { request: self.request_of_any(&command), reply: PhantomData }
    }

    /// Prepares a command of the application's choice that opens a cursor, to run on the primary. Await it to get a
    /// [`Cursor`] of documents or, after [`typed`](RunCursorCommand::typed), of any type. The client adds no read or
    /// write concern to the command.
    ///
    /// ```no_run
    /// # async fn example(shop: wharf::Database) -> Result<(), wharf::ClientError> {
    /// use bson::doc;
    ///
    /// let mut checked = shop.run_cursor_command(doc! { "checkMetadataConsistency": 1 }).batch_size(10).await?;
    /// while let Some(inconsistency) = checked.next().await? {
    ///     println!("{inconsistency:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn run_cursor_command(&self, command: impl Serialize) -> RunCursorCommand<'_, Document, C> {
        RunCursorCommand {
            request: self.request_of_any(&command),
            more: Fields::new(),
            batch_size: None,
            max_time: None,
            cursor_type: None,
            timeout_mode: None,
            documents: PhantomData,
        }
    }

    #[track_caller]
    fn request_of_any(&self, command: &impl Serialize) -> Request<'_, C> {
        let mut body = Fields::new();
        body.extend("command", command);
        self.namespace.request_without_settings(body)
    }
}

/// The application's own command, prepared by [`Database::run_command`].
#[must_use = "it is sent when it is awaited or run"]
pub struct RunCommand<'c, T = Document, C = Client> {
    request: Request<'c, C>,
    reply: PhantomData<fn() -> &'c T>,
}

impl<'c, T, C: AnyClient> RunCommand<'c, T, C> {
    /// Returns the same command, but with a reply that serde deserializes as another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> RunCommand<'c, U, C> {
        RunCommand { request: self.request, reply: PhantomData }
    }

    fn send(self) -> impl Future<Output = Result<T, ClientError>> + Send
    where
        T: DeserializeOwned,
    {
        let ready = self.request.ready(false);
        async move {
            let reply = ready?.command(false).await?;
            decode(&reply).map_err(|reason| ClientError::unreadable("a command", reason))
        }
    }
}

builder!(RunCommand<T: DeserializeOwned> => T, read_preference);

/// The application's own command that opens a cursor, prepared by [`Database::run_cursor_command`].
#[must_use = "it is sent when it is awaited or run"]
pub struct RunCursorCommand<'c, T = Document, C = Client> {
    request: Request<'c, C>,
    /// The fields to add to each `getMore`.
    more: Fields,
    batch_size: Option<i32>,
    max_time: Option<Duration>,
    cursor_type: Option<CursorType>,
    timeout_mode: Option<TimeoutMode>,
    documents: PhantomData<fn() -> &'c T>,
}

impl<'c, T, C: AnyClient> RunCursorCommand<'c, T, C> {
    /// Sets the number of documents in each later batch (`batchSize` of each `getMore`). By default the server decides,
    /// because the client does not inspect the command.
    pub fn batch_size(mut self, documents: i32) -> Self {
        self.batch_size = Some(documents);
        self
    }

    /// Sets the comment of each `getMore`. By default, there is no comment.
    pub fn comment(mut self, comment: impl Serialize) -> Self {
        self.more.set("comment", "comment", Shape::Any, &comment);
        self
    }

    /// Sets `maxTimeMS` of each `getMore`: how long the server waits for new documents. This applies only to cursors
    /// that await data.
    pub fn max_time(mut self, limit: Duration) -> Self {
        self.max_time = Some(limit);
        self
    }

    /// Sets the type of the cursor that the command opens. By default, the command's `tailable` and `awaitData` fields
    /// decide.
    pub fn cursor_type(mut self, cursor_type: CursorType) -> Self {
        self.cursor_type = Some(cursor_type);
        self
    }

    /// Sets what `timeoutMS` limits. This requires a `timeoutMS`, in the call or in the options.
    pub fn timeout_mode(mut self, mode: TimeoutMode) -> Self {
        self.timeout_mode = Some(mode);
        self
    }

    /// Returns the same command, for documents of another type.
    #[doc(alias = "with_type")]
    pub fn typed<U>(self) -> RunCursorCommand<'c, U, C> {
        let Self { request, more, batch_size, max_time, cursor_type, timeout_mode, .. } = self;
        RunCursorCommand { request, more, batch_size, max_time, cursor_type, timeout_mode, documents: PhantomData }
    }

    fn send(self) -> impl Future<Output = Result<Cursor<T>, ClientError>> + Send {
        let Self { request, more, batch_size, max_time, cursor_type, timeout_mode, .. } = self;
        let cursor = more.finish().map(|more| {
            request.cursor(false, move |opening| {
                let mut opening = opening.batch_size(batch_size.unwrap_or(0)).comment(more);
                if let Some(limit) = max_time {
                    opening = opening.max_await_time(limit);
                }
                if let Some(cursor_type) = cursor_type {
                    opening = opening.cursor_type(cursor_type);
                }
                if let Some(mode) = timeout_mode {
                    opening = opening.timeout_mode(mode);
                }
                opening
            })
        });
        async move { Ok(cursor?.await?.typed()) }
    }
}

builder!(RunCursorCommand<T> => Cursor<T>, read_preference);
