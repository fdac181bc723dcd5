//! The servers that the cases run on.

use std::sync::Arc;
use std::time::Duration;

use bson::doc;
use wharf::Options;
use wharf_testbed::balancer::Balancer;
use wharf_testbed::mongod::{Mongod, MongodOptions};
use wharf_testbed::replica_set::{ReplicaSet, ReplicaSetOptions};

use super::environment::{self, Environment};
use super::format::Topology;

/// The error code of a member that is not the primary, or is not the primary yet.
const NOT_WRITABLE_PRIMARY: i32 = 10107;

pub struct Servers {
    // Fields are dropped in this order.
    /// The last two require authentication.
    pub environments: Vec<Arc<Environment>>,
    /// Environments of the same kind as the first environment.
    pub other_sets: Vec<Arc<Environment>>,
    _balancers: [Balancer; 2],
    _sets: [ReplicaSet; 5],
    _balanced: ReplicaSet,
    _standalone: Mongod,
    _with_users: [Mongod; 2],
}

/// Starts a server that requires authentication, with the `root` user: a standalone, or the only member of a replica
/// set.
fn start_with_users(is_member: bool) -> Mongod {
    // The iteration count is the minimum, because each connection of a new client computes the key.
    let extra_args = ["--setParameter", "scramSHA256IterationCount=5000"].map(Into::into).to_vec();
    let repl_set = is_member.then(|| "users".to_owned());
    let options = MongodOptions { auth: true, repl_set, extra_args, ..MongodOptions::default() };
    let server = Mongod::start(options).unwrap();
    let address = server.address().to_string();
    let members = vec![doc! { "_id": 0, "host": &address }];
    let user = doc! { "createUser": "root", "pwd": "root", "roles": ["root"], "mechanisms": ["SCRAM-SHA-256"] };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        // The localhost exception allows initiating the set and creating the user without authentication.
        let mut first = Options::new([&*address]).unwrap().endpoint().unwrap().connect().await.unwrap();
        let initiate = doc! { "replSetInitiate": { "_id": "users", "members": members } };
        if is_member {
            first.run_command("admin", &environment::raw(&initiate)).await.unwrap();
        }
        // The server refuses writes until it has elected itself.
        while let Err(error) = first.run_command("admin", &environment::raw(&user)).await {
            assert!(error.server_error().is_some_and(|error| error.code == NOT_WRITABLE_PRIMARY), "{error}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    server
}

/// Starts the servers in parallel.
pub fn start(runtime: &tokio::runtime::Runtime) -> Servers {
    let (sets, balanced, with_users, standalone) = std::thread::scope(|scope| {
        let sets = [(); 5].map(|()| scope.spawn(|| ReplicaSet::start(ReplicaSetOptions::default()).unwrap()));
        let one = ReplicaSetOptions { members: 1, ..ReplicaSetOptions::default() };
        let balanced = scope.spawn(|| ReplicaSet::start(one).unwrap());
        let with_users = [false, true].map(|is_member| scope.spawn(move || start_with_users(is_member)));
        // One case in the versioned-api suite needs this parameter, which affects no other case.
        let extra_args = ["--setParameter", "acceptApiVersion2=true"].map(Into::into).to_vec();
        let standalone = Mongod::start(MongodOptions { extra_args, ..MongodOptions::default() }).unwrap();
        (
            sets.map(|set| set.join().unwrap()),
            balanced.join().unwrap(),
            with_users.map(|server| server.join().unwrap()),
            standalone,
        )
    });
    let (environments, other_sets, balancers) = runtime.block_on(async {
        let of_set = async |set: &ReplicaSet| {
            let members: Vec<_> = set.addresses().iter().map(ToString::to_string).collect();
            Arc::new(Environment::new(set.uri(), Topology::ReplicaSet, &members).await)
        };
        let first = of_set(&sets[0]).await;
        let mut others_of_its_kind = Vec::new();
        for set in &sets[1..] {
            others_of_its_kind.push(of_set(set).await);
        }
        let address = standalone.address().to_string();
        let alone = Environment::new(format!("mongodb://{address}/?"), Topology::Single, &[address]).await;
        let server = balanced.addresses()[0];
        // The first load balancer has one service, and the second has two.
        let balancers = [Balancer::start(server, 1).await.unwrap(), Balancer::start(server, 2).await.unwrap()];
        let [uri, of_two] =
            [0, 1].map(|balancer: usize| format!("mongodb://{}/?loadBalanced=true", balancers[balancer].address()));
        let mut behind = Environment::new(uri, Topology::LoadBalanced, &[server.to_string()]).await;
        behind.uri_of_two = Some(of_two);
        let [alone_with_users, set_with_users] = with_users.each_ref().map(|server| server.address().to_string());
        let uri = format!("mongodb://root:root@{alone_with_users}/?");
        let alone_with_users = Environment::new(uri, Topology::Single, &[alone_with_users]).await;
        let uri = format!("mongodb://root:root@{set_with_users}/?replicaSet=users");
        let set_with_users = Environment::new(uri, Topology::ReplicaSet, &[set_with_users]).await;
        let others = [alone, behind, alone_with_users, set_with_users].map(Arc::new);
        let environments = [first].into_iter().chain(others).collect();
        (environments, others_of_its_kind, balancers)
    });
    Servers {
        environments,
        other_sets,
        _balancers: balancers,
        _sets: sets,
        _balanced: balanced,
        _standalone: standalone,
        _with_users: with_users,
    }
}
