//! The `sdam_monitoring` suite: the events that each phase of hello replies causes.

use std::time::Instant;

use bson::oid::ObjectId;
use serde_json::Value;
use wharf::unstable::topology::{
    ServerDescription, ServerView, TopologyDescription, TopologyEvent, TopologyView, events_of_change,
    events_of_opening,
};
use wharf::{Options, ServerAddress};
use wharf_testbed::table::{Row, show};

use super::suite::{document, files};

/// A client without sockets: its topology, and the events so far.
struct Client {
    id: ObjectId,
    topology: TopologyDescription,
    events: Vec<TopologyEvent>,
}

impl Client {
    fn open(uri: &str) -> Self {
        let options = Options::parse(uri).unwrap_or_else(|error| panic!("{uri}: {error}"));
        let topology = TopologyDescription::of_options(&options).unwrap();
        let id = ObjectId::new();
        Self { id, events: events_of_opening(id, &topology), topology }
    }

    fn check(&mut self, address: &str, reply: &Value) {
        let address = ServerAddress::parse(address).unwrap();
        let server = ServerDescription::of_reply(address, &document(reply), Instant::now());
        let Some(transition) = self.topology.after_check(server) else { return };
        self.events.extend(events_of_change(self.id, &self.topology, &transition.topology));
        self.topology = transition.topology;
    }
}

fn assert_event(event: &TopologyEvent, expected: &Value, at: &str) {
    let (name, fields) = expected.as_object().unwrap().iter().next().unwrap();
    let found = match event {
        TopologyEvent::TopologyOpening { .. } => "topology_opening_event",
        TopologyEvent::ServerOpening { .. } => "server_opening_event",
        TopologyEvent::ServerClosed { .. } => "server_closed_event",
        TopologyEvent::ServerDescriptionChanged { previous, new, .. } => {
            assert_server(previous, &fields["previousDescription"], at);
            assert_server(new, &fields["newDescription"], at);
            "server_description_changed_event"
        }
        TopologyEvent::TopologyDescriptionChanged { previous, new, .. } => {
            assert_topology(previous, &fields["previousDescription"], at);
            assert_topology(new, &fields["newDescription"], at);
            "topology_description_changed_event"
        }
        other => panic!("{at}: {other:?}"),
    };
    assert_eq!(found, name, "{at}: {event:?}");
    assert_eq!(event.address(), fields["address"].as_str(), "{at}");
}

fn assert_topology(view: &TopologyView, expected: &Value, at: &str) {
    assert_eq!(view.topology_type().name(), expected["topologyType"], "{at}");
    assert_eq!(view.set_name(), expected["setName"].as_str(), "{at}");
    let (views, servers): (Vec<_>, _) = (view.servers().collect(), expected["servers"].as_array().unwrap());
    assert_eq!(views.len(), servers.len(), "{at}: {view}");
    for expected in servers {
        let view = views.iter().find(|view| expected["address"] == view.address()).expect(at);
        assert_server(view, expected, at);
    }
}

fn assert_server(view: &ServerView, expected: &Value, at: &str) {
    assert_eq!(view.address(), expected["address"], "{at}");
    let expected_type = match expected["type"].as_str().unwrap() {
        // `PossiblePrimary` is a kind of unknown server, used only by clients that check one server at a time.
        "PossiblePrimary" => "Unknown",
        other => other,
    };
    assert_eq!(view.server_type().name(), expected_type, "{at}: {view}");
    let members = ["hosts", "passives", "arbiters"].map(|field| expected[field].as_array().into_iter().flatten());
    let members: Vec<_> = members.into_iter().flatten().map(|member| member.as_str().unwrap()).collect();
    assert_eq!(view.members().collect::<Vec<_>>(), members, "{at}");
    assert_eq!(view.set_name(), expected["setName"].as_str(), "{at}");
    assert_eq!(view.primary(), expected["primary"].as_str(), "{at}");
}

#[test]
fn all_cases_of_the_suite_pass() {
    let cases = files("sdam_monitoring", "");
    for (name, case) in &cases {
        let mut client = Client::open(case["uri"].as_str().unwrap());
        for (number, phase) in case["phases"].as_array().unwrap().iter().enumerate() {
            for response in phase["responses"].as_array().into_iter().flatten() {
                client.check(response[0].as_str().unwrap(), &response[1]);
            }
            let at = format!("{name}, phase {}", number + 1);
            let (events, expected) = (std::mem::take(&mut client.events), &phase["outcome"]["events"]);
            let expected = expected.as_array().expect(&at);
            assert_eq!(events.len(), expected.len(), "{at}: {events:#?}");
            for (event, expected) in events.iter().zip(expected) {
                assert_eq!(event.topology_id(), client.id);
                assert_event(event, expected, &at);
            }
        }
    }
    assert_eq!(cases.len(), 8, "the suite has another size");
    show([Row::passed("sdam_monitoring", cases.len())], "");
}
