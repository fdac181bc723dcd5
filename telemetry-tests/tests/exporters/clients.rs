//! The exporters with a client whose servers join and leave.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bson::{Document, doc, rawdoc};
use opentelemetry::metrics::MeterProvider;
use tokio::sync::watch;
use wharf::client::TopologyEvent;
use wharf::telemetry::{FacadeMetrics, Metered, OpenTelemetryMetrics};
use wharf::{Client, Options, ReadPreference, ReadPreferenceMode};
use wharf_testbed::scripted::{Answer, ScriptedServer, name};

use super::{Collecting, Kept};

/// A replica set of a primary and a secondary. The secondary leaves the set and joins it again.
struct Set {
    primary: ScriptedServer,
    secondary: ScriptedServer,
    /// The addresses of the members, as all members report them.
    members: Arc<Mutex<Vec<String>>>,
    client: Client,
    /// The number of topology events so far.
    events: watch::Receiver<usize>,
}

impl Set {
    async fn start() -> Self {
        let members = Arc::<Mutex<Vec<String>>>::default();
        let (primary, secondary) = (member(&members, true).await, member(&members, false).await);
        let uri = format!("mongodb://{}/?replicaSet=rs&serverMonitoringMode=poll", primary.address());
        let (sender, events) = watch::channel(0);
        let options = Options::parse(&format!("{uri}&heartbeatFrequencyMS=500")).unwrap();
        let count = move |_: &TopologyEvent| sender.send_modify(|events| *events += 1);
        let client = Client::builder(options).topology_subscriber(count).build().unwrap();
        let mut this = Self { primary, secondary, members, client, events };
        this.join().await;
        this
    }

    async fn join(&mut self) {
        self.change(&[self.primary.address(), self.secondary.address()]).await;
        // Opens a connection, then uses it once more.
        let preference = ReadPreference::new(ReadPreferenceMode::Secondary);
        for _ in 0..2 {
            drop(self.client.check_out(&preference).await.unwrap());
        }
    }

    async fn leave(&mut self) {
        self.change(&[self.primary.address()]).await;
    }

    /// Changes the members, and waits until the client has noticed.
    async fn change(&mut self, members: &[String]) {
        *self.members.lock().unwrap() = members.to_vec();
        self.client.connect().await.unwrap();
        let client = &self.client;
        self.events.wait_for(|_| client.status().servers.len() == members.len()).await.unwrap();
    }

    /// Returns a string with the members' roles in place of their addresses and ports.
    fn told(&self, text: &str) -> String {
        let mut told = text.to_owned();
        for (server, role) in [(&self.primary, "primary"), (&self.secondary, "secondary")] {
            let address = server.address();
            let (_, port) = address.rsplit_once(':').unwrap();
            told = told.replace(&address, role).replace(port, &format!("port of {role}"));
        }
        told
    }
}

async fn member(members: &Arc<Mutex<Vec<String>>>, is_primary: bool) -> ScriptedServer {
    let members = members.clone();
    let server = ScriptedServer::start(move || {
        let members = members.clone();
        Box::new(move |command: &Document| match name(command).as_str() {
            "hello" | "isMaster" | "ismaster" => Answer::Reply(doc! {
                "ok": 1, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21, "setName": "rs",
                "isWritablePrimary": is_primary, "secondary": !is_primary, "hosts": members.lock().unwrap().clone(),
            }),
            _ => Answer::Reply(doc! { "ok": 1 }),
        })
    });
    server.await.unwrap()
}

const HITS: &str = "wharf.pool.check_outs {check_out}";

/// Returns the numbers of existing connections and of check-outs, by pool.
fn collected(set: &Set, collecting: &Collecting) -> BTreeMap<String, f64> {
    let kept = collecting.collect_named().into_iter().filter_map(|((pool, name), value)| {
        let is_asked_for = name.starts_with(HITS) || name.starts_with("db.client.connection.max ");
        is_asked_for.then(|| (set.told(&format!("{pool}: {name}")), value))
    });
    kept.collect()
}

#[tokio::test(start_paused = true)]
async fn series_of_each_server_begin_and_end_with_it() {
    let mut set = Set::start().await;
    let collecting = Collecting::new();
    let meter = collecting.provider.meter("test");
    let registration = OpenTelemetryMetrics::register(&set.client, &meter);
    set.client.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();

    let expected = |counts: &[(&str, [f64; 3])]| -> BTreeMap<String, f64> {
        let all = counts.iter().flat_map(|(role, [hits, opened, max])| {
            let of = format!("server.address=127.0.0.1 server.port=port of {role}");
            let outcome = |outcome: &str| format!("{role}: {HITS} {of} wharf.check_out.outcome={outcome}");
            let max = (format!("{role}: db.client.connection.max {{connection}} {of}"), *max);
            [(outcome("hit"), *hits), (outcome("opened"), *opened), (outcome("waited"), 0.0), max]
        });
        all.collect()
    };
    let primary = ("primary", [0.0, 1.0, 100.0]);
    assert_eq!(collected(&set, &collecting), expected(&[primary, ("secondary", [1.0, 1.0, 100.0])]));
    set.leave().await;
    assert_eq!(collected(&set, &collecting), expected(&[primary]));
    // The new pool has counted one more hit and one more opening.
    set.join().await;
    assert_eq!(collected(&set, &collecting), expected(&[primary, ("secondary", [2.0, 2.0, 100.0])]));
    // The same holds if the server leaves and joins between two collections.
    set.leave().await;
    set.join().await;
    assert_eq!(collected(&set, &collecting), expected(&[primary, ("secondary", [3.0, 3.0, 100.0])]));
    let establishments = "db.client.connection.create_time s count";
    let established: Vec<_> = collecting
        .collect_named()
        .into_iter()
        .filter(|((_, name), _)| name.starts_with(establishments))
        .map(|(_, count)| count)
        .collect();
    assert!(established == [1.0, 3.0] || established == [3.0, 1.0], "{established:?}");
    drop(registration);
    assert_eq!(collected(&set, &collecting), BTreeMap::new());
}

#[tokio::test(start_paused = true)]
async fn exporters_of_a_client_end_with_it() {
    let set = Set::start().await;
    let collecting = Collecting::new();
    let _registration = OpenTelemetryMetrics::register(&set.client, &collecting.provider.meter("test"));
    let facade = FacadeMetrics::new(&set.client);
    let kept = Kept::default();
    assert!(metrics::with_local_recorder(&kept, || facade.publish()));
    assert!(!collected(&set, &collecting).is_empty());
    let Set { client, .. } = set;
    drop(client);
    assert!(!metrics::with_local_recorder(&kept, || facade.publish()));
    assert!(!collecting.collect_named().keys().any(|(_, name)| name.starts_with(HITS)));
}

#[tokio::test(start_paused = true)]
async fn name_of_a_client_precedes_the_addresses_of_its_servers() {
    let set = Set::start().await;
    let collecting = Collecting::new();
    let _registration = OpenTelemetryMetrics::register_as("shop", &set.client, &collecting.provider.meter("test"));
    let pools: Vec<_> = collected(&set, &collecting).into_keys().collect();
    assert!(pools.iter().any(|pool| pool.starts_with("shop/primary: ")), "{pools:?}");
    assert!(pools.iter().all(|pool| pool.starts_with("shop/")), "{pools:?}");
    let values = published(&set, &FacadeMetrics::new(&set.client).named("shop"), &Kept::default());
    assert!(values.keys().all(|name| name.contains(" pool=shop/")), "{values:?}");
}

/// Publishes once. Returns the values, and how many times each was set.
fn published(set: &Set, facade: &FacadeMetrics, kept: &Kept) -> BTreeMap<String, (f64, usize)> {
    assert!(metrics::with_local_recorder(kept, || facade.publish()));
    let values = std::mem::take(&mut *kept.values.lock().unwrap());
    values.into_iter().map(|(name, value)| (set.told(&name), value)).collect()
}

#[tokio::test(start_paused = true)]
async fn facade_sets_the_gauges_of_a_server_that_leaves_to_zero_once() {
    let mut set = Set::start().await;
    let facade = FacadeMetrics::new(&set.client);
    let kept = Kept::default();
    let of = "pool=secondary server_address=127.0.0.1 server_port=port of secondary";
    let idle = format!("wharf_pool_connections {of} state=idle");
    let hits = format!("wharf_pool_check_outs_total {of} outcome=hit");
    let times = format!("wharf_pool_create_seconds {of}");

    let values = published(&set, &facade, &kept);
    assert_eq!((values[&idle].0, values[&hits].0, values[&times].1), (1.0, 1.0, 1), "{values:?}");
    set.leave().await;
    let values = published(&set, &facade, &kept);
    let left: Vec<_> = values.iter().filter(|(name, _)| name.contains("pool=secondary")).collect();
    assert!(values.contains_key(&idle) && left.iter().all(|(_, (value, _))| *value == 0.0), "{left:?}");
    assert!(!values.contains_key(&hits), "{left:?}");
    let values = published(&set, &facade, &kept);
    assert!(values.keys().all(|name| name.contains("pool=primary")), "{values:?}");
    set.join().await;
    let values = published(&set, &facade, &kept);
    assert_eq!((values[&idle].0, values[&hits].0, values[&times].1), (1.0, 2.0, 1), "{values:?}");
}

#[test]
fn blocking_client_is_metered_as_well() {
    fn assert_metered(_: &impl Metered) {}
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = runtime.block_on(ScriptedServer::start(|| {
        Box::new(|_: &Document| Answer::Reply(doc! { "ok": 1, "isWritablePrimary": true, "maxWireVersion": 21 }))
    }));
    let server = server.unwrap();
    let client = wharf::single::Client::from_uri(&format!("mongodb://{}", server.address())).unwrap();
    assert_metered(&client);
    let facade = FacadeMetrics::new(&client);
    client.run_command("admin", &rawdoc! { "ping": 1 }).unwrap();
    let kept = Kept::default();
    assert!(metrics::with_local_recorder(&kept, || facade.publish()));
    let created = format!("wharf_pool_connections_created_total pool={0} server_address=127.0.0.1", server.address());
    let values = kept.values.lock().unwrap();
    let found: Vec<_> = values.iter().filter(|(name, _)| name.starts_with(&created)).collect();
    assert_eq!(found.len(), 1, "{values:?}");
    assert_eq!(client.metrics()[0].connections.created as f64, found[0].1.0);
    drop(client);
    assert!(!facade.publish());
}
