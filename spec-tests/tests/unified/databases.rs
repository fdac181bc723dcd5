//! Operations on clients and databases.

use std::time::Duration;

use bson::{Bson, Document, doc};
use wharf::client::{DatabaseSpecification, Watch, WatchTarget};
use wharf::{DriverInfo, ReadPreference};

use crate::arguments::{Arguments, options};
use crate::calls::{Call, call, open, shared};
use crate::case::Returned;
use crate::clients::{Apart, Client, CommonOptions, Database, Of, apart};
use crate::collections::{model, watch};
use crate::format::Object;
use crate::results::{bulk_of_client, names};
use crate::stop::Stop;

pub async fn on_client(client: &Client, name: &str, mut call: Call<'_>) -> Result<Returned, Stop> {
    match name {
        "close" => {
            call.arguments.end()?;
            client.shutdown(Duration::from_secs(10)).await;
            Ok(Returned::Nothing)
        }
        "listDatabases" | "listDatabaseObjects" => {
            let found = call!(client, call, |of| options!(call.arguments, of.list_databases(); filter))?;
            let description = |DatabaseSpecification { name, size_on_disk, empty, .. }| {
                doc! { "name": name, "sizeOnDisk": size_on_disk as i64, "empty": empty }
            };
            Ok(Returned::Documents(found.into_iter().map(description).collect()))
        }
        "listDatabaseNames" => {
            Ok(names(call!(client, call, |of| options!(call.arguments, of.list_database_names(); filter))?))
        }
        "dropDatabase" => {
            let database = client.database(&call.arguments.need::<String>("database")?, &CommonOptions::default());
            call!(&database, call, |of| of.drop()).map(|()| Returned::Nothing)
        }
        "createChangeStream" => {
            let pipeline = call.arguments.take::<Bson>("pipeline")?.unwrap_or(Bson::Null);
            let limit = call.arguments.take::<Duration>("timeoutMS")?;
            call.arguments.end()?;
            let within = |watch: Watch<'static>| match limit {
                Some(limit) => watch.timeout(limit),
                None => watch,
            };
            Ok(Returned::Changes(Box::new(match client {
                Of::Pooled(of) => Of::Pooled(within(of.watch(WatchTarget::Cluster, pipeline)).await?.typed()),
                Of::Single(of) => {
                    let opened = apart(|| of.watch(WatchTarget::Cluster, pipeline).with(within).run())?;
                    Of::Single(Apart::of(opened.typed()))
                }
            })))
        }
        "appendMetadata" => {
            let mut fields = Arguments::new("driverInfoOptions", &call.arguments.need::<Object>("driverInfoOptions")?);
            let mut library = DriverInfo::new(fields.need::<String>("name")?);
            if let Some(version) = fields.take::<String>("version")? {
                library = library.version(version);
            }
            if let Some(platform) = fields.take::<String>("platform")? {
                library = library.platform(platform);
            }
            fields.end().and_then(|()| call.arguments.end())?;
            client.append_metadata(library).map_err(|error| Stop::Refused(error.to_string()))?;
            Ok(Returned::Nothing)
        }
        "clientBulkWrite" => {
            let mut models = Vec::new();
            for request in call.arguments.need::<Vec<Object>>("models")? {
                let (kind, mut fields) = one_model(request)?;
                let namespace = fields.need::<String>("namespace")?;
                let (database, collection) = namespace.split_once('.').unwrap_or((&namespace, ""));
                let none = CommonOptions::default();
                let collection = client.database(database, &none).collection(collection, &none);
                models.push(collection.model(model(&kind, fields)?));
            }
            let written = call!(client, call, |of| options!(
                call.arguments, of.bulk_write(models);
                bypass_document_validation, comment, let_vars, ordered, verbose_results, write_concern,
            ))?;
            Ok(Returned::Value(bulk_of_client(&written)))
        }
        other => Err(Stop::Broken(format!("{other} is not an operation of a client"))),
    }
}

/// Returns the kind and the fields of a model: `{ updateOne: { … } }`.
pub fn one_model(request: Object) -> Result<(String, Arguments), Stop> {
    let mut models = request.iter();
    match (models.next(), models.next()) {
        (Some((kind, serde_json::Value::Object(fields))), None) => Ok((kind.clone(), Arguments::new(kind, fields))),
        _ => Err(Stop::Broken(format!("{request:?} is not a model of a bulk write"))),
    }
}

pub async fn on_database(database: &Database, name: &str, mut call: Call<'_>) -> Result<Returned, Stop> {
    match name {
        "runCommand" => {
            let command = command(&mut call)?;
            let preference = call.arguments.take::<ReadPreference>("readPreference")?;
            let reply = call!(database, call, |of| {
                let run = of.run_command(&command);
                match &preference {
                    Some(preference) => run.read_preference(preference),
                    None => run,
                }
            });
            Ok(Returned::Value(reply?.into()))
        }
        "runCursorCommand" | "createCommandCursor" => {
            let command = command(&mut call)?;
            let cursor = open!(database, call, |of| options!(
                call.arguments, of.run_cursor_command(&command); batch_size, comment, cursor_type, max_time, timeout_mode,
            ))?;
            match name {
                "createCommandCursor" => Ok(Returned::Cursor(Box::new(cursor))),
                _ => Ok(Returned::Documents(cursor.rest().await?)),
            }
        }
        "aggregate" => {
            let cursor = open!(database, call, |of| options!(
                call.arguments, of.aggregate(call.arguments.need::<Bson>("pipeline")?);
                allow_disk_use, batch_size, bypass_document_validation, collation, comment, let_vars, max_time, timeout_mode,
            ))?;
            Ok(Returned::Documents(cursor.rest().await?))
        }
        "listCollections" | "listCollectionObjects" => {
            let cursor = open!(database, call, |of| options!(
                call.arguments, of.list_collections().typed::<Document>(); batch_size, filter, timeout_mode,
            ))?;
            Ok(Returned::Documents(cursor.rest().await?))
        }
        "listCollectionNames" => {
            Ok(names(call!(database, call, |of| options!(call.arguments, of.list_collection_names(); filter))?))
        }
        "createCollection" => {
            let name = call.arguments.need::<String>("collection")?;
            call!(database, call, |of| options!(
                call.arguments, of.create_collection(&name);
                capped, change_stream_pre_and_post_images, clustered_index, expire_after, max_documents, pipeline, size,
                time_series, validator, view_on,
            ))?;
            Ok(Returned::Collection(database.collection(&name, &CommonOptions::default())))
        }
        // There is no separate method for this operation, so it uses `run_command`.
        "modifyCollection" => {
            let mut command = doc! { "collMod": call.arguments.need::<String>("collection")? };
            command.extend(call.arguments.rest());
            call!(database, call, |of| of.run_command(&command)).map(|_| Returned::Nothing)
        }
        "dropCollection" => {
            let name = call.arguments.need::<String>("collection")?;
            let collection = database.collection(&name, &CommonOptions::default());
            call!(&collection, call, |of| of.drop()).map(|()| Returned::Nothing)
        }
        "createChangeStream" => {
            let changes = open!(database, call, |of| watch!(call, of))?;
            Ok(Returned::Changes(Box::new(changes)))
        }
        other => Err(Stop::Broken(format!("{other} is not an operation of a database"))),
    }
}

fn command(call: &mut Call<'_>) -> Result<Document, Stop> {
    // This argument only repeats the name of the command's first field.
    call.arguments.take::<String>("commandName")?;
    call.arguments.need("command")
}
