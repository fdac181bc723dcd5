//! Replacing the options of a client that is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bson::{RawDocumentBuf, doc, rawdoc};
use wharf::{Client, Credential, Options, PoolOptions, TlsOptions};
use wharf_testbed::certificates::{Certificates, Pem};
use wharf_testbed::mongod::{Mongod, MongodOptions};

fn options(server: &Mongod) -> Options {
    Options::new([&*server.address().to_string()]).unwrap().pool(PoolOptions::default().max_pool_size(4))
}

async fn run(client: &Client, command: bson::Document) -> RawDocumentBuf {
    client.run_command("admin", &RawDocumentBuf::try_from(command).unwrap()).await.unwrap()
}

/// Runs a command, and returns the authenticated user of its connection.
async fn user(client: &Client) -> String {
    let status = run(client, doc! { "connectionStatus": 1 }).await;
    let users = status.get_document("authInfo").unwrap().get_array("authenticatedUsers").unwrap();
    let first = users.into_iter().next().expect("the connection is authenticated").unwrap();
    first.as_document().unwrap().get_str("user").unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credential_is_rotated_under_load_without_a_failed_operation() {
    const USERS: usize = 6;
    let server = Mongod::start(MongodOptions { auth: true, ..MongodOptions::default() }).unwrap();
    let create = |name: &str| doc! { "createUser": name, "pwd": format!("of {name}"), "roles": ["root"] };
    let credential = |name: &str| Credential::new(name, format!("of {name}"));
    // Thanks to the localhost exception, the first user can be created without authentication.
    run(&Client::new(options(&server)).unwrap(), create("root")).await;
    let root = Client::new(options(&server).credential(credential("root"))).unwrap();
    run(&root, create("user 0")).await;

    let client = Client::new(options(&server).credential(credential("user 0"))).unwrap();
    let (latest, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (client, latest, is_over) = (client.clone(), latest.clone(), is_over.clone());
            tokio::spawn(async move {
                let mut served = [0; USERS];
                while !is_over.load(Ordering::SeqCst) {
                    let at_least = latest.load(Ordering::SeqCst);
                    let number: usize = user(&client).await.strip_prefix("user ").unwrap().parse().unwrap();
                    assert!(
                        number >= at_least,
                        "an operation after the change to user {at_least} ran as user {number}"
                    );
                    served[number] += 1;
                }
                served
            })
        })
        .collect();
    for number in 1..USERS {
        while user(&client).await != format!("user {}", number - 1) {}
        let name = format!("user {number}");
        run(&root, create(&name)).await;
        client.replace_options(options(&server).credential(credential(&name))).unwrap();
        latest.store(number, Ordering::SeqCst);
        assert_eq!(user(&client).await, name);
    }
    is_over.store(true, Ordering::SeqCst);
    let mut served = [0; USERS];
    for task in load {
        let of_task = task.await.expect("no operation fails");
        served.iter_mut().zip(of_task).for_each(|(sum, count)| *sum += count);
    }
    assert!(served.iter().filter(|count| **count > 0).count() >= 2, "{served:?}");

    // A server refuses the commands on a dropped user's connection.
    for number in 0..USERS - 1 {
        run(&root, doc! { "dropUser": format!("user {number}") }).await;
    }
    for _ in 0..100 {
        run(&client, doc! { "listDatabases": 1 }).await;
    }
}

/// Neither the pool nor the monitor can connect without TLS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_and_monitor_use_the_new_certificates() {
    let certificates = Certificates::create().unwrap();
    let tls = certificates.of_mongod(false);
    let server = Mongod::start(MongodOptions { tls: Some(tls), ..MongodOptions::default() }).unwrap();
    let of_port = |port: u16| Options::new([&*format!("localhost:{port}")]).unwrap();
    let options = of_port(server.port()).server_selection_timeout(Duration::from_secs(20));
    let ping = rawdoc! { "ping": 1 };
    let client = Client::new(options.clone()).unwrap();
    let waiting = tokio::spawn({
        let (client, ping) = (client.clone(), ping.clone());
        async move { client.run_command("admin", &ping).await }
    });
    while client.status().servers.first().is_none_or(|server| server.error.is_none()) {
        tokio::task::yield_now().await;
    }
    let missing = options.clone().tls(TlsOptions::default().ca_file("missing.pem"));
    assert_eq!(client.replace_options(missing).unwrap_err().option, "tlsCAFile");
    let trusting = TlsOptions::default().ca_file(certificates.file(Pem::Authority));
    assert_eq!(client.replace_options(of_port(1).tls(trusting.clone())).unwrap_err().option, "hosts");
    client.replace_options(options.tls(trusting)).unwrap();
    waiting.await.unwrap().unwrap();
}
