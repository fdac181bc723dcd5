//! Operations on collections.

use bson::{Bson, Document, doc};
use wharf::client::{IndexModel, NamespaceWriteModel, SearchIndexModel, WriteModel};

use crate::arguments::{Arguments, options};
use crate::calls::{Call, call, open, shared};
use crate::case::Returned;
use crate::clients::{Apart, Collection, Of, apart};
use crate::databases::one_model;
use crate::format::Object;
use crate::results::{self, bulk, names};
use crate::stop::Stop;

/// Returns the builder for a change stream.
macro_rules! watch {
    ($call:ident, $of:ident) => {
        options!(
            $call.arguments, $of.watch($call.arguments.take::<Bson>("pipeline")?.unwrap_or(Bson::Null));
            batch_size, collation, comment, full_document, full_document_before_change, max_await_time, resume_after,
            show_expanded_events, start_after, start_at_operation_time,
        )
    };
}

pub(crate) use watch;

pub async fn on_collection(collection: &Collection, name: &str, mut call: Call<'_>) -> Result<Returned, Stop> {
    match name {
        "find" | "createFindCursor" => {
            let cursor = open!(collection, call, |of| options!(
                call.arguments, of.find(call.arguments.need::<Bson>("filter")?);
                allow_disk_use, batch_size, collation, comment, cursor_type, hint, let_vars, limit, max, max_await_time,
                max_time, min, projection, return_key, show_record_id, skip, sort, timeout_mode,
            ))?;
            match name {
                "createFindCursor" => Ok(Returned::Cursor(Box::new(cursor))),
                _ => Ok(Returned::Documents(cursor.rest().await?)),
            }
        }
        "findOne" => document(call!(collection, call, |of| options!(
            call.arguments, of.find_one(call.arguments.need::<Bson>("filter")?);
            collation, comment, hint, let_vars, max, max_time, min, projection, skip, sort,
        ))),
        "aggregate" => {
            let cursor = open!(collection, call, |of| options!(
                call.arguments, of.aggregate(call.arguments.need::<Bson>("pipeline")?);
                allow_disk_use, batch_size, bypass_document_validation, collation, comment, hint, let_vars,
                max_await_time, max_time, timeout_mode,
            ))?;
            Ok(Returned::Documents(cursor.rest().await?))
        }
        "countDocuments" => number(call!(collection, call, |of| options!(
            call.arguments, of.count_documents(call.arguments.need::<Bson>("filter")?);
            collation, comment, hint, limit, max_time, skip,
        ))),
        "estimatedDocumentCount" => number(call!(collection, call, |of| options!(
            call.arguments, of.estimated_document_count(); comment, max_time,
        ))),
        // The specification deprecates this method, which sends the same command as `estimated_document_count`.
        "count" => {
            let mut fields = Document::new();
            for (argument, field) in
                [("filter", "query"), ("skip", "skip"), ("limit", "limit"), ("collation", "collation")]
            {
                fields.extend(call.arguments.take::<Bson>(argument)?.map(|value| (field.to_owned(), value)));
            }
            number(call!(collection, call, |of| options!(
                call.arguments, of.estimated_document_count().options(&fields); comment, max_time,
            )))
        }
        "distinct" => {
            let values = call!(collection, call, |of| options!(
                call.arguments,
                of.distinct(call.arguments.need::<String>("fieldName")?, call.arguments.need::<Bson>("filter")?);
                collation, comment, hint, max_time,
            ));
            Ok(Returned::Value(Bson::Array(values?)))
        }
        "createChangeStream" => Ok(Returned::Changes(Box::new(open!(collection, call, |of| watch!(call, of))?))),
        "insertOne" | "insertMany" | "updateOne" | "updateMany" | "replaceOne" | "deleteOne" | "deleteMany"
        | "bulkWrite" => write(collection, name, call).await,
        "findOneAndDelete" => document(call!(collection, call, |of| options!(
            call.arguments, of.find_one_and_delete(call.arguments.need::<Bson>("filter")?);
            collation, comment, hint, let_vars, max_time, projection, sort,
        ))),
        "findOneAndReplace" => document(call!(collection, call, |of| options!(
            call.arguments,
            of.find_one_and_replace(
                call.arguments.need::<Bson>("filter")?,
                call.arguments.need::<Document>("replacement")?
            );
            bypass_document_validation, collation, comment, hint, let_vars, max_time, projection, return_document, sort,
            upsert,
        ))),
        "findOneAndUpdate" => document(call!(collection, call, |of| options!(
            call.arguments,
            of.find_one_and_update(call.arguments.need::<Bson>("filter")?, call.arguments.need::<Bson>("update")?);
            array_filters, bypass_document_validation, collation, comment, hint, let_vars, max_time, projection,
            return_document, sort, upsert,
        ))),
        // There is no separate method for this operation, so it uses `run_command`.
        "mapReduce" => {
            let mut command = doc! { "mapReduce": collection.name() };
            command.extend(call.arguments.rest());
            let reply = call!(&collection.database(), call, |of| of.run_command(&command))?;
            let results = reply.get_array("results").cloned().unwrap_or_default();
            Ok(Returned::Documents(results.into_iter().filter_map(|one| one.as_document().cloned()).collect()))
        }
        "rename" => call!(collection, call, |of| options!(
            call.arguments, of.rename(call.arguments.need::<String>("to")?); drop_target,
        ))
        .map(|()| Returned::Nothing),
        _ => index(collection, name, call).await,
    }
}

async fn write(collection: &Collection, name: &str, mut call: Call<'_>) -> Result<Returned, Stop> {
    Ok(Returned::Value(match name {
        "insertOne" => {
            let written = call!(collection, call, |of| options!(
                call.arguments, of.insert_one(call.arguments.need::<Document>("document")?);
                bypass_document_validation, comment,
            ))?;
            doc! { "acknowledged": written.acknowledged, "insertedId": written.inserted_id }.into()
        }
        "insertMany" => {
            let written = call!(collection, call, |of| options!(
                call.arguments, of.insert_many(call.arguments.need::<Vec<Document>>("documents")?);
                bypass_document_validation, comment, ordered,
            ))?;
            doc! { "acknowledged": written.acknowledged, "insertedIds": results::by_place(&written.inserted_ids) }
                .into()
        }
        "updateOne" => results::update(call!(collection, call, |of| options!(
            call.arguments,
            of.update_one(call.arguments.need::<Bson>("filter")?, call.arguments.need::<Bson>("update")?);
            array_filters, bypass_document_validation, collation, comment, hint, let_vars, sort, upsert,
        ))?),
        "updateMany" => results::update(call!(collection, call, |of| options!(
            call.arguments,
            of.update_many(call.arguments.need::<Bson>("filter")?, call.arguments.need::<Bson>("update")?);
            array_filters, bypass_document_validation, collation, comment, hint, let_vars, upsert,
        ))?),
        "replaceOne" => results::update(call!(collection, call, |of| options!(
            call.arguments,
            of.replace_one(call.arguments.need::<Bson>("filter")?, call.arguments.need::<Document>("replacement")?);
            bypass_document_validation, collation, comment, hint, let_vars, sort, upsert,
        ))?),
        "deleteOne" | "deleteMany" => {
            let filter = call.arguments.need::<Bson>("filter")?;
            let written = call!(collection, call, |of| options!(
                call.arguments, if name == "deleteOne" { of.delete_one(&filter) } else { of.delete_many(&filter) };
                collation, comment, hint, let_vars,
            ))?;
            doc! { "acknowledged": written.acknowledged, "deletedCount": written.deleted_count as i64 }.into()
        }
        _ => {
            let requests = call.arguments.need::<Vec<Object>>("requests")?.into_iter();
            let models = requests.map(|request| one_model(request).and_then(|(kind, fields)| model(&kind, fields)));
            let models = models.collect::<Result<Vec<_>, _>>()?;
            bulk(&call!(collection, call, |of| options!(
                call.arguments, of.bulk_write(models); bypass_document_validation, comment, let_vars, ordered,
            ))?)
        }
    }))
}

/// Operations on indexes.
async fn index(collection: &Collection, name: &str, mut call: Call<'_>) -> Result<Returned, Stop> {
    let nothing = |done: Result<(), Stop>| done.map(|()| Returned::Nothing);
    match name {
        "createIndex" => {
            let index = IndexModel::new(call.arguments.need::<Bson>("keys")?);
            let index = options!(call.arguments, index; name, unique);
            let name =
                call!(collection, call, |of| options!(call.arguments, of.create_index(index); comment, max_time))?;
            Ok(Returned::Value(name.into()))
        }
        "listIndexes" => {
            let cursor = open!(collection, call, |of| options!(
                call.arguments, of.list_indexes().typed::<Document>(); batch_size, timeout_mode,
            ))?;
            Ok(Returned::Documents(cursor.rest().await?))
        }
        "listIndexNames" => Ok(names(call!(collection, call, |of| of.list_index_names())?)),
        "dropIndex" => nothing(call!(collection, call, |of| options!(
            call.arguments, of.drop_index(call.arguments.need::<String>("name")?); max_time,
        ))),
        "dropIndexes" => nothing(call!(collection, call, |of| options!(call.arguments, of.drop_indexes(); max_time))),
        "createSearchIndex" => {
            let model = search_index(&call.arguments.need::<Object>("model")?)?;
            Ok(Returned::Value(call!(collection, call, |of| of.create_search_index(model))?.into()))
        }
        "createSearchIndexes" => {
            let models = call.arguments.need::<Vec<Object>>("models")?;
            let models = models.iter().map(search_index).collect::<Result<Vec<_>, _>>()?;
            Ok(names(call!(collection, call, |of| of.create_search_indexes(models))?))
        }
        "listSearchIndexes" => {
            let own = call.arguments.take::<Object>("aggregationOptions")?.unwrap_or_default();
            let mut own = Arguments::new("aggregationOptions", &own);
            let cursor = open!(collection, call, |of| {
                let list = options!(own, of.list_search_indexes(); batch_size);
                own.end()?;
                options!(call.arguments, list; name)
            })?;
            Ok(Returned::Documents(cursor.rest().await?))
        }
        "updateSearchIndex" => nothing(call!(collection, call, |of| of
            .update_search_index(call.arguments.need::<String>("name")?, call.arguments.need::<Bson>("definition")?))),
        "dropSearchIndex" => {
            nothing(call!(collection, call, |of| of.drop_search_index(call.arguments.need::<String>("name")?)))
        }
        other => Err(Stop::Broken(format!("{other} is not an operation of a collection"))),
    }
}

fn search_index(fields: &Object) -> Result<SearchIndexModel, Stop> {
    let mut fields = Arguments::new("a search index", fields);
    let mut model = options!(fields, SearchIndexModel::new(fields.need::<Bson>("definition")?); name);
    if let Some(index_type) = fields.take::<String>("type")? {
        model = model.index_type(&index_type);
    }
    fields.end().map(|()| model)
}

/// Returns the write that a model describes, such as `updateOne` with its fields.
pub fn model(kind: &str, mut fields: Arguments) -> Result<WriteModel, Stop> {
    if kind == "insertOne" {
        let model = WriteModel::insert_one(fields.need::<Document>("document")?);
        return fields.end().map(|()| model);
    }
    let filter = fields.need::<Bson>("filter")?;
    let model = match kind {
        "updateOne" => WriteModel::update_one(filter, fields.need::<Bson>("update")?),
        "updateMany" => WriteModel::update_many(filter, fields.need::<Bson>("update")?),
        "replaceOne" => WriteModel::replace_one(filter, fields.need::<Document>("replacement")?),
        "deleteOne" => WriteModel::delete_one(filter),
        "deleteMany" => WriteModel::delete_many(filter),
        other => return Err(Stop::Broken(format!("{other} is not a model of a bulk write"))),
    };
    let model = options!(fields, model; array_filters, collation, hint, sort, upsert);
    fields.end().map(|()| model)
}

impl Collection {
    pub fn model(&self, model: WriteModel) -> NamespaceWriteModel {
        match self {
            Self::Pooled(of) => of.model(model),
            Self::Single(of) => of.model(model),
        }
    }
}

fn document(found: Result<Option<Document>, Stop>) -> Result<Returned, Stop> {
    Ok(Returned::Value(found?.map_or(Bson::Null, Bson::from)))
}

fn number(counted: Result<u64, Stop>) -> Result<Returned, Stop> {
    Ok(Returned::Value((counted? as i64).into()))
}
