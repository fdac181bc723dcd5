//! The `discovery_and_monitoring` suite: phases of hello replies and application errors, and the topology after each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bson::rawdoc;
use serde_json::Value;
use wharf::unstable::topology::{
    ApplicationError, Consequence, ErrorKind, Preparation, Progress, ServerDescription, TopologyDescription,
    TopologyType, TopologyVersion, Transition,
};
use wharf::{Cause, Options, ServerAddress};
use wharf_testbed::table::{Row, show};

use super::suite::{document, files};

/// A client without sockets: its topology, and the generations of its pools.
struct Client {
    topology: TopologyDescription,
    generations: BTreeMap<String, u64>,
}

impl Client {
    fn new(uri: &str) -> Self {
        let options = Options::parse(uri).unwrap_or_else(|error| panic!("{uri}: {error}"));
        let topology = TopologyDescription::of_options(&options).unwrap_or_else(|error| panic!("{uri}: {error}"));
        let generations = topology.servers().map(|server| (server.address.to_string(), 0)).collect();
        Self { topology, generations }
    }

    fn apply(&mut self, transition: Option<Transition>) {
        let Some(Transition { topology, preparations, consequences }) = transition else { return };
        for preparation in preparations {
            match preparation {
                Preparation::Added(address) => {
                    assert_eq!(self.generations.insert(address.to_string(), 0), None, "twice");
                }
                Preparation::Removed(address) => {
                    self.generations.remove(address.as_str()).expect("a server that was there");
                }
                Preparation::MarkReady(_) => {}
            }
        }
        for consequence in consequences {
            if let Consequence::Clear(address) = consequence {
                *self.generations.get_mut(address.as_str()).expect("a server") += 1;
            }
        }
        self.topology = topology;
        let (monitored, described): (BTreeSet<_>, BTreeSet<_>) = (
            self.generations.keys().cloned().collect(),
            self.topology.servers().map(|server| server.address.to_string()).collect(),
        );
        assert_eq!(monitored, described, "the preparations and the topology name the same servers");
    }

    fn check(&mut self, address: &str, reply: &Value) {
        let address = ServerAddress::parse(address).unwrap();
        // An empty reply means that the check failed.
        let server = match reply.as_object().unwrap().is_empty() {
            true => ServerDescription::failed(address, failure("the check failed")),
            false => ServerDescription::of_reply(address, &document(reply), Instant::now()),
        };
        self.apply(self.topology.after_check(server));
    }

    fn meet(&mut self, error: &Value) {
        let address = ServerAddress::parse(error["address"].as_str().unwrap()).unwrap();
        let generation = self.generations[address.as_str()];
        let reply = if error["response"].is_object() {
            document(&error["response"])
        } else {
            rawdoc! {}
        };
        let error = ApplicationError {
            is_of_older_generation: error["generation"].as_u64().is_some_and(|of_error| of_error < generation),
            progress: match error["when"].as_str().unwrap() {
                "beforeHandshakeCompletes" => Progress::Connecting,
                "afterHandshakeCompletes" => Progress::Established,
                other => panic!("{other}"),
            },
            kind: match error["type"].as_str().unwrap() {
                "command" => ErrorKind::of_reply(&reply),
                "network" => ErrorKind::Network,
                "timeout" => ErrorKind::Timeout,
                other => panic!("{other}"),
            },
            is_overload: false,
            topology_version: TopologyVersion::of_reply(&reply),
            cause: failure("an application's error"),
            address,
        };
        self.apply(self.topology.after_error(&error));
    }

    fn assert(&self, outcome: &Value, at: &str) {
        let fields = [
            "servers",
            "topologyType",
            "setName",
            "logicalSessionTimeoutMinutes",
            "maxSetVersion",
            "maxElectionId",
            "compatible",
        ];
        let object = outcome.as_object().unwrap();
        assert!(object.keys().all(|field| fields.contains(&field.as_str())), "{at}: {outcome}");
        let topology = &self.topology;
        assert_eq!(topology.topology_type().name(), outcome["topologyType"], "{at}");
        assert_eq!(topology.set_name(), outcome["setName"].as_str(), "{at}");
        assert_eq!(
            topology.logical_session_timeout_minutes(),
            outcome["logicalSessionTimeoutMinutes"].as_i64(),
            "{at}"
        );
        if let Some(version) = object.get("maxSetVersion") {
            assert_eq!(topology.max_set_version(), version.as_i64(), "{at}");
        }
        if let Some(election) = object.get("maxElectionId") {
            assert_eq!(topology.max_election_id().map(|id| id.to_hex()).as_deref(), election["$oid"].as_str(), "{at}");
        }
        let compatible = outcome["compatible"].as_bool().unwrap_or(true);
        assert_eq!(topology.incompatibility().is_none(), compatible, "{at}");
        let servers = outcome["servers"].as_object().unwrap();
        let addresses: BTreeSet<_> = topology.servers().map(|server| server.address.as_str()).collect();
        assert_eq!(addresses, servers.keys().map(String::as_str).collect(), "{at}");
        for server in topology.servers() {
            self.assert_server(server, &servers[server.address.as_str()], at);
        }
    }

    fn assert_server(&self, server: &ServerDescription, expected: &Value, at: &str) {
        let at = format!("{at}, {}", server.address);
        for (field, expected) in expected.as_object().unwrap() {
            match field.as_str() {
                // `PossiblePrimary` is a kind of unknown server, used only by clients that check one server at a time.
                "type" if expected == "PossiblePrimary" => assert!(server.server_type.is_unknown(), "{at}"),
                "type" => assert_eq!(server.server_type.name(), *expected, "{at}"),
                "setName" => assert_eq!(server.set_name.as_deref(), expected.as_str(), "{at}"),
                "setVersion" => assert_eq!(server.set_version, expected.as_i64(), "{at}"),
                "electionId" => {
                    let election = server.election_id.map(|id| id.to_hex());
                    assert_eq!(election.as_deref(), expected["$oid"].as_str(), "{at}");
                }
                "logicalSessionTimeoutMinutes" => {
                    assert_eq!(server.logical_session_timeout_minutes, expected.as_i64(), "{at}");
                }
                "minWireVersion" => {
                    assert_eq!(i64::from(server.min_wire_version), expected.as_i64().unwrap_or(0), "{at}");
                }
                "maxWireVersion" => {
                    assert_eq!(i64::from(server.max_wire_version), expected.as_i64().unwrap_or(0), "{at}");
                }
                "topologyVersion" => {
                    let expected = expected.is_object().then(|| {
                        let reply = rawdoc! { "topologyVersion": document(expected) };
                        TopologyVersion::of_reply(&reply).expect("a version")
                    });
                    assert_eq!(server.topology_version, expected, "{at}");
                }
                "pool" => {
                    let generation = self.generations[server.address.as_str()];
                    assert_eq!(Some(generation), expected["generation"].as_u64(), "{at}");
                }
                "error" => {
                    let error = server.error.as_ref().map(ToString::to_string).unwrap_or_default();
                    assert!(error.contains(expected.as_str().unwrap()), "{at}: {error}");
                }
                other => panic!("{at}: {other}"),
            }
        }
    }
}

fn failure(text: &str) -> Cause {
    Cause::from(Box::<dyn std::error::Error + Send + Sync>::from(text))
}

fn run(name: &str, case: &Value) {
    let mut client = Client::new(case["uri"].as_str().unwrap());
    for (number, phase) in case["phases"].as_array().unwrap().iter().enumerate() {
        for response in phase["responses"].as_array().into_iter().flatten() {
            client.check(response[0].as_str().unwrap(), &response[1]);
        }
        for error in phase["applicationErrors"].as_array().into_iter().flatten() {
            client.meet(error);
        }
        client.assert(&phase["outcome"], &format!("{name}, phase {}", number + 1));
    }
}

/// The folders whose files are in the suite's own format. The `unified` test runs the other folders.
const FOLDERS: [&str; 5] = ["errors", "rs", "sharded", "single", "load-balanced"];

#[test]
fn all_cases_of_the_suite_pass() {
    let mut rows = Vec::new();
    for folder in FOLDERS {
        let files = files("discovery_and_monitoring", folder);
        files.iter().for_each(|(name, case)| run(name, case));
        rows.push((format!("discovery_and_monitoring/{folder}"), files.len()));
    }
    let cases: usize = rows.iter().map(|(_, files)| files).sum();
    assert_eq!(cases, 178, "the suite has another size");
    show(rows.iter().map(|(suite, files)| Row::passed(suite, *files)), "");
}

#[test]
fn every_file_of_the_suite_is_in_a_folder_of_the_list_or_in_the_unified_format() {
    let all = files("discovery_and_monitoring", "");
    let is_run = |name: &str, file: &Value| {
        let folder = name.split_once(['/', '\\']).map_or("", |(folder, _)| folder);
        FOLDERS.contains(&folder) || file.get("schemaVersion").is_some()
    };
    let left_out: Vec<_> = all.iter().filter(|(name, file)| !is_run(name, file)).map(|(name, _)| name).collect();
    assert!(left_out.is_empty(), "no test runs these files: {left_out:#?}");
}

#[test]
fn unknown_topology_with_one_standalone_seed_becomes_single() {
    let mut client = Client::new("mongodb://a");
    client.check("a:27017", &serde_json::json!({ "ok": 1, "ismaster": true, "maxWireVersion": 21 }));
    assert_eq!(client.topology.topology_type(), TopologyType::Single);
}

#[test]
fn standalone_is_left_out_if_a_rescan_has_found_another_server_besides_the_one_seed() {
    let mut client = Client::new("mongodb://a");
    let servers = ["a", "b"].map(|address| ServerAddress::parse(address).unwrap());
    client.apply(client.topology.after_rescan(&servers));
    client.check("a:27017", &serde_json::json!({ "ok": 1, "ismaster": true, "maxWireVersion": 21 }));
    let left: Vec<_> = client.topology.servers().map(|server| server.address.as_str()).collect();
    assert_eq!((client.topology.topology_type(), left), (TopologyType::Unknown, vec!["b:27017"]));
}

#[test]
fn stale_reply_changes_nothing() {
    let client = Client::new("mongodb://a/?replicaSet=rs");
    let reply = |counter: i64| {
        rawdoc! {
            "ok": 1, "isWritablePrimary": true, "setName": "rs", "hosts": ["a:27017"], "maxWireVersion": 21,
            "topologyVersion": { "processId": bson::oid::ObjectId::from_bytes([1; 12]), "counter": counter },
        }
    };
    let describe = |counter| {
        let address = ServerAddress::parse("a").unwrap();
        ServerDescription::of_reply(address, &reply(counter), Instant::now())
    };
    let known = client.topology.after_check(describe(5)).expect("the first reply").topology;
    assert!(known.after_check(describe(4)).is_none(), "an older reply");
    assert!(known.after_check(describe(5)).is_some(), "the same reply again");
}

#[test]
fn check_marks_the_pool_ready_only_if_the_server_is_usable() {
    let ready = |uri: &str, reply: Value| {
        let client = Client::new(uri);
        let address = ServerAddress::parse("a").unwrap();
        let server = ServerDescription::of_reply(address.clone(), &document(&reply), Instant::now());
        let preparations = client.topology.after_check(server).expect("a member").preparations;
        preparations.contains(&Preparation::MarkReady(address))
    };
    let of = |fields: Value| {
        let mut reply = serde_json::json!({ "ok": 1, "maxWireVersion": 21, "hosts": ["a:27017"], "setName": "rs" });
        reply.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        reply
    };
    let set = "mongodb://a/?replicaSet=rs";
    assert!(ready(set, of(serde_json::json!({ "isWritablePrimary": true }))), "a primary");
    assert!(ready(set, of(serde_json::json!({ "secondary": true }))), "a secondary");
    assert!(!ready(set, of(serde_json::json!({ "arbiterOnly": true }))), "an arbiter");
    assert!(ready("mongodb://a/?directConnection=true", of(serde_json::json!({ "arbiterOnly": true }))), "direct");
    assert!(!ready(set, of(serde_json::json!({ "isWritablePrimary": true, "setName": "other" }))), "another set");
    assert!(!ready(set, serde_json::json!({ "ok": 0, "errmsg": "no" })), "a failed check");
}

#[test]
fn overload_before_the_end_of_hello_changes_nothing() {
    let client = Client::new("mongodb://a/?replicaSet=rs");
    let error = |progress, kind, is_overload| ApplicationError {
        address: ServerAddress::parse("a").unwrap(),
        progress,
        kind,
        is_of_older_generation: false,
        is_overload,
        topology_version: None,
        cause: failure("an error"),
    };
    let reacts = |progress, kind, overload| client.topology.after_error(&error(progress, kind, overload)).is_some();
    assert!(!reacts(Progress::Connecting, ErrorKind::Network, true));
    assert!(!reacts(Progress::Connecting, ErrorKind::Timeout, false));
    assert!(!reacts(Progress::Authenticating, ErrorKind::Network, true));
    assert!(reacts(Progress::Authenticating, ErrorKind::Network, false));
    assert!(reacts(Progress::Authenticating, ErrorKind::Timeout, false));
    assert!(reacts(Progress::Authenticating, ErrorKind::Command, false));
    assert!(reacts(Progress::Established, ErrorKind::Network, false));
    assert!(!reacts(Progress::Established, ErrorKind::Timeout, false));
    assert!(!reacts(Progress::Established, ErrorKind::Command, false));
}

#[test]
fn network_error_clears_the_pool_and_cancels_the_check_in_one_step() {
    let mut client = Client::new("mongodb://a/?replicaSet=rs");
    let reply = serde_json::json!({
        "ok": 1, "isWritablePrimary": true, "setName": "rs", "hosts": ["a:27017"], "maxWireVersion": 21,
    });
    client.check("a:27017", &reply);
    let address = ServerAddress::parse("a").unwrap();
    let error = ApplicationError {
        address: address.clone(),
        progress: Progress::Established,
        kind: ErrorKind::Network,
        is_of_older_generation: false,
        is_overload: false,
        topology_version: None,
        cause: failure("connection reset"),
    };
    let transition = client.topology.after_error(&error).expect("news");
    assert_eq!(transition.topology.topology_type(), TopologyType::ReplicaSetNoPrimary);
    assert_eq!(transition.preparations, []);
    let consequences = [Consequence::Clear(address.clone()), Consequence::CancelCheck(address.clone())];
    assert_eq!(transition.consequences, consequences);
    let shown =
        transition.topology.server(&address).and_then(|server| server.error.clone()).map(|error| error.to_string());
    assert_eq!(shown.as_deref(), Some("connection reset"));
    let older = ApplicationError { is_of_older_generation: true, ..error };
    assert!(client.topology.after_error(&older).is_none(), "the pool has been cleared since");
}
