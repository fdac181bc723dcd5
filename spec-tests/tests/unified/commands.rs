//! Operations on clients and databases, each as the command that the specifications prescribe.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Bson, Document, doc};
use wharf::client::{CursorType, OpenCursor, TimeoutMode, WatchTarget};
use wharf::{DriverInfo, Operation as Run, ReadPreference, ReadPreferenceMode};

use crate::case::{Collection, Database, Returned, text};
use crate::clients::{Client, Cursor, Session};
use crate::environment::{owned, raw};
use crate::format::{CommonOptions, Object, Operation};
use crate::matching::document;
use crate::observed::ObservedClient;
use crate::operations::argument;
use crate::stop::Stop;

/// The arguments that `operations::run` reads for all operations.
const READ_FOR_ALL: [&str; 2] = ["session", "rawData"];

/// Refuses an argument that the operation does not know.
pub fn allow(operation: &Operation, known: &[&str]) -> Result<(), Stop> {
    let is_known = |name: &str| known.contains(&name) || READ_FOR_ALL.contains(&name);
    match operation.arguments.keys().find(|name| !is_known(name)) {
        Some(name) => Err(Stop::Broken(format!("{} has no argument {name}", operation.name))),
        None => Ok(()),
    }
}

/// Adds arguments to a command under their own names.
pub fn copy(operation: &Operation, command: &mut Document, names: &[&str]) {
    for &name in names {
        if let Some(value) = argument(operation, name) {
            command.insert(name, value);
        }
    }
}

impl CommonOptions {
    /// Returns the options of a command without concerns and without a read preference.
    pub fn without_concerns(&self) -> Self {
        Self { raw_data: self.raw_data, ..Self::default() }
    }
}

/// Returns `timeoutMS` of the operation, or of its collection or database.
pub fn timeout(operation: &Operation, options: &CommonOptions) -> Option<Duration> {
    let own = operation.arguments.get("timeoutMS").and_then(serde_json::Value::as_u64);
    own.or(options.timeout_ms).map(Duration::from_millis)
}

pub fn read_preference(preference: &Object) -> Result<ReadPreference, Stop> {
    let mode = match preference.get("mode").and_then(|mode| mode.as_str()).map(str::to_lowercase).as_deref() {
        Some("primary") => ReadPreferenceMode::Primary,
        Some("primarypreferred") => ReadPreferenceMode::PrimaryPreferred,
        Some("secondary") => ReadPreferenceMode::Secondary,
        Some("secondarypreferred") => ReadPreferenceMode::SecondaryPreferred,
        Some("nearest") => ReadPreferenceMode::Nearest,
        other => return Err(Stop::Broken(format!("{other:?} is not a mode of a read preference"))),
    };
    let mut read = ReadPreference::new(mode);
    for tags in preference.get("tagSets").and_then(|sets| sets.as_array()).into_iter().flatten() {
        let tags: BTreeMap<String, String> = serde_json::from_value(tags.clone()).map_err(|error| error.to_string())?;
        read = read.tag_set(tags);
    }
    match preference.get("maxStalenessSeconds").and_then(|seconds| seconds.as_u64()) {
        Some(seconds) => Ok(read.max_staleness(Duration::from_secs(seconds))),
        None => Ok(read),
    }
}

/// The kind of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A generic command, which does not inherit anything.
    Plain,
    Read,
    Write,
}

/// A command with everything that its operation requires.
pub struct Prepared {
    database: String,
    command: bson::RawDocumentBuf,
    kind: Kind,
    preference: Option<ReadPreference>,
    timeout: Option<Duration>,
}

impl Prepared {
    /// Adds the fields that the collection or database requires in a command of this kind.
    pub fn new(
        database: &str,
        kind: Kind,
        mut command: Document,
        options: &CommonOptions,
        timeout: Option<Duration>,
    ) -> Result<Self, Stop> {
        if options.raw_data {
            command.insert("rawData", true);
        }
        let mut preference = None;
        match kind {
            Kind::Plain => {}
            Kind::Read => {
                if let Some(concern) = options.read_concern.as_ref().filter(|concern| !concern.is_empty()) {
                    command.insert("readConcern", document(concern));
                }
                preference = options.read_preference.as_ref().map(read_preference).transpose()?;
            }
            Kind::Write => {
                if let Some(concern) = &options.write_concern
                    && !command.contains_key("writeConcern")
                    && !concern.is_empty()
                {
                    command.insert("writeConcern", document(concern));
                }
            }
        }
        Ok(Self { database: database.to_owned(), command: raw(&command), kind, preference, timeout })
    }

    pub fn prefer(mut self, preference: Option<ReadPreference>) -> Self {
        self.preference = preference;
        self
    }

    /// Returns the operation of wharf.
    pub fn operation(&self) -> Run<'_> {
        let Self { database, command, kind, preference, timeout } = self;
        let mut run = match kind {
            Kind::Plain => Run::new(database, command),
            Kind::Read => Run::read(database, command),
            Kind::Write => Run::write(database, command),
        };
        if let Some(preference) = preference {
            run = run.read_preference(preference);
        }
        match timeout {
            Some(timeout) => run.timeout(*timeout),
            None => run,
        }
    }

    pub async fn run(&self, client: &Client, session: Option<&mut Session>) -> Result<Document, Stop> {
        Ok(owned(&client.run(self.operation(), session).await?))
    }

    /// Opens a cursor with the options that all such operations share.
    pub async fn cursor(
        &self,
        client: &Client,
        operation: &Operation,
        session: Option<&mut Session>,
    ) -> Result<Cursor, Stop> {
        self.cursor_with(client, operation, session, |opening| opening).await
    }

    /// Opens a cursor with these additional options.
    async fn cursor_with<'a>(
        &'a self,
        client: &Client,
        operation: &Operation,
        session: Option<&'a mut Session>,
        own: impl FnOnce(OpenCursor<'a>) -> OpenCursor<'a> + Send,
    ) -> Result<Cursor, Stop> {
        let mode = match operation.arguments.get("timeoutMode").map(|mode| mode.as_str().unwrap_or_default()) {
            None => None,
            Some("cursorLifetime") => Some(TimeoutMode::CursorLifetime),
            Some("iteration") => Some(TimeoutMode::Iteration),
            Some(other) => return Err(Stop::Broken(format!("{other} is not a timeoutMode"))),
        };
        let limit = operation.arguments.get("maxAwaitTimeMS").and_then(|limit| limit.as_u64());
        let with = |mut opening: OpenCursor<'a>| {
            if let Some(mode) = mode {
                opening = opening.timeout_mode(mode);
            }
            if let Some(limit) = limit {
                opening = opening.max_await_time(Duration::from_millis(limit));
            }
            own(opening)
        };
        Ok(client.cursor(self.operation(), session, with).await?)
    }
}

pub async fn on_client(
    observed: &ObservedClient,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    let client = &observed.client;
    let none = CommonOptions::default();
    let limit = timeout(operation, &none);
    match operation.name.as_str() {
        "close" => {
            allow(operation, &[])?;
            client.shutdown(Duration::from_secs(10)).await;
            Ok(Returned::Nothing)
        }
        "listDatabases" | "listDatabaseNames" | "listDatabaseObjects" => {
            allow(operation, &["filter", "timeoutMS"])?;
            let mut list = doc! { "listDatabases": 1 };
            if operation.name == "listDatabaseNames" {
                list.insert("nameOnly", true);
            }
            copy(operation, &mut list, &["filter"]);
            let reply = Prepared::new("admin", Kind::Read, list, &none, limit)?;
            // The command goes to the primary (Enumerating Databases).
            let reply =
                reply.prefer(Some(ReadPreference::new(ReadPreferenceMode::Primary))).run(client, session).await?;
            let found = reply.get_array("databases").cloned().map_err(|error| error.to_string())?;
            let documents = found.into_iter().filter_map(|one| one.as_document().cloned());
            Ok(match operation.name.as_str() {
                "listDatabaseNames" => Returned::Value(names(documents)),
                _ => Returned::Documents(documents.collect()),
            })
        }
        "dropDatabase" => {
            allow(operation, &["database", "timeoutMS"])?;
            let drop = doc! { "dropDatabase": 1 };
            Prepared::new(text(operation, "database")?, Kind::Write, drop, &none, limit)?.run(client, session).await?;
            Ok(Returned::Nothing)
        }
        "createChangeStream" => crate::changes::create(client, WatchTarget::Cluster, &none, operation, session).await,
        "appendMetadata" => {
            allow(operation, &["driverInfoOptions"])?;
            let Some(Bson::Document(fields)) = argument(operation, "driverInfoOptions") else {
                return Err(Stop::Broken("appendMetadata needs driverInfoOptions".to_owned()));
            };
            let mut library = DriverInfo::new("");
            for (name, value) in fields {
                let Bson::String(value) = value else { return Err(Stop::Broken(format!("{name} is not a string"))) };
                library = match name.as_str() {
                    "name" => {
                        library.name = value;
                        library
                    }
                    "version" => library.version(value),
                    "platform" => library.platform(value),
                    _ => return Err(Stop::Broken(format!("{name} is not a field of a library"))),
                };
            }
            client.append_metadata(library).map_err(|error| Stop::Refused(error.to_string()))?;
            Ok(Returned::Nothing)
        }
        "clientBulkWrite" => Err(Stop::Lacks("a bulkWrite of a client, which needs a server of version 8.0")),
        other => Err(Stop::Broken(format!("{other} is not an operation of a client"))),
    }
}

fn names(documents: impl Iterator<Item = Document>) -> Bson {
    Bson::Array(documents.filter_map(|one| one.get("name").cloned()).collect())
}

/// The arguments of commands whose results are read through a cursor.
const CURSOR: [&str; 9] = [
    "command",
    "commandName",
    "readPreference",
    "batchSize",
    "maxTimeMS",
    "comment",
    "cursorType",
    "timeoutMode",
    "timeoutMS",
];

pub async fn on_database(
    database: &Database,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    let client = database.client();
    let Database { name, options, .. } = database;
    let limit = timeout(operation, options);
    match operation.name.as_str() {
        "runCommand" => {
            allow(operation, &["command", "commandName", "readPreference", "timeoutMS"])?;
            let command = command(operation)?;
            let preference = operation.arguments.get("readPreference").and_then(|of| of.as_object());
            let preference = preference.map(read_preference).transpose()?;
            let prepared = Prepared::new(name, Kind::Plain, command, options, limit)?.prefer(preference);
            Ok(Returned::Value(prepared.run(client, session).await?.into()))
        }
        "runCursorCommand" | "createCommandCursor" => {
            allow(operation, &CURSOR)?;
            let command = command(operation)?;
            let preference = operation.arguments.get("readPreference").and_then(|of| of.as_object());
            let preference = preference.map(read_preference).transpose()?;
            let prepared = Prepared::new(name, Kind::Plain, command, options, limit)?.prefer(preference);
            let cursor_type = match operation.arguments.get("cursorType").map(|of| of.as_str().unwrap_or_default()) {
                None => None,
                Some("nonTailable") => Some(CursorType::NonTailable),
                Some("tailable") => Some(CursorType::Tailable),
                Some("tailableAwait") => Some(CursorType::TailableAwait),
                Some(other) => return Err(Stop::Broken(format!("{other} is not a cursorType"))),
            };
            // Without the argument, the server chooses the size (zero), and the command's own field does not apply.
            let size = operation.arguments.get("batchSize").and_then(|size| size.as_i64()).unwrap_or(0);
            let size = i32::try_from(size).map_err(|error| error.to_string())?;
            let time = operation.arguments.get("maxTimeMS").and_then(|time| time.as_u64());
            if operation.arguments.contains_key("comment") {
                return Err(Stop::Lacks("a comment of getMore that differs from the one of the command"));
            }
            let cursor = prepared
                .cursor_with(client, operation, session, |mut opening| {
                    opening = opening.batch_size(size);
                    if let Some(cursor_type) = cursor_type {
                        opening = opening.cursor_type(cursor_type);
                    }
                    match time {
                        Some(time) => opening.max_await_time(Duration::from_millis(time)),
                        None => opening,
                    }
                })
                .await?;
            match operation.name.as_str() {
                "createCommandCursor" => Ok(Returned::Cursor(Box::new(cursor))),
                _ => Ok(Returned::Documents(cursor.rest().await?)),
            }
        }
        "aggregate" => {
            let known = [
                "pipeline",
                "allowDiskUse",
                "batchSize",
                "maxTimeMS",
                "let",
                "comment",
                "collation",
                "timeoutMS",
                "timeoutMode",
                "bypassDocumentValidation",
            ];
            allow(operation, &known)?;
            crate::crud::aggregate(database, Bson::Int32(1), operation, session).await
        }
        "listCollections" | "listCollectionNames" | "listCollectionObjects" => {
            allow(operation, &["filter", "batchSize", "timeoutMS", "timeoutMode"])?;
            let mut cursor = Document::new();
            copy(operation, &mut cursor, &["batchSize"]);
            let mut list = doc! { "listCollections": 1, "cursor": cursor };
            copy(operation, &mut list, &["filter"]);
            if operation.name == "listCollectionNames" {
                list.insert("nameOnly", true);
            }
            let no_concern = options.without_concerns();
            let prepared = Prepared::new(name, Kind::Read, list, &no_concern, limit)?;
            // The command goes to the primary (Enumerating Collections).
            let prepared = prepared.prefer(Some(ReadPreference::new(ReadPreferenceMode::Primary)));
            let found = prepared.cursor(client, operation, session).await?.rest().await?;
            Ok(match operation.name.as_str() {
                "listCollectionNames" => Returned::Value(names(found.into_iter())),
                _ => Returned::Documents(found),
            })
        }
        "createCollection" | "modifyCollection" => {
            allow_any(operation)?;
            let verb = if operation.name == "createCollection" { "create" } else { "collMod" };
            let mut command = doc! { verb: text(operation, "collection")? };
            let fields = operation
                .arguments
                .keys()
                .map(String::as_str)
                .filter(|name| !["collection", "timeoutMS"].contains(name) && !READ_FOR_ALL.contains(name));
            copy(operation, &mut command, &fields.collect::<Vec<_>>());
            Prepared::new(name, Kind::Write, command, options, limit)?.run(client, session).await?;
            let name = text(operation, "collection")?.to_owned();
            Ok(Returned::Collection(Collection { database: database.clone(), name }))
        }
        "dropCollection" => {
            allow(operation, &["collection", "timeoutMS"])?;
            let drop = doc! { "drop": text(operation, "collection")? };
            match Prepared::new(name, Kind::Write, drop, options, limit)?.run(client, session).await {
                // Dropping something that does not exist succeeds.
                Err(Stop::Raised(error)) if error.server_error().is_some_and(|error| error.code == 26) => {}
                outcome => _ = outcome?,
            }
            Ok(Returned::Nothing)
        }
        "createChangeStream" => {
            crate::changes::create(client, WatchTarget::Database(name), options, operation, session).await
        }
        other => Err(Stop::Broken(format!("{other} is not an operation of a database"))),
    }
}

/// Allows all arguments except a session.
fn allow_any(operation: &Operation) -> Result<(), Stop> {
    let all: Vec<&str> = operation.arguments.keys().map(String::as_str).collect();
    allow(operation, &all)
}

fn command(operation: &Operation) -> Result<Document, Stop> {
    match operation.arguments.get("command") {
        Some(serde_json::Value::Object(command)) => Ok(document(command)),
        _ => Err(Stop::Broken(format!("{} needs a command", operation.name))),
    }
}
