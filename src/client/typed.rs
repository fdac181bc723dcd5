//! Commands and replies as the application's own types, converted by serde.

mod quick;

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::time::Duration;

#[cfg(feature = "gridfs")]
use bson::Document;
use bson::{Bson, RawDocument, RawDocumentBuf, serialize_to_buffer};
use serde::de::{Deserialize, DeserializeOwned};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::Client;
use super::appending::elements;
use super::error::ClientError;
use super::operation::Operation;
use super::session_handle::Session;
use super::timed::Limited;
use crate::client::session::SessionError;
use crate::endpoint::Limit;
use crate::endpoint::options::ReadPreference;
use crate::endpoint::wire::{nesting, reply};
use crate::text::printable::{Printable, PrintableError};

/// The initial capacity for a document, in bytes. This is enough for most of an application's documents.
const USUAL_ROOM: usize = 512;

impl Client {
    /// Prepares a command whose document and reply are values of the application's own types. Serde serializes the
    /// document, and deserializes the reply. Await the value to run the command on the primary.
    ///
    /// [`run_command`](Self::run_command) and [`run`](Self::run) take and return raw documents, without copying or
    /// converting them.
    ///
    /// ```no_run
    /// # async fn example(client: wharf::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use bson::doc;
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize)]
    /// #[serde(rename_all = "camelCase")]
    /// struct Build {
    ///     version: String,
    ///     max_bson_object_size: i32,
    /// }
    ///
    /// let build: Build = client.run_typed("admin", doc! { "buildInfo": 1 }).await?;
    /// println!("{} allows {} bytes", build.version, build.max_bson_object_size);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn run_typed<'c, R: DeserializeOwned>(
        &self,
        database: &'c str,
        command: impl Serialize,
    ) -> TypedCommand<'c, R> {
        TypedCommand {
            prepared: Prepared::new(self, database, encode("command", &command)),
            site: Location::caller(),
            reply: PhantomData,
        }
    }
}

/// A command that is run when the value is awaited. Serde deserializes its reply as `R`.
#[must_use = "the command is sent when the value is awaited"]
pub struct TypedCommand<'c, R> {
    prepared: Prepared<'c>,
    site: &'static Location<'static>,
    reply: PhantomData<fn() -> &'c R>,
}

impl<'c, R> TypedCommand<'c, R> {
    /// Sets the session that the command belongs to: see [`Operation::session`].
    pub fn session(mut self, session: &'c mut Session) -> Self {
        self.prepared.session = Some(session);
        self
    }

    /// Sets the servers that the command may be sent to. The default is the primary.
    pub fn read_preference(mut self, preference: &'c ReadPreference) -> Self {
        self.prepared.read_preference = Some(preference);
        self
    }

    /// Sets `timeoutMS`: see [`Operation::timeout`].
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.prepared.timeout = Limit::of(limit);
        self
    }

    /// Returns the same command, with another type for its reply.
    pub fn typed<U: DeserializeOwned>(self) -> TypedCommand<'c, U> {
        TypedCommand { prepared: self.prepared, site: self.site, reply: PhantomData }
    }
}

impl<'c, R: DeserializeOwned> IntoFuture for TypedCommand<'c, R> {
    type Output = Result<R, ClientError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'c>>;

    /// Runs the command.
    ///
    /// # Errors
    ///
    /// [`ClientError::Argument`] if serde could not serialize the command as a document. [`ClientError::Reply`] if it
    /// could not read the reply. Otherwise the errors of [`Client::run`].
    ///
    /// # Cancel safety
    ///
    /// The same as for [`Client::run`].
    fn into_future(self) -> Self::IntoFuture {
        let reply = self.prepared.run(self.site);
        Box::pin(async move {
            let reply = reply.await?;
            decode(&reply).map_err(|reason| ClientError::unreadable("a command", reason))
        })
    }
}

impl<R> fmt::Debug for TypedCommand<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TypedCommand").field("database", &self.prepared.database).finish_non_exhaustive()
    }
}

impl<'c, R: DeserializeOwned> Limited for TypedCommand<'c, R> {
    fn limit(&self) -> Result<Limit, SessionError> {
        self.prepared.limit()
    }

    fn set_limit(&mut self, limit: Limit) {
        self.prepared.timeout = limit;
    }
}

/// A command that owns its document, with the settings for running it.
pub(super) struct Prepared<'c> {
    pub client: Client,
    pub database: &'c str,
    /// The document, or the reason that serde could not serialize it.
    pub body: Result<RawDocumentBuf, ClientError>,
    pub session: Option<&'c mut Session>,
    pub read_preference: Option<&'c ReadPreference>,
    pub timeout: Limit,
}

impl<'c> Prepared<'c> {
    pub(super) fn new(client: &Client, database: &'c str, body: Result<RawDocumentBuf, ClientError>) -> Self {
        Self { client: client.clone(), database, body, session: None, read_preference: None, timeout: Limit::Unset }
    }

    /// Runs the command.
    fn run(self, site: &'static Location<'static>) -> impl Future<Output = Result<RawDocumentBuf, ClientError>> + Send {
        async move {
            let Self { client, database, body, session, read_preference, timeout } = self;
            let body = body?;
            client.run_at(with(Operation::new(database, &body), session, read_preference, timeout), site).await
        }
    }

    /// Returns the time limit without starting it.
    ///
    /// # Errors
    ///
    /// [`SessionError::TimeoutInTransaction`] if both the command and its session have a limit.
    pub(super) fn limit(&self) -> Result<Limit, SessionError> {
        self.client.limit_in(self.session.as_ref().map(|session| &**session.explicit()), self.timeout)
    }
}

/// Applies the command's settings to the operation.
pub(super) fn with<'o>(
    mut operation: Operation<'o>,
    session: Option<&'o mut Session>,
    read_preference: Option<&'o ReadPreference>,
    timeout: Limit,
) -> Operation<'o> {
    if let Some(session) = session {
        operation = operation.session(session);
    }
    if let Some(preference) = read_preference {
        operation = operation.read_preference(preference);
    }
    operation.command.set_limit(timeout);
    operation
}

/// The start of a command: its name and target, and its first argument.
pub(super) struct Start<'s, V> {
    pub command: &'static str,
    pub target: &'s str,
    pub argument: &'static str,
    pub value: &'s V,
}

impl<V: Serialize> Serialize for Start<'_, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry(self.command, self.target)?;
        map.serialize_entry(self.argument, self.value)?;
        map.end()
    }
}

/// Writes a value as a document. `name` is the value's name in the error. A raw document is copied unchanged.
///
/// # Errors
///
/// [`ClientError::Argument`] if serde fails, or if the value is not a document.
pub(super) fn encode(name: &'static str, value: &impl Serialize) -> Result<RawDocumentBuf, ClientError> {
    encode_hinted(name, value, "")
}

/// Like [`encode`], but if the value is not a document, the error includes `hint` as advice.
///
/// # Errors
///
/// The same as for [`encode`].
pub(super) fn encode_hinted(
    name: &'static str,
    value: &impl Serialize,
    hint: &str,
) -> Result<RawDocumentBuf, ClientError> {
    let bytes = encode_after(name, value, hint, 0)?;
    RawDocumentBuf::from_bytes(bytes).map_err(|error| ClientError::Argument { name, reason: error.to_string().into() })
}

/// Like [`encode_hinted`], but leaves room before the document.
///
/// # Errors
///
/// The same as for [`encode`].
pub(super) fn encode_after(
    name: &'static str,
    value: &impl Serialize,
    hint: &str,
    room: usize,
) -> Result<Vec<u8>, ClientError> {
    let refused = |reason: String| ClientError::Argument { name, reason: reason.into() };
    let mut bytes = Vec::with_capacity(room + USUAL_ROOM);
    bytes.resize(room, 0);
    serialize_to_buffer(value, &mut bytes).map_err(|error| match bson::serialize_to_bson(value) {
        Ok(Bson::Document(_)) | Err(_) => refused(error.to_string()),
        Ok(other) => refused(format!("it must be a document, got {:?}{hint}", other.element_type())),
    })?;
    Ok(bytes)
}

/// Reads a server's document as a value of the application's type, or reports which field of which document serde
/// cannot read.
pub(super) fn decode<'d, T: Deserialize<'d>>(document: &'d RawDocument) -> Result<T, String> {
    match quick::read(document) {
        Ok(value) => Ok(value),
        Err(quick::Unusual) => decode_unusual(document),
    }
}

/// Reads any document with bson's deserializer.
#[cold]
fn decode_unusual<'d, T: Deserialize<'d>>(document: &'d RawDocument) -> Result<T, String> {
    check_nesting(document)?;
    bson::deserialize_from_slice(document.as_bytes()).map_err(|error| explain::<T>(document, &error))
}

/// Reads the document again, to find the path of the field that fails.
#[cold]
fn explain<'d, T: Deserialize<'d>>(document: &'d RawDocument, error: &bson::error::Error) -> String {
    let reason = error.message.clone().unwrap_or_else(|| error.to_string());
    let failed = bson::RawDeserializer::new(document.as_bytes())
        .ok()
        .and_then(|deserializer| serde_path_to_error::deserialize::<_, T>(deserializer).err());
    let of = of_document(document);
    match failed.map(|failed| failed.path().to_string()).filter(|path| path != ".") {
        Some(path) => format!("field {}{of}: {}", Printable(path), PrintableError(reason)),
        None => format!("{}{of}", PrintableError(reason)),
    }
}

/// Reads one of the library's own documents. Using serde here would make every user of the library compile bson's
/// deserializer, which amounts to a fifth of the library.
#[cfg(feature = "gridfs")]
pub(super) fn convert<T, E: fmt::Display>(
    document: &RawDocument,
    of: impl FnOnce(Document) -> Result<T, E>,
) -> Result<T, String> {
    check_nesting(document)?;
    let converted = Document::try_from(document).map_err(|error| error.to_string());
    let read = converted.and_then(|document| of(document).map_err(|error| error.to_string()));
    read.map_err(|reason| format!("{}{}", PrintableError(reason), of_document(document)))
}

fn check_nesting(document: &RawDocument) -> Result<(), String> {
    match nesting::is_too_deep(document) {
        true => Err(format!("it is nested in more than {} levels", nesting::MOST_LEVELS)),
        false => Ok(()),
    }
}

/// Returns a phrase that identifies a document by its `_id`, for the end of an error message. Empty if the document has
/// no `_id`.
fn of_document(document: &RawDocument) -> String {
    match document.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok()) {
        Some(id) => format!(" of the document with _id {}", Printable(id)),
        None => String::new(),
    }
}

/// Refuses an argument that would add a field to the command a second time, because servers refuse such commands.
pub(super) fn refuse_second(argument: &'static str, command: &RawDocument, field: &str) -> Result<(), ClientError> {
    match reply::has_field(command, field) {
        true => {
            let reason = format!("the command has the field {field} already");
            Err(ClientError::Argument { name: argument, reason: reason.into() })
        }
        false => Ok(()),
    }
}

/// Adds the fields of an application's argument, such as options, to a document.
///
/// # Errors
///
/// [`ClientError::Argument`] if the document already has one of the fields, or would be too long.
pub(super) fn extend(
    argument: &'static str,
    document: &mut RawDocumentBuf,
    fields: &RawDocument,
) -> Result<(), ClientError> {
    for (field, _) in fields.iter().flatten() {
        refuse_second(argument, document, field.as_str())?;
    }
    let mut bytes = std::mem::take(document).into_bytes();
    bytes.pop();
    bytes.extend_from_slice(elements(fields));
    bytes.push(0);
    let too_long = |reason: String| ClientError::Argument { name: argument, reason: reason.into() };
    let length = i32::try_from(bytes.len()).map_err(|error| too_long(error.to_string()))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    *document = RawDocumentBuf::from_bytes(bytes).map_err(|error| too_long(error.to_string()))?;
    Ok(())
}
