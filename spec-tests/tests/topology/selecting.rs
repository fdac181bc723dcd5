//! The suites `server_selection` and `max_staleness`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bson::DateTime;
use serde_json::Value;
use wharf::unstable::selection::{Access, choose, in_window, suitable};
use wharf::unstable::topology::{RoundTrips, ServerDescription, ServerType, TopologyDescription, TopologyType};
use wharf::{ReadPreference, ReadPreferenceMode, ServerAddress};
use wharf_testbed::table::{Row, show};

use super::suite::files;

const TOPOLOGY_TYPES: [TopologyType; 6] = [
    TopologyType::Single,
    TopologyType::ReplicaSetNoPrimary,
    TopologyType::ReplicaSetWithPrimary,
    TopologyType::Sharded,
    TopologyType::LoadBalanced,
    TopologyType::Unknown,
];

const SERVER_TYPES: [ServerType; 9] = [
    ServerType::Standalone,
    ServerType::Mongos,
    ServerType::RsPrimary,
    ServerType::RsSecondary,
    ServerType::RsArbiter,
    ServerType::RsOther,
    ServerType::RsGhost,
    ServerType::LoadBalancer,
    ServerType::Unknown,
];

const MODES: [ReadPreferenceMode; 5] = [
    ReadPreferenceMode::Primary,
    ReadPreferenceMode::PrimaryPreferred,
    ReadPreferenceMode::Secondary,
    ReadPreferenceMode::SecondaryPreferred,
    ReadPreferenceMode::Nearest,
];

fn known(fields: &Value, known: &[&str]) {
    assert!(fields.as_object().unwrap().keys().all(|field| known.contains(&field.as_str())), "{fields}");
}

fn long(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value["$numberLong"].as_str()?.parse().ok())
}

fn tags(value: &Value) -> BTreeMap<String, String> {
    let of_strings = value.as_object().into_iter().flatten();
    of_strings.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect()
}

fn server(fields: &Value, start: Instant) -> ServerDescription {
    known(fields, &["address", "avg_rtt_ms", "type", "tags", "lastUpdateTime", "lastWrite", "maxWireVersion"]);
    let mut server = ServerDescription::unknown(ServerAddress::parse(fields["address"].as_str().unwrap()).unwrap());
    let server_type = fields["type"].as_str().unwrap();
    server.server_type = match server_type {
        // `PossiblePrimary` is a kind of unknown server, used only by clients that check one server at a time.
        "PossiblePrimary" => ServerType::Unknown,
        _ => *SERVER_TYPES.iter().find(|known| known.name() == server_type).expect("a type"),
    };
    server.average_round_trip_time = fields["avg_rtt_ms"].as_u64().map(Duration::from_millis);
    server.tags = tags(&fields["tags"]);
    server.last_update_time = fields["lastUpdateTime"].as_u64().map(|at| start + Duration::from_millis(at));
    server.last_write_date = long(&fields["lastWrite"]["lastWriteDate"]).map(DateTime::from_millis);
    server.max_wire_version = fields["maxWireVersion"].as_i64().unwrap_or(21) as i32;
    server
}

fn topology(fields: &Value) -> TopologyDescription {
    known(fields, &["type", "servers"]);
    let topology_type = fields["type"].as_str().unwrap();
    let topology_type = *TOPOLOGY_TYPES.iter().find(|known| known.name() == topology_type).expect("a type");
    let start = Instant::now();
    let servers = fields["servers"].as_array().unwrap().iter().map(|fields| server(fields, start));
    TopologyDescription::of_servers(topology_type, servers)
}

fn preference(fields: &Value) -> ReadPreference {
    known(fields, &["mode", "tag_sets", "maxStalenessSeconds"]);
    let mode = fields["mode"].as_str().unwrap_or("Primary");
    let is_mode = |known: &&ReadPreferenceMode| known.name().eq_ignore_ascii_case(mode);
    let mut preference = ReadPreference::new(*MODES.iter().find(is_mode).expect("a mode"));
    preference.tag_sets = fields["tag_sets"].as_array().into_iter().flatten().map(tags).collect();
    let staleness = fields["maxStalenessSeconds"].as_i64().filter(|seconds| *seconds >= 0);
    preference.max_staleness = staleness.map(|seconds| Duration::from_secs(seconds as u64));
    preference
}

fn addresses<'s>(servers: impl IntoIterator<Item = &'s ServerDescription>) -> BTreeSet<String> {
    servers.into_iter().map(|server| server.address.to_string()).collect()
}

fn expected(servers: &Value) -> BTreeSet<String> {
    servers.as_array().unwrap().iter().map(|server| server["address"].as_str().unwrap().to_owned()).collect()
}

fn run(name: &str, case: &Value) {
    known(
        case,
        &[
            "topology_description",
            "operation",
            "read_preference",
            "suitable_servers",
            "in_latency_window",
            "deprioritized_servers",
            "heartbeatFrequencyMS",
            "error",
        ],
    );
    let topology = topology(&case["topology_description"]);
    let preference = preference(&case["read_preference"]);
    let operation = match case["operation"].as_str() {
        Some("write") => Access::Write,
        Some("read") | None => Access::Read(&preference),
        other => panic!("{name}: {other:?}"),
    };
    let deprioritized: Vec<_> = case["deprioritized_servers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|server| ServerAddress::parse(server["address"].as_str().unwrap()).unwrap())
        .collect();
    let heartbeat = Duration::from_millis(case["heartbeatFrequencyMS"].as_u64().unwrap_or(10_000));
    let found = suitable(&topology, operation, &deprioritized, heartbeat);
    if case["error"] == true {
        let error = found.expect_err(name).to_string();
        assert!(error.contains("maxStalenessSeconds") || error.contains("readPreferenceTags"), "{name}: {error}");
        return;
    }
    let found = found.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(addresses(found.iter().copied()), expected(&case["suitable_servers"]), "{name}");
    let near = in_window(&found, Duration::from_millis(15));
    assert_eq!(addresses(near.iter().copied()), expected(&case["in_latency_window"]), "{name}");
    // Whatever the random number is, the chosen server is within the window.
    for random in (0..64).map(|turn: u64| turn.wrapping_mul(0x9E37_79B9_7F4A_7C15)) {
        let chosen = choose(&near, random, |_| 0).map(|server| server.address.to_string());
        assert_eq!(chosen.is_none(), near.is_empty(), "{name}");
        assert!(chosen.is_none_or(|chosen| addresses(near.iter().copied()).contains(&chosen)), "{name}");
    }
}

#[test]
fn all_cases_of_the_suite_pass() {
    let suites = [("server_selection", "server_selection", 88), ("max_staleness", "", 32)];
    for (suite, folder, cases) in suites {
        let files = files(suite, folder);
        assert_eq!(files.len(), cases, "{suite}");
        files.iter().for_each(|(name, case)| run(name, case));
        show([Row::passed(suite, files.len())], "");
    }
}

#[test]
fn average_round_trip_time_follows_the_suite() {
    let files = files("server_selection", "rtt");
    assert_eq!(files.len(), 7);
    for (name, case) in &files {
        let millis = |value: &Value| Duration::from_secs_f64(value.as_f64().unwrap() / 1_000.0);
        let mut trips = RoundTrips::default();
        if case["avg_rtt_ms"].is_number() {
            trips.add(millis(&case["avg_rtt_ms"]));
        }
        trips.add(millis(&case["new_rtt_ms"]));
        let (average, expected) = (trips.average().unwrap(), millis(&case["new_avg_rtt"]));
        assert!(average.abs_diff(expected) < Duration::from_nanos(10), "{name}: {average:?}, not {expected:?}");
    }
    show([Row::passed("server_selection/rtt", files.len())], "");
}

#[test]
fn operations_are_distributed_as_in_the_suite() {
    let files = files("server_selection", "in_window");
    assert_eq!(files.len(), 8);
    for (name, case) in &files {
        let topology = topology(&case["topology_description"]);
        let counts: BTreeMap<String, u64> = case["mocked_topology_state"]
            .as_array()
            .unwrap()
            .iter()
            .map(|state| (state["address"].as_str().unwrap().to_owned(), state["operation_count"].as_u64().unwrap()))
            .collect();
        let nearest = ReadPreference::new(ReadPreferenceMode::Nearest);
        let found = suitable(&topology, Access::Read(&nearest), &[], Duration::from_secs(10)).unwrap();
        let near = in_window(&found, Duration::from_millis(15));
        // Run ten times as many iterations as the case asks for, to reduce the influence of chance.
        let turns = 10 * case["iterations"].as_u64().unwrap();
        let mut chosen: BTreeMap<String, u64> = BTreeMap::new();
        let mut random = 0x2545_F491_4F6C_DD1D_u64;
        for _ in 0..turns {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let server = choose(&near, random, |server| counts[server.address.as_str()]).expect("a server");
            *chosen.entry(server.address.to_string()).or_default() += 1;
        }
        let outcome = &case["outcome"];
        let tolerance = outcome["tolerance"].as_f64().unwrap();
        for (address, frequency) in outcome["expected_frequencies"].as_object().unwrap() {
            let share = chosen.get(address).copied().unwrap_or(0) as f64 / turns as f64;
            let frequency = frequency.as_f64().unwrap();
            let bound = if frequency == 0.0 || frequency == 1.0 { 1e-9 } else { tolerance };
            assert!((share - frequency).abs() <= bound, "{name}: {address} has {share}, not {frequency}");
        }
    }
    show([Row::passed("server_selection/in_window", files.len())], "");
}

#[test]
fn secondary_with_unknown_lag_is_not_suitable() {
    let start = Instant::now();
    let member = |address: &str, server_type, dated: bool| {
        let mut server = ServerDescription::unknown(ServerAddress::parse(address).unwrap());
        server.server_type = server_type;
        server.average_round_trip_time = Some(Duration::from_millis(5));
        server.last_update_time = Some(start);
        server.last_write_date = dated.then(|| DateTime::from_millis(1_000));
        server
    };
    let servers = [
        member("a", ServerType::RsPrimary, true),
        member("b", ServerType::RsSecondary, true),
        member("c", ServerType::RsSecondary, false),
    ];
    let topology = TopologyDescription::of_servers(TopologyType::ReplicaSetWithPrimary, servers);
    let preference = ReadPreference::new(ReadPreferenceMode::Secondary).max_staleness(Duration::from_secs(90));
    let found = suitable(&topology, Access::Read(&preference), &[], Duration::from_secs(10)).unwrap();
    assert_eq!(addresses(found), ["b:27017".to_owned()].into());
}
