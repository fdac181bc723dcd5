//! The deployments for the cases, and the rules for choosing one for each case.

use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf, doc};
use wharf::Client;

use crate::format::{
    CollectionData, CollectionEntity, Csfle, Entity, RunOnRequirement, Serverless, TestFile, Topology, Version,
};
use crate::matching::{bson, document, is_same};

/// How long one of the runner's own commands may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A deployment, with the runner's own clients.
pub struct Environment {
    /// The connection string, which contains a question mark.
    pub uri: String,
    /// The connection string of the load balancer in front of two services.
    pub uri_of_two: Option<String>,
    pub topology: Topology,
    /// Whether clients authenticate.
    has_users: bool,
    version: Version,
    parameters: Document,
    internal: Client,
    /// A client for each server, which sets fail points.
    servers: Vec<Client>,
}

impl TestFile {
    /// Returns the collections among the file's entities, each with the name of its database.
    pub fn collections(&self) -> Vec<CollectionData> {
        let entities = || self.create_entities.iter().flat_map(|entities| &entities.0);
        let database = |id: &str| {
            entities().find_map(|entity| match entity {
                Entity::Database(database) if database.id == id => Some(database.database_name.clone()),
                _ => None,
            })
        };
        let collection = |entity: &Entity| match entity {
            Entity::Collection(CollectionEntity { database: of, collection_name, .. }) => Some(CollectionData {
                collection_name: collection_name.clone(),
                database_name: database(of)?,
                create_options: None,
                documents: Vec::new(),
            }),
            _ => None,
        };
        entities().filter_map(collection).collect()
    }
}

/// Returns a document in the form in which it is sent.
pub fn raw(document: &Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(document).expect("no name has a zero byte")
}

/// Returns a reply as a document.
pub fn owned(reply: &bson::RawDocument) -> Document {
    reply.try_into().expect("a server replies in BSON")
}

impl Environment {
    pub async fn new(uri: String, topology: Topology, addresses: &[String]) -> Self {
        let internal = Client::from_uri(&uri).unwrap();
        let run = async |command: Document| {
            let command = raw(&command);
            owned(&internal.run_command("admin", &command).await.unwrap())
        };
        let version = run(doc! { "buildInfo": 1 }).await.get_str("version").unwrap().to_owned();
        let version = serde_json::from_value(version.split('-').next().unwrap().into()).unwrap();
        let parameters = run(doc! { "getParameter": "*" }).await;
        // The clients of the individual servers use the user name and password from the connection string, if it has
        // them.
        let user = uri.trim_start_matches("mongodb://").split_once('@').map(|(user, _)| format!("{user}@"));
        let has_users = user.is_some();
        let user = user.unwrap_or_default();
        let direct = |address: &String| {
            Client::from_uri(&format!("mongodb://{user}{address}/?directConnection=true")).expect("a valid address")
        };
        let servers = addresses.iter().map(direct).collect();
        Self { uri, uri_of_two: None, topology, has_users, version, parameters, internal, servers }
    }

    /// Runs one of the runner's own commands.
    pub async fn run(&self, database: &str, command: Document) -> Result<Document, String> {
        let command = raw(&command);
        let reply = tokio::time::timeout(PATIENCE, self.internal.run_command(database, &command)).await;
        let reply = reply.map_err(|_| "the runner's command hangs".to_owned())?;
        Ok(owned(&reply.map_err(|error| format!("the runner's command: {error}"))?))
    }

    /// Returns why the requirements are not met, or `None` if they are.
    pub fn refuses(&self, requirements: &[RunOnRequirement]) -> Option<String> {
        let refusals: Vec<_> = requirements.iter().map(|requirement| self.refuses_one(requirement)).collect();
        match refusals.iter().any(Option::is_none) || refusals.is_empty() {
            true => None,
            false => refusals.into_iter().flatten().next(),
        }
    }

    fn refuses_one(&self, requirement: &RunOnRequirement) -> Option<String> {
        let RunOnRequirement {
            min_server_version: min,
            max_server_version: max,
            topologies,
            serverless,
            server_parameters,
            auth,
            auth_mechanism,
            csfle,
        } = requirement;
        if let Some(topologies) = topologies
            && !topologies.0.contains(&self.topology)
        {
            let names: Vec<_> = topologies.0.iter().map(|topology| format!("{topology:?}")).collect();
            return Some(format!("topology {}", names.join(" or ")));
        }
        if min.as_ref().is_some_and(|min| !self.version.is_at_least(min)) {
            return Some("a later server".to_owned());
        }
        // A maximum of 4.4 includes 4.4.9.
        let within = |max: &Version| {
            let mut version = self.version.clone();
            version.0.truncate(max.0.len());
            max.is_at_least(&version)
        };
        if max.as_ref().is_some_and(|max| !within(max)) {
            return Some("an earlier server".to_owned());
        }
        if *serverless == Some(Serverless::Require) {
            return Some("Atlas Serverless".to_owned());
        }
        match auth {
            Some(true) if !self.has_users => return Some(format!("authentication on {:?}", self.topology)),
            Some(false) if self.has_users => return Some("a server without authentication".to_owned()),
            _ => {}
        }
        if let Some(mechanism) = auth_mechanism
            && !self.has_mechanism(mechanism)
        {
            return Some(format!("the mechanism {mechanism}"));
        }
        if matches!(csfle, Some(Csfle::Wanted(true) | Csfle::From(_))) {
            return Some("client-side encryption".to_owned());
        }
        let is_set = |(name, value): (&String, &serde_json::Value)| {
            self.parameters.get(name).is_some_and(|actual| is_same(&bson(value), actual))
        };
        let unset = server_parameters.iter().flatten().find(|&parameter| !is_set(parameter));
        unset.map(|(name, value)| format!("server parameter {name}={value}"))
    }

    /// Returns whether the servers support `rawData`.
    pub fn has_raw_data(&self) -> bool {
        self.version.is_at_least(&Version(vec![8, 2]))
    }

    fn has_mechanism(&self, name: &str) -> bool {
        let enabled = self.parameters.get_array("authenticationMechanisms");
        enabled.is_ok_and(|enabled| enabled.iter().any(|mechanism| mechanism.as_str() == Some(name)))
    }

    /// Makes a collection contain exactly these documents.
    pub async fn set_up(&self, data: &CollectionData) -> Result<(), String> {
        let CollectionData { collection_name: collection, database_name: database, create_options, documents } = data;
        let majority = doc! { "w": "majority" };
        let drop = async || match self.run(database, doc! { "drop": collection, "writeConcern": &majority }).await {
            Err(error) if !error.contains("ns not found") => Err(error),
            _ => Ok(()),
        };
        drop().await?;
        if create_options.is_some() || documents.is_empty() {
            let mut create = doc! { "create": collection };
            create.extend(create_options.as_ref().map(document).unwrap_or_default());
            create.insert("writeConcern", &majority);
            while let Err(error) = self.run(database, create.clone()).await {
                // An unacknowledged write from the previous case interfered.
                if !error.contains("NamespaceExists") {
                    return Err(error);
                }
                drop().await?;
            }
        }
        if !documents.is_empty() {
            let documents: Vec<Bson> = documents.iter().map(|one| document(one).into()).collect();
            self.run(database, doc! { "insert": collection, "documents": documents, "writeConcern": &majority })
                .await?;
        }
        Ok(())
    }

    /// Waits until all members of the set have executed all earlier writes.
    pub async fn wait_for_all_members(&self) -> Result<(), String> {
        let members = i32::try_from(self.servers.len()).map_err(|error| error.to_string())?;
        if members == 1 {
            return Ok(());
        }
        let note = doc! { "appendOplogNote": 1, "data": {}, "writeConcern": { "w": members } };
        self.run("admin", note).await.map(drop)
    }

    /// Checks that a collection contains exactly these documents.
    pub async fn check(&self, data: &CollectionData) -> Result<(), String> {
        let find = doc! {
            "find": &data.collection_name, "sort": { "_id": 1 }, "readConcern": { "level": "local" }, "batchSize": 10_000,
        };
        let reply = self.run(&data.database_name, find).await?;
        let actual = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).cloned();
        let actual = Bson::Array(actual.map_err(|error| error.to_string())?);
        let expected = Bson::Array(data.documents.iter().map(|one| document(one).into()).collect());
        match is_same(&expected, &actual) {
            true => Ok(()),
            false => Err(format!("outcome: {} has {actual}, not {expected}", data.collection_name)),
        }
    }

    /// Sets a fail point on the only server that a pinned session can use.
    pub async fn set_fail_point(&self, fail_point: &Document) -> Result<(), String> {
        let [server] = &self.servers[..] else {
            return Err("a fail point of a session needs a single server".to_owned());
        };
        let set = server.run_command("admin", &raw(fail_point)).await;
        set.map(drop).map_err(|error| format!("targetedFailPoint: {error}"))
    }

    /// Turns a fail point off on all servers.
    pub async fn disable_fail_point(&self, name: &str) {
        for server in &self.servers {
            let command = raw(&doc! { "configureFailPoint": name, "mode": "off" });
            server.run_command("admin", &command).await.unwrap();
        }
    }

    /// Ends the transactions that a failed case left open.
    pub async fn kill_all_sessions(&self) {
        for server in &self.servers {
            let command = raw(&doc! { "killAllSessions": [] });
            // The command fails with error 11601, because it interrupts itself. A secondary may refuse it.
            let _ = server.run_command("admin", &command).await;
        }
    }
}
