//! The official driver, with every option except the pool's size at its default.

use std::sync::Arc;

use bson::{RawDocumentBuf, doc, rawdoc};
use mongodb::event::EventHandler;
use mongodb::event::sdam::SdamEvent;
use mongodb::options::{ClientOptions, ServerAddress};
use mongodb::{Client, Database};
use tokio::sync::Notify;

use super::Subject;
use crate::Failure;

/// A client that has discovered its server.
pub struct Official {
    client: Client,
    admin: Database,
}

impl Subject for Official {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        let discovered = Arc::new(Notify::new());
        let on_event = {
            let discovered = discovered.clone();
            move |event| {
                if let SdamEvent::ServerHeartbeatSucceeded(_) = event {
                    discovered.notify_one();
                }
            }
        };
        let options = ClientOptions::builder()
            .hosts(vec![ServerAddress::parse(server)?])
            .direct_connection(true)
            .max_pool_size(connections)
            .sdam_event_handler(EventHandler::callback(on_event))
            .build();
        let client = Client::with_options(options)?;
        // The other subjects do not discover the server's type, so the time that discovery takes must not be measured.
        discovered.notified().await;
        Ok(Self { admin: client.database("admin"), client })
    }

    async fn run(&self) -> Result<(), Failure> {
        // Fails unless the reply reports success. The driver consumes the document, so it is rebuilt each time.
        self.admin.run_command(doc! { "ping": 1 }).await?;
        Ok(())
    }

    async fn close(&self) {
        self.client.clone().shutdown().await;
    }
}

/// The official driver with a raw command, which does not have to be encoded first.
pub struct OfficialRaw {
    client: Client,
    admin: Database,
    ping: RawDocumentBuf,
}

impl Subject for OfficialRaw {
    async fn open(server: &str, connections: u32) -> Result<Self, Failure> {
        let options = ClientOptions::parse(super::uri(server, connections)).await?;
        let client = Client::with_options(options)?;
        let ping = rawdoc! { "ping": 1 };
        let admin = client.database("admin");
        // Waits until the server is known.
        admin.run_raw_command(ping.clone()).await?;
        Ok(Self { admin, client, ping })
    }

    async fn run(&self) -> Result<(), Failure> {
        // The driver consumes the command, so its bytes are copied each time.
        self.admin.run_raw_command(self.ping.clone()).await?;
        Ok(())
    }

    async fn close(&self) {
        self.client.clone().shutdown().await;
    }
}
