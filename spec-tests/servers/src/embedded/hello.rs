//! The handshake.

use bson::raw::cstr;
use bson::{DateTime, Document, RawBsonRef, RawDocumentBuf};

use super::Shared;
use super::commands::Command;
use super::connection::{Client, MAX_BSON_OBJECT_SIZE, MAX_MESSAGE_SIZE};

/// Records what the first hello on a connection says about its client, and returns that hello. Ignores later ones.
pub(super) fn greet(command: &Command<'_>, client: &mut Client, shared: &Shared) -> Option<Document> {
    if client.greeted {
        return None;
    }
    client.greeted = true;
    client.app_name = app_name(command).map(str::to_owned);
    if is_true(command, "loadBalanced") {
        let services = &shared.options.service_ids;
        // Connections are numbered from 1, and are assigned the services in rotation.
        let turn = client.id.checked_sub(1)?.checked_rem(services.len() as u64);
        client.service_id = turn.map(|turn| services[turn as usize]);
    }
    Document::try_from(command.body).ok()
}

fn app_name<'a>(command: &Command<'a>) -> Option<&'a str> {
    let client = command.body.get("client").ok()??.as_document()?;
    client.get("application").ok()??.as_document()?.get("name").ok()??.as_str()
}

fn is_true(command: &Command<'_>, field: &str) -> bool {
    matches!(command.body.get(field), Ok(Some(RawBsonRef::Boolean(true))))
}

/// Returns the reply to hello or the legacy hello.
pub(super) fn reply(command: &Command<'_>, client: &Client, shared: &Shared) -> RawDocumentBuf {
    let mut reply = RawDocumentBuf::new();
    reply.append(if command.name == "hello" { cstr!("isWritablePrimary") } else { cstr!("ismaster") }, true);
    if is_true(command, "helloOk") {
        reply.append(cstr!("helloOk"), true);
    }
    if let Some(service_id) = client.service_id {
        // Behind a load balancer, every server is a router.
        reply.append(cstr!("msg"), "isdbgrid");
        reply.append(cstr!("serviceId"), service_id);
    }
    reply.append(cstr!("maxBsonObjectSize"), MAX_BSON_OBJECT_SIZE);
    reply.append(cstr!("maxMessageSizeBytes"), MAX_MESSAGE_SIZE);
    reply.append(cstr!("maxWriteBatchSize"), 100_000);
    reply.append(cstr!("localTime"), DateTime::now());
    reply.append(cstr!("logicalSessionTimeoutMinutes"), 30);
    reply.append(cstr!("connectionId"), i64::try_from(client.id).unwrap_or(i64::MAX));
    reply.append(cstr!("minWireVersion"), shared.options.min_wire_version);
    reply.append(cstr!("maxWireVersion"), shared.options.max_wire_version);
    reply.append(cstr!("readOnly"), false);
    reply.append(cstr!("ok"), 1.0);
    reply
}
