//! Every real component in a pool, on its own and in combination with the others.
//!
//! This is the plan for all tests that run against real components, whichever file they are in. For each component, it
//! lists the behaviour that must work, and the errors when the component fails. Tests in this file are named by their
//! module, and other tests by file and module, without `spec-tests/`.
//!
//! | what | component | test |
//! | --- | --- | --- |
//! | a pool works | SCRAM, TLS | `pools::each_mechanism_authenticates_users_over_tls` |
//! | | SCRAM | `auth/mongod::every_connection_of_a_pool_is_authenticated` |
//! | | client certificates, X509 | `pools::required_client_certificate_also_authenticates` |
//! | | X509, resumed sessions | `pools::connections_with_a_client_certificate_resume_sessions` |
//! | | compressors | `pools::each_compressor_is_used_over_tls_after_authentication` |
//! | | | `commands/real::every_compressor_is_used_in_both_directions` |
//! | | Unix socket | `pools::pool_works_over_a_unix_socket` |
//! | | SRV, SOCKS5, TLS, SCRAM, zstd | `chain::pool_works_through_the_whole_chain` |
//! | | load balancer, TLS | `load_balanced::connections_through_tls_belong_to_the_services_of_their_hello` |
//! | wrong credentials | SCRAM, TLS | `pools::wrong_user_or_wrong_authority_is_not_overload` |
//! | | SCRAM | `auth/mongod::refused_login_names_the_user_but_not_the_password` |
//! | | X509 | `pools::required_client_certificate_also_authenticates` |
//! | | | `auth/mongod::certificate_authenticates_with_and_without_the_user_name` |
//! | | Unix socket | `pools::pool_works_over_a_unix_socket` |
//! | | SOCKS5's login, SCRAM behind it | `chain::each_broken_link_is_reported_as_itself` |
//! | | SOCKS5's login | `transport/proxy::login_is_offered_besides_no_authentication` |
//! | wrong authority | the server's | `pools::invalid_server_certificate_is_not_overload` |
//! | | | `transport/server_certificates::mongod_of_another_authority_is_refused` |
//! | | the client's | `pools::rejected_client_certificate_is_not_overload` |
//! | | the client's, at a mongod | `pools::required_client_certificate_also_authenticates` |
//! | | Unix socket | `pools::pool_works_over_a_unix_socket` |
//! | | behind SOCKS5 | `chain::each_broken_link_is_reported_as_itself` |
//! | expired certificate | the server's | `pools::invalid_server_certificate_is_not_overload` |
//! | | the client's | `pools::rejected_client_certificate_is_not_overload` |
//! | | the client's, at a mongod | `pools::required_client_certificate_also_authenticates` |
//! | wrong host name | TLS | `pools::invalid_server_certificate_is_not_overload` |
//! | | TLS behind SOCKS5 | `transport/proxy::tls_goes_through_the_proxy_to_the_server` |
//! | | SRV (outside the name's domain) | `uri_srv/resolving::errors_name_the_record_and_the_problem` |
//! | silence | SRV and TXT records | `uri_srv/resolving::connect_timeout_limits_the_wait_for_a_silent_name_server` |
//! | | the system's resolver | `silent::name_not_resolved_in_time_says_nothing_about_the_server` |
//! | | SOCKS5, each message | `silent::proxy_that_falls_silent_at_any_message_says_nothing_about_the_server` |
//! | | TCP | `silent::server_that_does_not_accept_in_time_may_be_overloaded` |
//! | | TLS, hello, SCRAM | `interrupted::server_that_falls_silent_at_any_stage_fails_at_the_connect_timeout` |
//! | | TLS | `transport/interrupted::silent_mongod_fails_at_the_connect_timeout` |
//! | | hello | `endpoint/establishing::unanswered_hello_ends_with_the_connect_timeout` |
//! | | SCRAM, each message | `auth/interrupted::silent_server_fails_with_the_connect_timeout` |
//! | | X509, PLAIN | `silent::mechanisms_of_one_message_fail_at_the_connect_timeout` |
//! | | AWS, OIDC | `cloud_auth/limits` |
//! | a close at any byte | TLS, hello, SCRAM, replies | `interrupted::server_that_closes_at_any_byte_is_reported_by_its_stage` |
//! | | TLS | `transport/interrupted::mongod_that_closes_at_any_byte_may_be_overloaded` |
//! | | hello | `endpoint/establishing::hello_cut_at_any_byte_is_a_network_error` |
//! | | SCRAM, each message | `auth/interrupted::connection_closed_at_any_byte_of_any_reply_is_a_network_error` |
//! | | X509, PLAIN | `silent::mechanisms_of_one_message_fail_when_the_reply_is_cut_anywhere` |
//! | | replies of commands | `endpoint/commands::reply_cut_at_any_byte_is_a_network_error` |
//! | | SOCKS5 | `silent::proxy_that_closes_at_any_byte_says_nothing_about_the_server` |
//! | cancelled commands | TLS, each compressor | `drain::cancelled_commands_cost_no_connection_with_or_without_compression` |
//! | | none of them, many more | `drain/storm::storm_of_cancellations_in_a_full_pool_opens_no_more_than_closing_would`, `drain/storm::storm_of_cancellations_with_spare_capacity_opens_no_connection` |
//! | reauthentication | SCRAM, TLS, zstd | `reauthentication::command_is_retried_once_after_reauthentication` |
//! | | | `reauthentication::failed_reauthentication_is_reported_and_closes_the_connection` |
//! | | PLAIN, each way to end it | `reauthentication::reauthentication_reports_how_it_ended` |
//!
//! All tests assert the overload labels. They are present if the connection fails because of the network before hello
//! completes. They are absent if name resolution, the proxy, the certificate check or authentication fails (CMAP,
//! "Backpressure-enabled"). A mongod that rejects a client's certificate closes without an alert, which a client cannot
//! tell from overload.
#![cfg(not(any(loom, shuttle)))]
#![cfg(all(feature = "snappy", feature = "zlib", feature = "zstd", feature = "srv"))]

use std::collections::HashMap;
use std::error::Error as StdError;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bson::{Document, RawDocument, RawDocumentBuf, doc, rawdoc};
use wharf::endpoint::{AuthenticationError, ConnectTimeoutError};
use wharf::telemetry::EventCounts;
use wharf::unstable::endpoint::{AuthenticationCause, ProxyError, TlsError};
use wharf::{
    CheckOutError, CommandError, Compressor, Credential, Endpoint, EstablishError, Labels, Mechanism, OperationError,
    Options, Pool, PoolOptions, Stage, TlsOptions,
};
use wharf_system_tests::root;
use wharf_testbed::certificates::{Certificates, Pem, SERVER_NAME};
use wharf_testbed::folder::Folder;
use wharf_testbed::mongod::{Mongod, MongodOptions};
use wharf_testbed::relay::{Direction, Relay};
use wharf_testbed::socks::{SocksFault, SocksMessage, SocksOptions, SocksProxy};

mod chain;
mod drain;
mod interrupted;
mod load_balanced;
mod pools;
mod reauthentication;
mod silent;

/// The time after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

/// The two labels of an error that an overloaded server may have caused.
const OVERLOADED: Labels = Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE);

/// The user of the certificate [`Pem::Client`].
const CLIENT: &str = "CN=client,O=wharf";

/// A mongod that requires authentication, with TLS and a Unix domain socket.
struct Secured {
    // This field comes before the files, because fields are dropped in the order of their declaration, and the server
    // needs its files until it exits.
    mongod: Mongod,
    certificates: Certificates,
    folder: Folder,
}

impl Secured {
    async fn start(require_client_certificate: bool) -> Self {
        let started = tokio::task::spawn_blocking(move || {
            let (certificates, folder) = (Certificates::create().unwrap(), Folder::create("matrix").unwrap());
            let tls = certificates.of_mongod(require_client_certificate);
            let mongod = Mongod::start(MongodOptions {
                auth: true,
                tls: Some(tls),
                socket_folder: Some(folder.path().to_path_buf()),
                // The client certificates have the same organisation as the server's own. By default the server would
                // mistake these clients for members of its cluster.
                extra_args: vec!["--setParameter".into(), "enforceUserClusterSeparation=false".into()],
                ..MongodOptions::default()
            });
            Self { mongod: mongod.unwrap(), certificates, folder }
        });
        let secured = started.await.unwrap();
        let roles = || vec![doc! { "role": "root", "db": "admin" }];
        let certified = secured.trust().certificate_key_file(secured.certificates.file(Pem::Client));
        let first = pool_of(secured.options().tls(certified.clone()));
        run(&first, "admin", doc! { "createUser": "root", "pwd": "root", "roles": roles() }).await.unwrap();
        let root = pool_of(secured.options().tls(certified).credential(Credential::new("root", "root")));
        run(&root, "$external", doc! { "createUser": CLIENT, "roles": roles() }).await.unwrap();
        run(&root, "admin", doc! { "createUser": "app", "pwd": "secret", "roles": roles() }).await.unwrap();
        secured
    }

    /// Returns the server that the tests share. It requires no client certificate, and exits when the last test that
    /// uses it drops it.
    async fn shared() -> Arc<Self> {
        static SHARED: tokio::sync::Mutex<Weak<Secured>> = tokio::sync::Mutex::const_new(Weak::new());
        let mut shared = SHARED.lock().await;
        if let Some(running) = shared.upgrade() {
            return running;
        }
        let started = Arc::new(Self::start(false).await);
        *shared = Arc::downgrade(&started);
        started
    }

    /// Returns TLS options that trust the server's certificate authority.
    fn trust(&self) -> TlsOptions {
        TlsOptions::default().ca_file(self.certificates.file(Pem::Authority))
    }

    /// Returns options that name the server, trust it, and have no user.
    fn options(&self) -> Options {
        localhost(self.mongod.port()).tls(self.trust())
    }

    /// Like `options`, but with a user.
    fn as_user(&self) -> Options {
        self.options().credential(user())
    }

    async fn root(&self) -> Pool<Endpoint> {
        pool_of(self.options().credential(Credential::new("root", "root")))
    }

    /// Returns the number of connections that the server has accepted since it started.
    async fn connections_created(root: &Pool<Endpoint>) -> i64 {
        let status = run(root, "admin", doc! { "serverStatus": 1 }).await.unwrap();
        let created = status.get_document("connections").unwrap().get("totalCreated").unwrap().unwrap();
        created.as_i64().or_else(|| created.as_i32().map(i64::from)).unwrap()
    }

    /// Waits until no other test is using the server's only fail point.
    async fn fail_point(&self) -> FailPoint {
        static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        FailPoint { _turn: TURN.lock().await }
    }
}

/// The permission to set the fail point.
struct FailPoint {
    _turn: tokio::sync::MutexGuard<'static, ()>,
}

impl FailPoint {
    /// Sets the fail point for one application.
    async fn set(&self, root: &Pool<Endpoint>, application: &str, mode: impl Into<bson::Bson>, mut data: Document) {
        data.insert("appName", application);
        let command = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        run(root, "admin", command).await.unwrap();
    }
}

fn user() -> Credential {
    Credential::new("app", "secret")
}

fn certified() -> Credential {
    Credential::of(Mechanism::MongoDbX509)
}

fn localhost(port: u16) -> Options {
    Options::new([&*format!("localhost:{port}")]).unwrap()
}

fn pool_of(options: Options) -> Pool<Endpoint> {
    let pool = options.endpoint().unwrap().pool().build().unwrap();
    pool.ready();
    pool
}

async fn run(pool: &Pool<Endpoint>, database: &str, command: Document) -> Result<RawDocumentBuf, OperationError> {
    let command = RawDocumentBuf::try_from(command).unwrap();
    tokio::time::timeout(AGES, pool.run_command(database, &command)).await.expect("the command hangs")
}

/// Uses a pool with these options as an application does: checks out several connections at a time, runs commands on
/// each of them, checks them in, and repeats this. Returns the user that the connections are authenticated as.
async fn use_pool(options: Options) -> Option<String> {
    const AT_A_TIME: u32 = 3;
    let counts = EventCounts::new();
    let pool = options.endpoint().unwrap().pool().subscriber(counts.clone()).build().unwrap();
    pool.ready();
    let mut found = None;
    for round in 0..3 {
        let mut held = Vec::new();
        for _ in 0..AT_A_TIME {
            let mut connection = tokio::time::timeout(AGES, pool.check_out()).await.unwrap().unwrap();
            // Long enough to be compressed.
            let ping = rawdoc! { "ping": 1, "comment": "a".repeat(1_000) };
            connection.run_command("admin", &ping).await.unwrap();
            let status = connection.run_command("admin", &rawdoc! { "connectionStatus": 1 }).await.unwrap();
            found = user_of(&status);
            held.push(connection);
        }
        let mut ids: Vec<_> = held.iter().map(|connection| connection.id()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2, 3], "in round {round}");
    }
    let status = pool.status();
    assert_eq!((status.total, status.available), (AT_A_TIME, AT_A_TIME));
    pool.close();
    tokio::time::timeout(AGES, pool.closed()).await.unwrap();
    let counts = counts.snapshot();
    let count = |event| counts.iter().find(|(name, _)| *name == event).unwrap().1;
    assert_eq!(count("ConnectionCheckedOut"), 9);
    assert_eq!(count("ConnectionCreated"), u64::from(AT_A_TIME));
    assert_eq!(count("ConnectionClosed"), u64::from(AT_A_TIME));
    found
}

/// Returns the first user in a reply to `connectionStatus`.
fn user_of(status: &RawDocument) -> Option<String> {
    let users = status.get_document("authInfo").unwrap().get_array("authenticatedUsers").unwrap();
    let user = users.into_iter().next()?.unwrap().as_document().unwrap();
    Some(user.get_str("user").unwrap().to_owned())
}

/// Returns the error with which a check-out from a pool with these options fails, and whether the pool's failure sink
/// was told to clear it. Asserts that no connections are left.
async fn refused(options: Options) -> (EstablishError, bool) {
    let clears = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&clears);
    let pool = options.endpoint().unwrap().pool().on_failure(move |failure| {
        told.lock().unwrap_or_else(PoisonError::into_inner).push(failure.clears_pool());
    });
    let pool = pool.build().unwrap();
    pool.ready();
    let error = tokio::time::timeout(AGES, pool.check_out()).await.expect("the check-out hangs");
    let error = error.expect_err("the check-out succeeded");
    let CheckOutError::Establish(error) = error else { panic!("unexpected error: {error}") };
    assert_eq!(pool.status().total, 0);
    let clears = clears.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let [clears] = clears[..] else { panic!("the sink was told {clears:?}") };
    (error, clears)
}

/// Like [`refused`], but also asserts the stage and the labels. All errors without the overload labels clear the pool,
/// even failures of name resolution or of a proxy, which say nothing about the server.
async fn assert_refused(options: Options, stage: Stage, labels: Labels) -> EstablishError {
    let (error, clears) = refused(options).await;
    assert_eq!((error.stage(), error.labels()), (stage, labels), "{error}");
    assert_eq!(clears, !labels.contains(Labels::SYSTEM_OVERLOADED), "{error}");
    let retryable = labels.contains(Labels::RETRYABLE) || is_of_network(&error);
    assert_eq!(CheckOutError::from(error.clone()).is_retryable(), retryable, "{error}");
    error
}

/// Returns whether the network failed at a stage where overload cannot be the cause. Nothing was sent, so a retry is
/// safe and may succeed.
fn is_of_network(error: &EstablishError) -> bool {
    match error.stage() {
        // SOCKS5 Support: each failure at the proxy counts as a network failure.
        Stage::Resolve | Stage::Proxy => true,
        Stage::Authenticate => error.cause().downcast_ref().is_some_and(|failed: &AuthenticationError| {
            matches!(reason(failed), AuthenticationCause::Network(_) | AuthenticationCause::Timeout(_))
        }),
        _ => false,
    }
}

#[track_caller]
fn cause<E: StdError + 'static>(error: &EstablishError) -> &E {
    error.cause().downcast_ref().unwrap_or_else(|| panic!("unexpected cause: {error:?}"))
}

/// Returns why an authentication failed.
fn reason(failure: &AuthenticationError) -> &AuthenticationCause {
    failure.source().and_then(|source| source.downcast_ref()).unwrap_or_else(|| panic!("no cause: {failure:?}"))
}

/// All tests that the plan names exist.
#[test]
fn table_names_existing_tests() {
    let rows = include_str!("main.rs").lines().filter(|line| line.starts_with("//! |"));
    let names: Vec<_> = rows.flat_map(|row| row.split('`').skip(1).step_by(2)).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        let (file, test) = name.split_once("::").unwrap_or((name, ""));
        let places = [
            format!("system-tests/tests/matrix/{file}.rs"),
            format!("system-tests/tests/{file}.rs"),
            format!("system-tests/tests/{file}/main.rs"),
            format!("spec-tests/tests/{file}.rs"),
            format!("spec-tests/tests/{file}/main.rs"),
        ];
        let path = places.iter().map(|place| root().join(place)).find(|path| path.exists());
        let path = path.unwrap_or_else(|| panic!("{name}: none of {places:?} exists"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(test.is_empty() || text.contains(&format!("fn {test}(")), "{name} is not in {path:?}");
    }
}
