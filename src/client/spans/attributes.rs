//! Names and attributes of spans.

use std::borrow::Cow;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};

use super::{Attribute, Described, Value};
use crate::client::session::name;
use crate::endpoint::wire::reply::whole_number;
use crate::endpoint::{Command, Endpoint};
use crate::pool::runtime::Connection;
use crate::telemetry::host_and_port;
use crate::text::shortened::MostLogged;

/// The commands whose first field contains the name of a collection. In other commands, the first field may contain the
/// name of a user.
const OF_COLLECTIONS: [&str; 25] = [
    "aggregate",
    "collMod",
    "collStats",
    "compact",
    "convertToCapped",
    "count",
    "create",
    "createIndexes",
    "createSearchIndexes",
    "delete",
    "distinct",
    "drop",
    "dropIndexes",
    "dropSearchIndex",
    "find",
    "findAndModify",
    "findandmodify",
    "insert",
    "killCursors",
    "listIndexes",
    "mapReduce",
    "reIndex",
    "update",
    "updateSearchIndex",
    "validate",
];

/// The fields that `db.query.text` omits.
const LEFT_OUT: [&str; 4] = ["lsid", "$db", "$clusterTime", "signature"];

/// Returns the attributes that every span has.
pub(super) fn of_any() -> Vec<Attribute<'static>> {
    vec![("db.system.name", "mongodb".into())]
}

/// Returns the attributes for the namespace of an operation or a command.
fn of_namespace<'a>(database: &'a str, collection: Option<&'a str>) -> Vec<Attribute<'a>> {
    let mut attributes = of_any();
    attributes.push(("db.namespace", database.into()));
    attributes.extend(collection.map(|collection| ("db.collection.name", collection.into())));
    attributes
}

/// Returns the name and the attributes of an operation's span.
pub(super) fn of_operation<'a>(described: &Described<'a>) -> (Cow<'a, str>, Vec<Attribute<'a>>) {
    let Described { name, database, collection, .. } = *described;
    let summary = summary(name, database, collection);
    let mut attributes = of_namespace(database, collection);
    attributes.push(("db.operation.name", name.into()));
    attributes.push(("db.operation.summary", summary.clone().into()));
    (summary.into(), attributes)
}

/// Returns the attributes of a command's span, with `text` as `db.query.text`.
pub(super) fn of_command<'a>(
    connection: &'a Connection<Endpoint>,
    command: &Command<'a>,
    added: &RawDocument,
    text: Option<String>,
) -> Vec<Attribute<'a>> {
    let (database, body) = (command.database(), command.body());
    let collection = collection_of(database, body);
    let (host, port) = host_and_port(connection.address());
    // Only a Unix domain socket, whose address is a path, has no port.
    let transport = if port.is_some() { "tcp" } else { "unix" };
    let mut attributes = of_namespace(database, collection);
    attributes.push(("db.command.name", command.name().into()));
    attributes.push(("server.address", host.into()));
    attributes.extend(port.map(|port| ("server.port", Value::Number(port.into()))));
    attributes.push(("network.transport", transport.into()));
    attributes.push(("db.query.summary", summary(command.name(), database, collection).into()));
    let of_server = connection.hello().server_connection_id;
    attributes.extend(of_server.map(|id| ("db.mongodb.server_connection_id", Value::Number(id))));
    let of_client = i64::try_from(connection.id()).unwrap_or(i64::MAX);
    attributes.push(("db.mongodb.driver_connection_id", Value::Number(of_client)));
    attributes.extend(text.map(|text| ("db.query.text", text.into())));
    attributes.extend(cursor_used(body).map(|id| ("db.mongodb.cursor_id", Value::Number(id))));
    let session = [body, added].into_iter().find_map(|document| text_of_id(document.get_document("lsid").ok()?));
    attributes.extend(session.map(|id| ("db.mongodb.lsid", id.into())));
    let number = [body, added].into_iter().find_map(|document| whole_number(document, "txnNumber").ok()?);
    attributes.extend(number.map(|number| ("db.mongodb.txn_number", Value::Number(number))));
    attributes
}

/// Returns the text of an `lsid`, which is a UUID.
fn text_of_id(lsid: &RawDocument) -> Option<String> {
    let id = lsid.get_binary("id").ok()?;
    Some(bson::Uuid::from_bytes(id.bytes.try_into().ok()?).to_string())
}

fn summary(name: &str, database: &str, collection: Option<&str>) -> String {
    match collection {
        Some(collection) => format!("{name} {database}.{collection}"),
        None => format!("{name} {database}"),
    }
}

/// Returns the name of the operation that sends a command: the command's name, with two exceptions.
pub(super) fn operation_of(command: &RawDocument) -> &str {
    match name(command).unwrap_or_default() {
        "create" => "createCollection",
        "drop" => "dropCollection",
        other => other,
    }
}

/// Returns the collection that a command operates on. Commands on `admin` have none.
pub(super) fn collection_of<'a>(database: &str, command: &'a RawDocument) -> Option<&'a str> {
    if database == "admin" {
        return None;
    }
    match name(command)? {
        "getMore" => command.get_str("collection").ok(),
        name if OF_COLLECTIONS.contains(&name) => command.get_str(name).ok(),
        _ => None,
    }
}

/// Returns the id of the cursor that a command uses.
fn cursor_used(command: &RawDocument) -> Option<i64> {
    match name(command)? {
        "getMore" => whole_number(command, "getMore").ok()?,
        "killCursors" => match command.get_array("cursors").ok()?.into_iter().next()?.ok()? {
            RawBsonRef::Int64(id) => Some(id),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the id of the cursor that a reply leaves open on the server.
pub(super) fn cursor_of(reply: &RawDocument) -> Option<i64> {
    whole_number(reply.get_document("cursor").ok()?, "id").ok()?.filter(|&id| id != 0)
}

/// Returns the value of `db.query.text`.
pub(super) fn query_text(shown: &RawDocument, most: MostLogged) -> String {
    let mut text = RawDocumentBuf::new();
    for (field, value) in shown.iter().flatten() {
        if !LEFT_OUT.contains(&field.as_str()) {
            text.append(field, value);
        }
    }
    most.json(&text)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn of(command: &str, value: &str) -> RawDocumentBuf {
        RawDocumentBuf::try_from(bson::doc! { command: value }).unwrap()
    }

    fn name_of(described: &Described<'_>) -> String {
        let (name, attributes) = of_operation(described);
        let collection = attributes.iter().find(|(name, _)| *name == "db.collection.name");
        assert_eq!(collection.is_some(), name.contains('.'), "{name}");
        name.into_owned()
    }

    #[test]
    fn operations_have_the_names_of_the_specification() {
        let shop = |command: RawDocumentBuf| name_of(&Described::of("shop", &command));
        assert_eq!(shop(rawdoc! { "find": "orders" }), "find shop.orders");
        assert_eq!(shop(rawdoc! { "create": "orders" }), "createCollection shop.orders");
        assert_eq!(shop(rawdoc! { "drop": "orders" }), "dropCollection shop.orders");
        assert_eq!(shop(rawdoc! { "count": "orders" }), "count shop.orders");
        assert_eq!(shop(rawdoc! { "getMore": 7_i64, "collection": "orders" }), "getMore shop.orders");
        assert_eq!(shop(rawdoc! { "aggregate": 1 }), "aggregate shop");
        assert_eq!(shop(rawdoc! { "listCollections": 1 }), "listCollections shop");
        assert_eq!(name_of(&Described::named("runCommand", "shop")), "runCommand shop");
        for (command, name) in
            [("listDatabases", "listDatabases admin"), ("renameCollection", "renameCollection admin")]
        {
            assert_eq!(name_of(&Described::of("admin", &of(command, "shop.orders"))), name);
        }
    }

    #[test]
    fn name_of_a_user_is_not_taken_for_a_collection() {
        for command in ["dropUser", "usersInfo", "createRole", "explain"] {
            assert_eq!(collection_of("shop", &of(command, "eve")), None, "{command}");
        }
        assert_eq!(collection_of("admin", &rawdoc! { "find": "system.users" }), None);
    }

    #[test]
    fn cursor_is_the_one_that_a_command_uses_or_a_reply_leaves_open() {
        assert_eq!(cursor_used(&rawdoc! { "getMore": 7_i64, "collection": "orders" }), Some(7));
        assert_eq!(cursor_used(&rawdoc! { "killCursors": "orders", "cursors": [8_i64] }), Some(8));
        assert_eq!(cursor_used(&rawdoc! { "find": "orders" }), None);
        assert_eq!(cursor_of(&rawdoc! { "ok": 1, "cursor": { "id": 9_i64 } }), Some(9));
        assert_eq!(cursor_of(&rawdoc! { "ok": 1, "cursor": { "id": 0_i64 } }), None);
        assert_eq!(cursor_of(&rawdoc! { "ok": 1 }), None);
    }

    #[test]
    fn query_text_has_no_session_and_is_cut() {
        let shown = rawdoc! {
            "insert": "orders", "$db": "shop", "lsid": { "id": 1 }, "txnNumber": 3_i64, "$clusterTime": { "signature": 1 },
            "signature": 1, "documents": [{ "_id": 1 }],
        };
        let text = |most| query_text(&shown, MostLogged::new(Some(most)));
        assert_eq!(text(1_000), r#"{"insert":"orders","txnNumber":3,"documents":[{"_id":1}]}"#);
        assert_eq!(text(11), r#"{"insert":"..."#);
    }
}
