//! Authentication against a real server that has users of all kinds (Authentication specification, "Test Plan").

use wharf::{Compressor, TlsOptions};
use wharf_testbed::certificates::{Certificates, Pem};

use super::*;

/// The names of both mechanisms.
const BOTH: [&str; 2] = ["SCRAM-SHA-1", "SCRAM-SHA-256"];

/// A server that requires authentication, with the users from the specification's tests.
struct Server {
    mongod: Mongod,
}

impl Server {
    async fn start() -> Self {
        let server = Self { mongod: Mongod::start(MongodOptions { auth: true, ..MongodOptions::default() }).unwrap() };
        // The localhost exception allows creating the first user without authentication.
        let mut first = Options::new([&*server.address()]).unwrap().endpoint().unwrap().connect().await.unwrap();
        create(&mut first, "admin", "root", "root", &BOTH).await;
        drop(first);

        let mut root = server.root().await;
        create(&mut root, "admin", "sha1", "sha1", &BOTH[..1]).await;
        create(&mut root, "admin", "sha256", "sha256", &BOTH[1..]).await;
        create(&mut root, "admin", "both", "both", &BOTH).await;
        create(&mut root, "admin", "IX", "IX", &BOTH[1..]).await;
        create(&mut root, "admin", "\u{2168}", "\u{2163}", &BOTH[1..]).await;
        create(&mut root, "admin", "a=b,c", "p=w,d:@/", &BOTH).await;
        create(&mut root, "admin", "weird", "\u{2163}\u{a0}\u{1f980}", &BOTH[..1]).await;
        create(&mut root, "shop", "clerk", "till", &BOTH).await;
        server
    }

    fn address(&self) -> String {
        self.mongod.address().to_string()
    }

    async fn root(&self) -> DirectConnection {
        connect(&self.address(), Credential::new("root", "root")).await.unwrap()
    }

    async fn requests(root: &mut DirectConnection) -> i64 {
        let status = run(root, "admin", doc! { "serverStatus": 1 }).await;
        status.get_document("network").unwrap().get_i64("numRequests").unwrap()
    }
}

async fn create(root: &mut DirectConnection, database: &str, name: &str, password: &str, mechanisms: &[&str]) {
    let command = doc! {
        "createUser": name, "pwd": password, "mechanisms": mechanisms, "roles": [{ "role": "root", "db": "admin" }],
    };
    run(root, database, command).await;
}

/// Returns the server that the tests in this file share while they run.
async fn shared() -> Arc<Server> {
    static SHARED: tokio::sync::Mutex<Weak<Server>> = tokio::sync::Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(running) = shared.upgrade() {
        return running;
    }
    let started = Arc::new(Server::start().await);
    *shared = Arc::downgrade(&started);
    started
}

/// Connects and runs a command that requires authentication.
async fn prove(server: &Server, credential: Credential) -> Result<(), EstablishError> {
    let mut connection = connect(&server.address(), credential).await?;
    run(&mut connection, "admin", doc! { "dbStats": 1 }).await;
    Ok(())
}

#[tokio::test]
async fn each_user_authenticates_with_its_mechanisms_and_without_naming_one() {
    let server = shared().await;
    let (sha1, sha256) = (Mechanism::ScramSha1, Mechanism::ScramSha256);
    for (name, has) in [("sha1", &[sha1][..]), ("sha256", &[sha256]), ("both", &[sha1, sha256])] {
        prove(&server, Credential::new(name, name)).await.unwrap();
        for mechanism in [sha1, sha256] {
            let outcome = prove(&server, Credential::new(name, name).mechanism(mechanism)).await;
            match outcome {
                Ok(()) => assert!(has.contains(&mechanism), "{name} by {mechanism:?}"),
                Err(error) => {
                    assert!(!has.contains(&mechanism), "{name} by {mechanism:?}: {error}");
                    assert_refused(&error);
                    assert_eq!(failure(&error).mechanism, mechanism);
                }
            }
        }
    }
}

#[tokio::test]
async fn server_refuses_unauthenticated_commands() {
    let server = shared().await;
    let endpoint = Options::new([&*server.address()]).unwrap().endpoint().unwrap();
    let mut connection = endpoint.connect().await.unwrap();
    let refused = connection.run_command("admin", &rawdoc! { "dbStats": 1 }).await.unwrap_err();
    assert_eq!(refused.server_error().unwrap().code, 13);
}

#[tokio::test]
async fn refused_login_names_the_user_but_not_the_password() {
    let server = shared().await;
    let wrong = [
        Credential::new("both", "wrong-password"),
        Credential::new("nobody", "wrong-password"),
        Credential::new("both", "both").source("shop"),
        Credential::new("clerk", "till"),
        Credential::new("both", "wrong-password").mechanism(Mechanism::ScramSha256),
        Credential::new("both", "wrong-password").mechanism(Mechanism::ScramSha1),
        Credential::new("both", ""),
    ];
    for credential in wrong {
        let error = connect(&server.address(), credential.clone()).await.unwrap_err();
        assert_refused(&error);
        for text in [error.to_string(), format!("{error:?}"), format!("{credential:?}")] {
            assert!(!text.contains("wrong-password") && !text.contains("till"), "{text}");
        }
    }
    let error = connect(&server.address(), Credential::new("both", "x").source("shop")).await.unwrap_err();
    let failed = failure(&error);
    assert_eq!((failed.username.as_deref(), &*failed.database), (Some("both"), "shop"));
    let message = "authentication: user \"both\" of database \"shop\" (SCRAM-SHA-1): the server answered with error 18 \
                   (AuthenticationFailed): Authentication failed.";
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn user_is_looked_up_in_its_source() {
    let server = shared().await;
    prove(&server, Credential::new("clerk", "till").source("shop")).await.unwrap();
    let options = Options::new([&*server.address()]).unwrap().credential(Credential::new("clerk", "till"));
    options.default_database("shop").endpoint().unwrap().connect().await.unwrap();
}

#[tokio::test]
async fn passwords_are_prepared_for_sha_256_but_names_are_not() {
    let server = shared().await;
    let accepted = [
        ("IX", "IX"),
        ("IX", "I\u{ad}X"),
        ("\u{2168}", "IV"),
        ("\u{2168}", "I\u{ad}V"),
        ("\u{2168}", "\u{2163}"),
        ("a=b,c", "p=w,d:@/"),
        // SCRAM-SHA-1 does not prepare the password: it keeps characters that SASLprep would map or prohibit.
        ("weird", "\u{2163}\u{a0}\u{1f980}"),
    ];
    for (name, password) in accepted {
        prove(&server, Credential::new(name, password)).await.unwrap_or_else(|error| panic!("{name:?}: {error}"));
    }
    for (name, password) in [("I\u{ad}X", "IX"), ("IX", "IV"), ("weird", "IV \u{1f980}")] {
        assert_refused(&prove(&server, Credential::new(name, password)).await.unwrap_err());
    }
    let prohibited = Credential::new("both", "a\u{7}b").mechanism(Mechanism::ScramSha256);
    let error = connect(&server.address(), prohibited).await.unwrap_err();
    assert!(matches!(reason(failure(&error)), AuthenticationCause::Scram(ScramError::Password)), "{error}");
}

#[tokio::test]
async fn first_message_travels_with_hello_and_saves_a_round_trip() {
    // This test needs its own server, because it counts all requests.
    let server = Server::start().await;
    let mut root = server.root().await;
    let mut round_trips = async |credential: Credential| {
        let before = Server::requests(&mut root).await;
        drop(connect(&server.address(), credential).await.unwrap());
        Server::requests(&mut root).await - before - 1
    };
    // Two round trips: hello and the proof.
    assert_eq!(round_trips(Credential::new("both", "both")).await, 2);
    assert_eq!(round_trips(Credential::new("both", "both").mechanism(Mechanism::ScramSha256)).await, 2);
    assert_eq!(round_trips(Credential::new("sha1", "sha1").mechanism(Mechanism::ScramSha1)).await, 2);
    // If the user lacks SCRAM-SHA-256, the client attempts SCRAM-SHA-256 in hello and then falls back to SCRAM-SHA-1.
    assert_eq!(round_trips(Credential::new("sha1", "sha1")).await, 3);
}

#[tokio::test]
async fn every_connection_of_a_pool_is_authenticated() {
    let server = shared().await;
    let options = Options::new([&*server.address()]).unwrap().credential(Credential::new("both", "both"));
    let pool = options.endpoint().unwrap().pool().build().unwrap();
    pool.ready();
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut connection = pool.check_out().await.unwrap();
        connection.run_command("admin", &rawdoc! { "dbStats": 1 }).await.unwrap();
        held.push(connection);
    }
}

#[tokio::test]
async fn server_api_is_declared_during_authentication() {
    let mongod = Mongod::start(MongodOptions {
        auth: true,
        extra_args: vec!["--setParameter".into(), "requireApiVersion=1".into()],
        ..MongodOptions::default()
    })
    .unwrap();
    let address = mongod.address().to_string();
    let options = || Options::new([address.as_str()]).unwrap();
    let refused = options().endpoint().unwrap().connect().await.unwrap_err();
    assert_eq!((refused.stage(), refused.cause().is::<wharf::ServerError>()), (Stage::Hello, true), "{refused}");

    let api = wharf::ServerApi::new(wharf::ServerApiVersion::V1);
    let mut first = options().server_api(api.clone()).endpoint().unwrap().connect().await.unwrap();
    create(&mut first, "admin", "both", "both", &BOTH).await;
    let api = api.strict(true).deprecation_errors(true);
    let declared = options().server_api(api).credential(Credential::new("both", "both"));
    let mut declared = declared.endpoint().unwrap().connect().await.unwrap();
    run(&mut declared, "admin", doc! { "ping": 1 }).await;
    let refused = declared.run_command("admin", &rawdoc! { "serverStatus": 1 }).await.unwrap_err();
    assert_eq!(&*refused.server_error().unwrap().code_name, "APIStrictError");
}

#[tokio::test]
async fn certificate_authenticates_with_and_without_the_user_name() {
    let certificates = Certificates::create().unwrap();
    let mongod = Mongod::start(MongodOptions {
        auth: true,
        tls: Some(certificates.of_mongod(false)),
        // The client certificates name the same organisation as the server's certificate, so by default mongod would
        // mistake the clients for cluster members.
        extra_args: vec!["--setParameter".into(), "enforceUserClusterSeparation=false".into()],
        ..MongodOptions::default()
    })
    .unwrap();
    let address = mongod.address().to_string();
    let options = |tls: TlsOptions| Options::new([address.as_str()]).unwrap().tls(tls);
    let trusting = TlsOptions::default().ca_file(certificates.file(Pem::Authority));
    let certified = trusting.clone().certificate_key_file(certificates.file(Pem::Client));

    let mut first = options(trusting.clone()).endpoint().unwrap().connect().await.unwrap();
    create(&mut first, "admin", "root", "root", &BOTH).await;
    let root = options(trusting.clone()).credential(Credential::new("root", "root"));
    let mut root = root.endpoint().unwrap().connect().await.unwrap();
    let user = "CN=client,O=wharf";
    run(&mut root, "$external", doc! { "createUser": user, "roles": [{ "role": "root", "db": "admin" }] }).await;

    let credential = Credential::of(Mechanism::MongoDbX509);
    for credential in [credential.clone(), credential.clone().username(user)] {
        let before = Server::requests(&mut root).await;
        let endpoint = options(certified.clone()).credential(credential).endpoint().unwrap();
        let mut connection = endpoint.connect().await.unwrap();
        assert_eq!(Server::requests(&mut root).await - before - 1, 1, "the proof did not travel with hello");
        let status = run(&mut connection, "admin", doc! { "connectionStatus": 1 }).await;
        let users = status.get_document("authInfo").unwrap().get_array("authenticatedUsers").unwrap();
        let found = users.get(0).unwrap().unwrap().as_document().unwrap();
        assert_eq!((found.get_str("user").unwrap(), found.get_str("db").unwrap()), (user, "$external"));
    }

    let other = options(certified).credential(credential.clone().username("CN=other")).endpoint().unwrap();
    assert_refused(&other.connect().await.unwrap_err());
    // Without a certificate, the client cannot prove its identity, so the options are refused before connecting.
    let uncertified = options(trusting).credential(credential).endpoint().unwrap_err();
    assert_eq!(uncertified.option, "tlsCertificateKeyFile");
}

#[tokio::test]
async fn authentication_is_not_compressed() {
    let server = shared().await;
    let options = Options::new([&*server.address()]).unwrap().credential(Credential::new("both", "both"));
    let compressors = [Compressor::Zstd, Compressor::Snappy, Compressor::Zlib { level: 1 }];
    let mut connection = options.compressors(compressors).endpoint().unwrap().connect().await.unwrap();
    run(&mut connection, "admin", doc! { "dbStats": 1 }).await;
}
