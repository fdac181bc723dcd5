//! Operations on collections: each is translated into the command that the CRUD specification prescribes.

use bson::{Bson, Document, doc};
use serde_json::Value;
use wharf::client::WatchTarget;

use crate::case::{Collection, Database, Returned, text};
use crate::clients::Session;
use crate::commands::{Kind, Prepared, allow, copy, timeout};
use crate::environment::raw;
use crate::format::{CommonOptions, Operation};
use crate::matching::document;
use crate::operations::argument;
use crate::stop::{Stop, bulk_result};

pub async fn on_collection(
    collection: &Collection,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    match operation.name.as_str() {
        "find" | "findOne" | "createFindCursor" => find(collection, operation, session).await,
        "aggregate" => {
            let known = [
                "pipeline",
                "allowDiskUse",
                "batchSize",
                "maxTimeMS",
                "let",
                "comment",
                "collation",
                "hint",
                "bypassDocumentValidation",
                "timeoutMS",
                "timeoutMode",
                "maxAwaitTimeMS",
            ];
            allow(operation, &known)?;
            aggregate(&collection.database, Bson::String(collection.name.clone()), operation, session).await
        }
        "count" | "countDocuments" | "estimatedDocumentCount" | "distinct" => {
            count(collection, operation, session).await
        }
        "insertOne" | "insertMany" => insert(collection, operation, session).await,
        "updateOne" | "updateMany" | "replaceOne" | "deleteOne" | "deleteMany" => {
            write_one(collection, operation, session).await
        }
        "bulkWrite" => bulk_write(collection, operation, session).await,
        "findOneAndDelete" | "findOneAndReplace" | "findOneAndUpdate" => {
            find_and_modify(collection, operation, session).await
        }
        "createChangeStream" => {
            let Collection { database, name } = collection;
            let target = WatchTarget::Collection(&database.name, name);
            crate::changes::create(database.client(), target, &database.options, operation, session).await
        }
        _ => manage(collection, operation, session).await,
    }
}

impl Collection {
    fn prepare(&self, kind: Kind, command: Document, operation: &Operation) -> Result<Prepared, Stop> {
        let Database { name, options, .. } = &self.database;
        Prepared::new(name, kind, command, options, timeout(operation, options))
    }
}

async fn find(collection: &Collection, operation: &Operation, session: Option<&mut Session>) -> Result<Returned, Stop> {
    const SAME: [&str; 14] = [
        "filter",
        "sort",
        "projection",
        "skip",
        "hint",
        "comment",
        "maxTimeMS",
        "max",
        "min",
        "returnKey",
        "showRecordId",
        "collation",
        "let",
        "allowDiskUse",
    ];
    let known =
        [&SAME[..], &["limit", "batchSize", "cursorType", "maxAwaitTimeMS", "timeoutMS", "timeoutMode"]].concat();
    allow(operation, &known)?;
    if !operation.arguments.contains_key("filter") {
        return Err(Stop::Broken(format!("{} needs a filter", operation.name)));
    }
    let mut find = doc! { "find": &collection.name };
    copy(operation, &mut find, &SAME);
    if operation.name == "findOne" {
        find.extend(doc! { "limit": 1, "singleBatch": true });
    } else {
        let number = |name: &str| operation.arguments.get(name).and_then(Value::as_i64);
        let limit = number("limit");
        if let Some(limit) = limit {
            find.insert("limit", limit.abs());
        }
        if limit.is_some_and(|limit| limit < 0) {
            find.insert("singleBatch", true);
        }
        // A batch that is as large as the limit would leave a cursor open (Find, getMore and killCursors).
        if let Some(size) = number("batchSize") {
            find.insert("batchSize", if limit == Some(size) { size + 1 } else { size });
        }
    }
    let cursor_type = operation.arguments.get("cursorType").map(|of| of.as_str().unwrap_or_default());
    match cursor_type {
        None | Some("nonTailable") => {}
        Some("tailable") => _ = find.insert("tailable", true),
        Some("tailableAwait") => find.extend(doc! { "tailable": true, "awaitData": true }),
        Some(other) => return Err(Stop::Broken(format!("{other} is not a cursorType"))),
    }
    let prepared = collection.prepare(Kind::Read, find, operation)?;
    let cursor = prepared.cursor(collection.database.client(), operation, session).await?;
    if operation.name == "createFindCursor" {
        return Ok(Returned::Cursor(Box::new(cursor)));
    }
    let found = cursor.rest().await?;
    Ok(match operation.name.as_str() {
        "findOne" => Returned::Value(found.into_iter().next().map_or(Bson::Null, Bson::from)),
        _ => Returned::Documents(found),
    })
}

/// Runs an `aggregate` on a collection, or on a database if `target` is 1.
pub async fn aggregate(
    database: &Database,
    target: Bson,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    let Database { name, options, .. } = database;
    let mut cursor = Document::new();
    copy(operation, &mut cursor, &["batchSize"]);
    let mut aggregate = doc! { "aggregate": target, "cursor": cursor };
    copy(
        operation,
        &mut aggregate,
        &["pipeline", "allowDiskUse", "maxTimeMS", "let", "comment", "collation", "hint", "bypassDocumentValidation"],
    );
    let pipeline = aggregate.get_array("pipeline").map_err(|error| error.to_string())?;
    let last = pipeline.last().and_then(Bson::as_document).and_then(|stage| stage.keys().next());
    let writes = last.is_some_and(|stage| stage == "$out" || stage == "$merge");
    if writes {
        if let Some(concern) = options.write_concern.as_ref().filter(|concern| !concern.is_empty()) {
            aggregate.insert("writeConcern", document(concern));
        }
        aggregate.get_document_mut("cursor").expect("inserted above").remove("batchSize");
    }
    let prepared = Prepared::new(name, Kind::Read, aggregate, options, timeout(operation, options))?;
    let cursor = prepared.cursor(database.client(), operation, session).await?;
    Ok(Returned::Documents(cursor.rest().await?))
}

async fn count(
    collection: &Collection,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    let client = collection.database.client();
    let name = &collection.name;
    match operation.name.as_str() {
        "distinct" => {
            allow(operation, &["fieldName", "filter", "collation", "comment", "hint", "maxTimeMS", "timeoutMS"])?;
            let mut distinct = doc! { "distinct": name, "key": text(operation, "fieldName")? };
            distinct.insert("query", argument(operation, "filter").unwrap_or(Bson::Document(doc! {})));
            copy(operation, &mut distinct, &["collation", "comment", "hint", "maxTimeMS"]);
            let reply = collection.prepare(Kind::Read, distinct, operation)?.run(client, session).await?;
            Ok(Returned::Value(reply.get("values").cloned().unwrap_or(Bson::Null)))
        }
        "countDocuments" => {
            let known = ["filter", "skip", "limit", "collation", "comment", "hint", "maxTimeMS", "timeoutMS"];
            allow(operation, &known)?;
            let mut pipeline = vec![doc! { "$match": argument(operation, "filter").unwrap_or(Bson::Null) }];
            for (name, stage) in [("skip", "$skip"), ("limit", "$limit")] {
                pipeline.extend(argument(operation, name).map(|number| doc! { stage: number }));
            }
            pipeline.push(doc! { "$group": { "_id": 1, "n": { "$sum": 1 } } });
            let mut aggregate = doc! { "aggregate": name, "pipeline": pipeline, "cursor": {} };
            copy(operation, &mut aggregate, &["collation", "comment", "hint", "maxTimeMS"]);
            let prepared = collection.prepare(Kind::Read, aggregate, operation)?;
            let found = prepared.cursor(client, operation, session).await?.rest().await?;
            // Without documents, there is no group.
            Ok(Returned::Value(found.first().and_then(|group| group.get("n")).cloned().unwrap_or(Bson::Int32(0))))
        }
        _ => {
            let known: &[&str] = match operation.name.as_str() {
                "count" => &["filter", "skip", "limit", "collation", "comment", "hint", "maxTimeMS", "timeoutMS"],
                _ => &["comment", "maxTimeMS", "timeoutMS"],
            };
            allow(operation, known)?;
            let mut count = doc! { "count": name };
            if let Some(filter) = argument(operation, "filter") {
                count.insert("query", filter);
            }
            copy(operation, &mut count, &["skip", "limit", "collation", "comment", "hint", "maxTimeMS"]);
            let reply = collection.prepare(Kind::Read, count, operation)?.run(client, session).await?;
            Ok(Returned::Value(reply.get("n").cloned().unwrap_or(Bson::Null)))
        }
    }
}

/// Returns the fields of each command of a write.
fn fields(operation: &Operation, options: &CommonOptions) -> Document {
    let mut fields = Document::new();
    copy(operation, &mut fields, &["bypassDocumentValidation", "comment", "let"]);
    if let Some(concern) = options.write_concern.as_ref().filter(|concern| !concern.is_empty()) {
        fields.insert("writeConcern", document(concern));
    }
    if options.raw_data {
        fields.insert("rawData", true);
    }
    fields
}

async fn insert(
    collection: &Collection,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    allow(operation, &["document", "documents", "ordered", "bypassDocumentValidation", "comment", "timeoutMS"])?;
    let documents: Vec<Document> = match argument(operation, "document").or(argument(operation, "documents")) {
        Some(Bson::Document(one)) => vec![one],
        Some(Bson::Array(many)) => many.into_iter().filter_map(|one| one.as_document().cloned()).collect(),
        _ => return Err(Stop::Broken(format!("{} needs documents", operation.name))),
    };
    let statements = documents.iter().cloned().map(Statement::Insert).collect();
    let written = send(collection, operation, statements, session).await?;
    let id = |place: usize| {
        let generated = written.generated_ids.iter().find(|(of, _)| *of == place).map(|(_, id)| Bson::ObjectId(*id));
        generated.or_else(|| documents[place].get("_id").cloned()).unwrap_or(Bson::Null)
    };
    let ids: Document = (0..documents.len()).map(|place| (place.to_string(), id(place))).collect();
    Ok(Returned::Value(Bson::Document(match operation.name.as_str() {
        "insertOne" => doc! { "insertedId": id(0) },
        _ => doc! { "insertedIds": ids },
    })))
}

/// A statement of a bulk write.
enum Statement {
    Insert(Document),
    Update(Document),
    Delete(Document),
}

/// Returns the statement of a model, such as `updateOne` with its fields.
fn statement(model: &str, fields: &Document) -> Result<Statement, Stop> {
    let value = |name: &str| fields.get(name).cloned().unwrap_or(Bson::Null);
    let with = |mut statement: Document, names: &[&str]| {
        for &name in names {
            if let Some(value) = fields.get(name) {
                statement.insert(name, value.clone());
            }
        }
        statement
    };
    Ok(match model {
        "insertOne" => Statement::Insert(value("document").as_document().cloned().unwrap_or_default()),
        "deleteOne" | "deleteMany" => {
            let limit = if model == "deleteOne" { 1 } else { 0 };
            Statement::Delete(with(doc! { "q": value("filter"), "limit": limit }, &["collation", "hint"]))
        }
        "replaceOne" => {
            check_replacement(&value("replacement"))?;
            let statement = doc! { "q": value("filter"), "u": value("replacement") };
            Statement::Update(with(statement, &["upsert", "collation", "hint", "sort"]))
        }
        "updateOne" | "updateMany" => {
            check_update(&value("update"))?;
            let mut statement = doc! { "q": value("filter"), "u": value("update") };
            if model == "updateMany" {
                statement.insert("multi", true);
            }
            Statement::Update(with(statement, &["upsert", "collation", "arrayFilters", "hint", "sort"]))
        }
        other => return Err(Stop::Broken(format!("{other} is not a model of bulkWrite"))),
    })
}

fn begins_with_operator(value: &Bson) -> bool {
    value.as_document().and_then(|document| document.keys().next()).is_some_and(|name| name.starts_with('$'))
}

/// Refuses a replacement that would be an update (CRUD, "ReplaceOneModel").
fn check_replacement(value: &Bson) -> Result<(), Stop> {
    match begins_with_operator(value) {
        true => Err(Stop::Refused("a replacement must not begin with an operator".to_owned())),
        false => Ok(()),
    }
}

/// Refuses an update that would be a replacement (CRUD, "UpdateOneModel").
fn check_update(value: &Bson) -> Result<(), Stop> {
    match begins_with_operator(value) || value.as_array().is_some_and(|pipeline| !pipeline.is_empty()) {
        true => Ok(()),
        false => Err(Stop::Refused("an update must begin with an operator".to_owned())),
    }
}

async fn send(
    collection: &Collection,
    operation: &Operation,
    statements: Vec<Statement>,
    session: Option<&mut Session>,
) -> Result<wharf::client::Written, Stop> {
    let Collection { database: Database { name, options, .. }, .. } = collection;
    let fields = raw(&fields(operation, options));
    Ok(collection
        .database
        .client()
        .write(name, &collection.name, session, |mut write| {
            write = write.options(&fields);
            for statement in &statements {
                write = match statement {
                    Statement::Insert(document) => write.insert(raw(document)),
                    Statement::Update(document) => write.update(raw(document)),
                    Statement::Delete(document) => write.delete(raw(document)),
                };
            }
            if operation.arguments.get("ordered") == Some(&Value::Bool(false)) {
                write = write.unordered();
            }
            match timeout(operation, options) {
                Some(limit) => write.timeout(limit),
                None => write,
            }
        })
        .await?)
}

async fn write_one(
    collection: &Collection,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    let known = [
        "filter",
        "update",
        "replacement",
        "upsert",
        "collation",
        "arrayFilters",
        "hint",
        "sort",
        "let",
        "comment",
        "bypassDocumentValidation",
        "timeoutMS",
    ];
    allow(operation, &known)?;
    let statement = statement(&operation.name, &document(&operation.arguments))?;
    let is_delete = matches!(statement, Statement::Delete(_));
    let written = send(collection, operation, vec![statement], session).await?;
    let Bson::Document(all) = bulk_result(&written) else { unreachable!("a result is a document") };
    let names: &[&str] = match is_delete {
        true => &["deletedCount"],
        false => &["matchedCount", "modifiedCount", "upsertedCount"],
    };
    let mut result: Document = all.into_iter().filter(|(name, _)| names.contains(&name.as_str())).collect();
    if let Some((_, id)) = written.upserted.first() {
        result.insert("upsertedId", Bson::try_from(id.as_raw_bson_ref()).map_err(|error| error.to_string())?);
    }
    Ok(Returned::Value(result.into()))
}

async fn bulk_write(
    collection: &Collection,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    allow(operation, &["requests", "ordered", "bypassDocumentValidation", "comment", "let", "timeoutMS"])?;
    let requests = argument(operation, "requests").and_then(|requests| requests.as_array().cloned());
    let requests = requests.ok_or_else(|| Stop::Broken("bulkWrite needs requests".to_owned()))?;
    let mut statements = Vec::new();
    for request in &requests {
        let mut models = request.as_document().into_iter().flatten();
        let (Some((model, Bson::Document(fields))), None) = (models.next(), models.next()) else {
            return Err(Stop::Broken(format!("{request} is not a request of bulkWrite")));
        };
        statements.push(statement(model, fields)?);
    }
    Ok(Returned::Value(bulk_result(&send(collection, operation, statements, session).await?)))
}

async fn find_and_modify(
    collection: &Collection,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    const SAME: [&str; 9] = [
        "sort",
        "collation",
        "arrayFilters",
        "hint",
        "let",
        "comment",
        "maxTimeMS",
        "upsert",
        "bypassDocumentValidation",
    ];
    let known = [&SAME[..], &["filter", "update", "replacement", "projection", "returnDocument", "timeoutMS"]].concat();
    allow(operation, &known)?;
    let mut command = doc! { "findAndModify": &collection.name };
    command.insert("query", argument(operation, "filter").unwrap_or(Bson::Document(doc! {})));
    match operation.name.as_str() {
        "findOneAndDelete" => _ = command.insert("remove", true),
        "findOneAndReplace" => {
            let replacement = argument(operation, "replacement").unwrap_or(Bson::Null);
            check_replacement(&replacement)?;
            command.insert("update", replacement);
        }
        _ => {
            let update = argument(operation, "update").unwrap_or(Bson::Null);
            check_update(&update)?;
            command.insert("update", update);
        }
    }
    if let Some(projection) = argument(operation, "projection") {
        command.insert("fields", projection);
    }
    match operation.arguments.get("returnDocument").map(|which| which.as_str().unwrap_or_default().to_lowercase()) {
        None => {}
        Some(which) if which == "before" => {}
        Some(which) if which == "after" => _ = command.insert("new", true),
        Some(other) => return Err(Stop::Broken(format!("{other} is not a value of returnDocument"))),
    }
    copy(operation, &mut command, &SAME);
    let concern = collection.database.options.write_concern.as_ref();
    let is_unacknowledged = concern.and_then(|concern| concern.get("w")).is_some_and(|w| w == 0);
    let prepared = collection.prepare(Kind::Write, command, operation)?;
    let reply = prepared.run(collection.database.client(), session).await?;
    // The server still replies, but a driver's method for this command does not return the reply.
    let value = reply.get("value").filter(|_| !is_unacknowledged).cloned();
    Ok(Returned::Value(value.unwrap_or(Bson::Null)))
}

/// Operations on indexes and on the collection as a whole.
async fn manage(
    collection: &Collection,
    operation: &Operation,
    session: Option<&mut Session>,
) -> Result<Returned, Stop> {
    let client = collection.database.client();
    let (name, database) = (&collection.name, &collection.database.name);
    match operation.name.as_str() {
        "listIndexes" | "listIndexNames" => {
            allow(operation, &["batchSize", "timeoutMS", "timeoutMode"])?;
            let mut cursor = Document::new();
            copy(operation, &mut cursor, &["batchSize"]);
            let list = doc! { "listIndexes": name, "cursor": cursor };
            let options = collection.database.options.without_concerns();
            let limit = timeout(operation, &collection.database.options);
            let prepared = Prepared::new(database, Kind::Read, list, &options, limit)?;
            let primary = wharf::ReadPreference::new(wharf::ReadPreferenceMode::Primary);
            let prepared = prepared.prefer(Some(primary));
            let found = prepared.cursor(client, operation, session).await?.rest().await?;
            Ok(match operation.name.as_str() {
                "listIndexes" => Returned::Documents(found),
                _ => Returned::Value(Bson::Array(found.iter().filter_map(|one| one.get("name").cloned()).collect())),
            })
        }
        "createIndex" => {
            allow(operation, &["keys", "name", "unique", "maxTimeMS", "timeoutMS"])?;
            let keys = argument(operation, "keys").and_then(|keys| keys.as_document().cloned()).unwrap_or_default();
            let parts: Vec<_> = keys.iter().map(|(name, direction)| format!("{name}_{direction}")).collect();
            let index_name = operation.arguments.get("name").and_then(Value::as_str);
            let index_name = index_name.map_or_else(|| parts.join("_"), str::to_owned);
            let mut index = doc! { "key": keys, "name": &index_name };
            copy(operation, &mut index, &["unique"]);
            let mut command = doc! { "createIndexes": name, "indexes": [index] };
            copy(operation, &mut command, &["maxTimeMS"]);
            collection.prepare(Kind::Write, command, operation)?.run(client, session).await?;
            Ok(Returned::Value(index_name.into()))
        }
        "dropIndex" | "dropIndexes" => {
            allow(operation, &["name", "maxTimeMS", "timeoutMS"])?;
            let index = if operation.name == "dropIndex" { text(operation, "name")? } else { "*" };
            let mut command = doc! { "dropIndexes": name, "index": index };
            copy(operation, &mut command, &["maxTimeMS"]);
            collection.prepare(Kind::Write, command, operation)?.run(client, session).await?;
            Ok(Returned::Nothing)
        }
        "rename" => {
            allow(operation, &["to", "dropTarget", "timeoutMS"])?;
            let to = format!("{database}.{}", text(operation, "to")?);
            let mut command = doc! { "renameCollection": format!("{database}.{name}"), "to": to };
            copy(operation, &mut command, &["dropTarget"]);
            let options = &collection.database.options;
            Prepared::new("admin", Kind::Write, command, options, timeout(operation, options))?
                .run(client, session)
                .await?;
            Ok(Returned::Nothing)
        }
        "mapReduce" => {
            allow(operation, &["map", "reduce", "out", "timeoutMS"])?;
            let mut command = doc! { "mapReduce": name };
            copy(operation, &mut command, &["map", "reduce", "out"]);
            // It writes, unless it returns the results.
            let out = command.get("out");
            let is_inline = out.and_then(Bson::as_document).is_some_and(|out| out.contains_key("inline"));
            let kind = if is_inline { Kind::Plain } else { Kind::Write };
            let reply = collection.prepare(kind, command, operation)?.run(client, session).await?;
            let results = reply.get_array("results").cloned().unwrap_or_default();
            Ok(Returned::Documents(results.into_iter().filter_map(|one| one.as_document().cloned()).collect()))
        }
        other => Err(Stop::Broken(format!("{other} is not an operation of a collection"))),
    }
}
