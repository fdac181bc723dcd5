//! Conversations that no real server would hold, and mechanisms that a real server offers only with LDAP or TLS.

use bson::{Bson, Document, rawdoc};
use wharf::unstable::wire::WireError;
use wharf::unstable::wire::auth::scram::{MAX_ITERATIONS, MIN_ITERATIONS};
use wharf::{CommandError, Endpoint, PoolEvent, TlsOptions};
use wharf_testbed::certificates::{Certificates, Pem};
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};
use wharf_testbed::tls_front::TlsFront;

use super::scripted_scram::{Behaviour, PASSWORD, credential, hello, payload, replies, sasl, start};
use super::*;

/// Asserts that SCRAM-SHA-256 fails against a server with this behaviour, and returns the cause's message.
async fn refusal(behaviour: Behaviour) -> String {
    let server = start(behaviour).await;
    let error = connect(&server.address(), credential()).await.unwrap_err();
    reason(failure(&error)).to_string()
}

#[tokio::test]
async fn short_and_long_conversations_succeed() {
    for (speculates, wants_empty_exchange, expected) in [
        (true, false, &["isMaster", "saslContinue"][..]),
        (false, false, &["isMaster", "saslStart", "saslContinue"]),
        (true, true, &["isMaster", "saslContinue", "saslContinue"]),
        (false, true, &["isMaster", "saslStart", "saslContinue", "saslContinue"]),
    ] {
        let server = start(Behaviour { speculates, wants_empty_exchange, ..Behaviour::default() }).await;
        connect(&server.address(), credential()).await.unwrap();
        assert_eq!(server.command_names(), expected);
    }
}

#[tokio::test]
async fn commands_have_the_fields_of_the_specification() {
    let server = start(Behaviour::default()).await;
    connect(&server.address(), credential().source("shop")).await.unwrap();
    let commands = server.commands();
    let speculative = commands[0].get_document("speculativeAuthenticate").unwrap();
    assert_eq!(speculative.get_str("db").unwrap(), "shop");
    assert_eq!(commands[0].get_str("$db").unwrap(), "admin");
    assert!(!commands[0].contains_key("saslSupportedMechs"));
    for start in [speculative, &commands[1]] {
        assert_eq!(start.get_i32("saslStart").unwrap(), 1);
        assert_eq!(start.get_str("mechanism").unwrap(), "SCRAM-SHA-256");
        assert_eq!(start.get_document("options").unwrap(), &doc! { "skipEmptyExchange": true });
        assert!(payload(start).starts_with(b"n,,n=user,r="));
    }
    // Each conversation has its own nonce.
    assert_ne!(payload(speculative), payload(&commands[1]));
    assert_eq!(commands[1].get_str("$db").unwrap(), "shop");
    assert_eq!(commands[2].get_i32("conversationId").unwrap(), 1);
    assert_eq!(commands[2].get_str("$db").unwrap(), "shop");
}

#[tokio::test]
async fn mechanism_is_negotiated_if_none_is_named() {
    let both = Bson::from(vec!["NEW", "SCRAM-SHA-1", "SCRAM-SHA-256"]);
    let server = start(Behaviour { mechanisms: Some(both), speculates: true, ..Behaviour::default() }).await;
    connect(&server.address(), Credential::new("a.b=c", PASSWORD).source("shop")).await.unwrap();
    let commands = server.commands();
    assert_eq!(commands[0].get_str("saslSupportedMechs").unwrap(), "shop.a.b=c");
    let speculative = commands[0].get_document("speculativeAuthenticate").unwrap();
    assert_eq!(speculative.get_str("mechanism").unwrap(), "SCRAM-SHA-256");
    assert_eq!(server.command_names(), ["isMaster", "saslContinue"]);

    // With any other list of mechanisms, or without a list, the mechanism is SCRAM-SHA-1, even if the server replied to
    // the SCRAM-SHA-256 message in hello.
    for mechanisms in
        [None, Some(Bson::from(vec!["SCRAM-SHA-1"])), Some(Bson::from(vec!["PLAIN", "NEW"])), Some(Bson::Null)]
    {
        let server = start(Behaviour { mechanisms, speculates: true, ..Behaviour::default() }).await;
        let error = connect(&server.address(), Credential::new("user", PASSWORD)).await.unwrap_err();
        assert_eq!(failure(&error).mechanism, Mechanism::ScramSha1);
        let commands = server.commands();
        assert_eq!(commands[1].get_str("mechanism").unwrap(), "SCRAM-SHA-1");
    }
}

#[tokio::test]
async fn server_that_does_not_know_the_password_is_rejected() {
    for speculates in [true, false] {
        for wants_empty_exchange in [true, false] {
            let behaviour = Behaviour { speculates, wants_empty_exchange, ..Behaviour::default() };
            let with = |server_final| refusal(Behaviour { server_final: Some(server_final), ..behaviour.clone() });
            let wrong = with("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").await;
            assert_eq!(wrong, ScramError::ServerSignature.to_string());
            assert_eq!(with("").await, ScramError::Missing { attribute: 'v' }.to_string());
            let refused = ScramError::Refused { error: "invalid-proof".to_owned() };
            assert_eq!(with("e=invalid-proof").await, refused.to_string());
        }
        let behaviour = Behaviour { speculates, ..Behaviour::default() };
        let early = refusal(Behaviour { done_at_once: true, ..behaviour.clone() }).await;
        assert_eq!(early, ScramError::EndedEarly.to_string());
        let endless = refusal(Behaviour { never_done: true, ..behaviour.clone() }).await;
        assert_eq!(endless, AuthenticationCause::Endless.to_string());
        let foreign = refusal(Behaviour { nonce: Some("foreign"), ..behaviour }).await;
        assert_eq!(foreign, ScramError::Nonce.to_string());
    }
}

#[tokio::test]
async fn server_with_too_few_or_too_many_iterations_gets_no_proof() {
    for iterations in [1, u64::from(MIN_ITERATIONS) - 1, u64::from(MAX_ITERATIONS) + 1, 1 << 40] {
        let server = start(Behaviour { iterations: Some(iterations), ..Behaviour::default() }).await;
        let error = connect(&server.address(), credential()).await.unwrap_err();
        let AuthenticationCause::Scram(ScramError::Iterations { .. }) = *reason(failure(&error)) else {
            panic!("another cause: {error}")
        };
        assert_eq!(server.command_names(), ["isMaster", "saslStart"]);
    }
}

#[tokio::test]
async fn invalid_sasl_reply_is_rejected_by_field_name() {
    for (replaced, field) in [
        (doc! { "conversationId": "1" }, "conversationId"),
        (doc! { "payload": 7 }, "payload"),
        (doc! { "done": 1 }, "done"),
    ] {
        for speculates in [true, false] {
            let behaviour = Behaviour { replaced: replaced.clone(), speculates, ..Behaviour::default() };
            let server = start(behaviour).await;
            let error = connect(&server.address(), credential()).await.unwrap_err();
            let AuthenticationCause::Wire(WireError::ReplyField { field: found, .. }) = reason(failure(&error)) else {
                panic!("another cause: {error}")
            };
            assert_eq!(*found, field);
        }
    }
}

#[tokio::test]
async fn error_labels_of_the_server_are_kept() {
    let refusal = doc! {
        "ok": 0.0, "code": 462, "errmsg": "busy", "errorLabels": ["SystemOverloadedError", "RetryableError", "Other"],
    };
    let server = start(Behaviour { replaced: refusal, ..Behaviour::default() }).await;
    let error = connect(&server.address(), credential()).await.unwrap_err();
    let expected = Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE);
    assert_eq!((error.stage(), error.labels()), (Stage::Authenticate, expected));
}

/// Starts a server that has these fields in its hello reply and answers every other command with `reply`.
async fn answering(fields: Document, reply: Document) -> ScriptedServer {
    let script = move || -> Script {
        let (fields, reply) = (fields.clone(), reply.clone());
        Box::new(move |command| match &*name(command) {
            "isMaster" => Answer::Reply(hello(fields.clone())),
            _ => Answer::Reply(reply.clone()),
        })
    };
    ScriptedServer::start(script).await.unwrap()
}

#[tokio::test]
async fn plain_sends_the_name_and_password_to_the_external_source() {
    let credential = Credential::new("user", "pencil").mechanism(Mechanism::Plain);
    let server = answering(doc! {}, sasl(b"", true)).await;
    let connection = connect(&server.address(), credential.clone()).await.unwrap();
    // The buffers do not keep the data that passed through them, and the connection does not print that data.
    let printed = format!("{connection:?}");
    assert!(printed.contains("outgoing_bytes: 0"), "{printed}");
    let mut connection = connection;
    connection.reply_to("admin", &rawdoc! { "createUser": "eve", "pwd": "pencil" }).await.unwrap();
    let printed = format!("{connection:?}");
    assert!(!printed.contains("70656e63696c") && !printed.contains("112, 101, 110, 99"), "{printed}");
    let commands = server.commands();
    assert_eq!(server.command_names(), ["isMaster", "saslStart", "createUser"]);
    assert!(!commands[0].contains_key("speculativeAuthenticate") && !commands[0].contains_key("saslSupportedMechs"));
    assert_eq!(commands[1].get_str("mechanism").unwrap(), "PLAIN");
    assert_eq!(commands[1].get_str("$db").unwrap(), "$external");
    assert_eq!(payload(&commands[1]), b"\0user\0pencil");

    let server = answering(doc! {}, sasl(b"", false)).await;
    let error = connect(&server.address(), credential.clone()).await.unwrap_err();
    assert!(matches!(reason(failure(&error)), AuthenticationCause::Endless), "{error}");

    let refused = doc! { "ok": 0.0, "code": 18, "codeName": "AuthenticationFailed", "errmsg": "no" };
    let server = answering(doc! {}, refused).await;
    let error = connect(&server.address(), credential).await.unwrap_err();
    assert_refused(&error);
    assert!(!format!("{error:?}").contains("pencil"));
}

#[tokio::test]
async fn error_that_repeats_the_password_is_not_shown() {
    let credential = Credential::new("user", "pencil").mechanism(Mechanism::Plain);
    let echo = doc! {
        "ok": 0.0, "code": 9, "codeName": "FailedToParse", "errmsg": "cannot parse: user pencil", "payload": "pencil",
        "errorLabels": ["RetryableError"],
    };
    let server = answering(doc! {}, echo).await;
    let error = connect(&server.address(), credential).await.unwrap_err();
    let failed: &AuthenticationError = error.cause().downcast_ref().unwrap();
    let refused = failed.server_error().unwrap();
    assert_eq!((refused.code, &*refused.code_name), (9, "FailedToParse"));
    assert!(refused.has_label("RetryableError"));
    let expected = "the server answered with error 9 (FailedToParse): (its message is not shown";
    assert!(error.to_string().contains(expected), "{error}");
    for shown in
        [format!("{error:?}"), refused.message.clone(), format!("{}", Document::try_from(&*refused.reply).unwrap())]
    {
        assert!(!shown.contains("pencil"), "{shown}");
    }
}

/// Connects through a TLS front, and authenticates with a client certificate.
async fn connect_with_certificate(
    server: &ScriptedServer,
    credential: Credential,
) -> Result<DirectConnection, EstablishError> {
    let (endpoint, _front) = through_tls(server, credential).await;
    tokio::time::timeout(AGES, endpoint.connect()).await.unwrap()
}

/// Returns the endpoint for a client with a certificate, and the server's TLS front.
async fn through_tls(server: &ScriptedServer, credential: Credential) -> (Endpoint, TlsFront) {
    let certificates = Certificates::create().unwrap();
    let (file, version) = (certificates.file(Pem::Server), &tokio_rustls::rustls::version::TLS13);
    let front = TlsFront::start(server.address().parse().unwrap(), &file, version, None).await.unwrap();
    let tls = TlsOptions::default()
        .ca_file(certificates.file(Pem::Authority))
        .certificate_key_file(certificates.file(Pem::Client));
    let options = Options::new([&*front.address().to_string()]).unwrap().tls(tls).credential(credential);
    (options.endpoint().unwrap(), front)
}

#[tokio::test]
async fn event_of_a_secured_and_authenticated_connection_has_the_times_of_its_stages() {
    let server = answering(doc! {}, doc! { "ok": 1.0, "dbname": "$external", "user": "CN=client" }).await;
    let (endpoint, _front) = through_tls(&server, Credential::of(Mechanism::MongoDbX509)).await;
    let (sender, mut ready) = tokio::sync::mpsc::unbounded_channel();
    let subscriber = move |event: &PoolEvent| {
        if let PoolEvent::ConnectionReady { duration, stages, .. } = event {
            sender.send((*duration, stages.clone())).unwrap();
        }
    };
    let pool = endpoint.pool().subscriber(subscriber).build().unwrap();
    pool.ready();
    tokio::time::timeout(AGES, pool.check_out()).await.unwrap().unwrap();
    let (duration, stages) = tokio::time::timeout(AGES, ready.recv()).await.unwrap().unwrap();
    for (stage, took) in stages.iter() {
        let is_timed = took.is_some_and(|took| took > Duration::ZERO);
        assert_eq!(is_timed, stage != Stage::Proxy, "{stage:?}: {took:?}");
    }
    let sum: Duration = stages.iter().filter_map(|(_, took)| *took).sum();
    assert!(sum <= duration, "{stages:?} {duration:?}");
}

#[tokio::test]
async fn x509_travels_with_hello_or_follows_it() {
    let named = Credential::of(Mechanism::MongoDbX509).username("CN=client");
    for (credential, user) in [(Credential::of(Mechanism::MongoDbX509), None), (named, Some("CN=client"))] {
        let mut expected = doc! { "authenticate": 1, "mechanism": "MONGODB-X509" };
        if let Some(user) = user {
            expected.insert("user", user);
        }
        let mut speculative = expected.clone();
        speculative.insert("db", "$external");
        expected.insert("$db", "$external");

        let reply = doc! { "dbname": "$external", "user": "CN=client" };
        let server = answering(doc! { "speculativeAuthenticate": reply.clone() }, doc! { "ok": 0.0 }).await;
        connect_with_certificate(&server, credential.clone()).await.unwrap();
        let commands = server.commands();
        assert_eq!(server.command_names(), ["isMaster"]);
        assert_eq!(commands[0].get_document("speculativeAuthenticate").unwrap(), &speculative);

        let mut reply = reply;
        reply.insert("ok", 1.0);
        let server = answering(doc! {}, reply).await;
        connect_with_certificate(&server, credential).await.unwrap();
        assert_eq!(server.command_names(), ["isMaster", "authenticate"]);
        assert_eq!(server.commands()[1], expected);
    }
    let refused = doc! { "ok": 0.0, "code": 18, "codeName": "AuthenticationFailed", "errmsg": "no" };
    let server = answering(doc! {}, refused).await;
    assert_refused(&connect_with_certificate(&server, Credential::of(Mechanism::MongoDbX509)).await.unwrap_err());
}

#[tokio::test]
async fn arbiter_is_not_asked_to_authenticate() {
    let server = answering(doc! { "setName": "rs", "arbiterOnly": true }, doc! { "ok": 0.0 }).await;
    let connection = connect(&server.address(), credential()).await.unwrap();
    assert!(!connection.is_authenticated());
    assert_eq!(server.command_names(), ["isMaster"]);
}

#[tokio::test]
async fn pool_with_a_credential_rejects_arbiters() {
    let x509 = Credential::of(Mechanism::MongoDbX509);
    let plain = Credential::new("user", "pencil").mechanism(Mechanism::Plain);
    for (credential, mechanism) in [
        (Some(credential()), Mechanism::ScramSha256),
        (Some(Credential::new("user", PASSWORD)), Mechanism::ScramSha1),
        (Some(plain), Mechanism::Plain),
        (None, x509.mechanism.unwrap()),
    ] {
        let server = answering(doc! { "setName": "rs", "arbiterOnly": true }, doc! { "ok": 1.0 }).await;
        let mut options = Options::new([&*server.address()]).unwrap();
        options.credential = credential.clone();
        let pool = options.endpoint().unwrap().pool().build().unwrap();
        pool.ready();
        let outcome = pool.run_command("admin", &rawdoc! { "ping": 1 }).await;
        if credential.is_none() {
            outcome.unwrap();
            continue;
        }
        let Err(OperationError::CheckOut(CheckOutError::Establish(error))) = outcome else { panic!("{outcome:?}") };
        assert_eq!((error.stage(), error.labels()), (Stage::Authenticate, Labels::NONE));
        let failed: &AuthenticationError = error.cause().downcast_ref().unwrap();
        assert!(matches!(reason(failed), AuthenticationCause::Arbiter), "{failed}");
        assert_eq!(failed.mechanism, mechanism);
        assert!(error.to_string().contains("the server says that it is an arbiter"), "{error}");
        // None of the application's commands reached the server.
        assert!(server.command_names().iter().all(|name| name == "isMaster"), "{:?}", server.command_names());
    }
}

#[test]
fn gssapi_is_refused_before_connecting() {
    let credential = Credential::new("user", "pencil").mechanism(Mechanism::Gssapi);
    let error = Options::new(["localhost"]).unwrap().credential(credential).endpoint().unwrap_err();
    assert!(
        error.to_string().starts_with("authMechanism GSSAPI is not supported; use one of SCRAM-SHA-1, "),
        "{error}"
    );
}

#[test]
fn user_without_a_password_is_refused_before_connecting() {
    for uri in ["mongodb://ada@localhost", "mongodb://ada@localhost/shop?authSource=shop"] {
        let options: Options = uri.parse().unwrap();
        let error = options.endpoint().unwrap_err().to_string();
        assert_eq!(error, "password is required without authMechanism, because the mechanism is SCRAM");
    }
    for mechanism in [Mechanism::ScramSha1, Mechanism::ScramSha256, Mechanism::Plain] {
        let credential = Credential::of(mechanism).username("ada");
        let error = Options::new(["localhost"]).unwrap().credential(credential).endpoint().unwrap_err();
        assert_eq!(error.to_string(), format!("password is required with authMechanism={}", mechanism.name()));
    }
    // An empty password is still a password, which only the server can refuse.
    assert!("mongodb://ada:@localhost".parse::<Options>().unwrap().endpoint().is_ok());
}

#[test]
fn plain_refuses_zero_bytes() {
    for (name, password, option) in [("a\0b", "c", "username"), ("a", "b\0c", "password")] {
        let credential = Credential::new(name, password).mechanism(Mechanism::Plain);
        let error = Options::new(["localhost"]).unwrap().credential(credential).endpoint().unwrap_err();
        assert_eq!(error.option, option);
        assert!(!error.to_string().contains("b\0c"));
    }
}

#[tokio::test]
async fn reply_length_is_limited_before_authentication() {
    let credential = Credential::new("user", "pencil").mechanism(Mechanism::Plain);
    // The limit in the hello reply does not apply until the connection is authenticated.
    let limit = doc! { "maxMessageSizeBytes": i32::MAX };
    let mut reply = sasl(b"", true);
    reply.insert("filler", "x".repeat(1024 * 1024));
    let server = answering(limit.clone(), reply.clone()).await;
    let error = connect(&server.address(), credential.clone()).await.unwrap_err();
    let AuthenticationCause::Wire(WireError::Length { most: 1_048_576, .. }) = *reason(failure(&error)) else {
        panic!("another cause: {error}")
    };
    // After authentication, the limit in the hello reply applies.
    let script = move || -> Script {
        let (limit, reply) = (limit.clone(), reply.clone());
        Box::new(move |command| match &*name(command) {
            "isMaster" => Answer::Reply(hello(limit.clone())),
            "saslStart" => Answer::Reply(sasl(b"", true)),
            _ => Answer::Reply(reply.clone()),
        })
    };
    let server = ScriptedServer::start(script).await.unwrap();
    let mut connection = connect(&server.address(), credential).await.unwrap();
    let reply = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    assert!(reply.as_bytes().len() > 1024 * 1024);
}

#[tokio::test]
async fn speculative_reply_is_removed_from_the_hello_reply() {
    let server = start(Behaviour { speculates: true, ..Behaviour::default() }).await;
    let connection = connect(&server.address(), credential()).await.unwrap();
    assert_eq!(server.command_names(), ["isMaster", "saslContinue"]);
    let document = &connection.hello().document;
    assert!(document.get("speculativeAuthenticate").unwrap().is_none() && document.get("ok").unwrap().is_some());
}

/// Starts a server that requires reauthentication before it answers the first `ping` on a connection.
async fn expiring(behaviour: Behaviour) -> ScriptedServer {
    let script = move || -> Script {
        let (mut reply, mut expired) = (replies(behaviour.clone()), false);
        let again = behaviour.clone();
        Box::new(move |command| {
            if name(command) == "ping" && !expired {
                expired = true;
                reply = replies(again.clone());
                let required = "ReauthenticationRequired";
                return Answer::Reply(doc! { "ok": 0.0, "code": 391, "codeName": required, "errmsg": "expired" });
            }
            Answer::Reply(reply(command))
        })
    };
    ScriptedServer::start(script).await.unwrap()
}

#[tokio::test]
async fn reauthentication_needs_no_further_hello() {
    let server = expiring(Behaviour { speculates: true, ..Behaviour::default() }).await;
    let mut connection = connect(&server.address(), credential()).await.unwrap();
    run(&mut connection, "admin", doc! { "ping": 1 }).await;
    assert_eq!(server.command_names(), ["isMaster", "saslContinue", "ping", "saslStart", "saslContinue", "ping"]);
}

#[tokio::test]
async fn connection_that_fails_to_reauthenticate_is_not_reusable() {
    let server = expiring(Behaviour { speculates: true, ..Behaviour::default() }).await;
    let credential = Credential::new("user", "other").mechanism(Mechanism::ScramSha256);
    assert_refused(&connect(&server.address(), credential).await.unwrap_err());

    // The user is removed while the client is connected.
    let script = move || -> Script {
        let (mut reply, mut expired) = (replies(Behaviour::default()), false);
        Box::new(move |command| {
            expired |= name(command) == "ping";
            match (expired, &*name(command)) {
                (true, "ping") => Answer::Reply(doc! { "ok": 0.0, "code": 391, "errmsg": "expired" }),
                (true, _) => Answer::Reply(doc! { "ok": 0.0, "code": 18, "codeName": "AuthenticationFailed" }),
                (false, _) => Answer::Reply(reply(command)),
            }
        })
    };
    let server = ScriptedServer::start(script).await.unwrap();
    let mut connection = connect(&server.address(), super::scripted_scram::credential()).await.unwrap();
    let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    let CommandError::Reauthentication { source, .. } = &failure else { panic!("another failure: {failure}") };
    assert_eq!(source.server_error().unwrap().code, 18);
    assert!(!connection.condition().is_reusable());
}

#[tokio::test]
async fn authentication_is_a_stage_of_its_own_in_the_metrics_of_a_pool() {
    for (server_final, succeeded) in [(None, 1), (Some("e=invalid-proof"), 0)] {
        let server = start(Behaviour { server_final, ..Behaviour::default() }).await;
        let options = Options::new([&*server.address()]).unwrap().credential(credential());
        let pool = options.endpoint().unwrap().pool().build().unwrap();
        pool.ready();
        let outcome = tokio::time::timeout(AGES, pool.check_out()).await.unwrap();
        assert_eq!(outcome.is_ok(), succeeded == 1);
        let connections = pool.metrics().connections;
        let times = &connections.stage_times;
        assert_eq!((times.hello.count(), times.authenticate.count()), (1, succeeded));
        assert_eq!((connections.failed.authenticate, connections.failed.hello), (1 - succeeded, 0));
        assert_eq!(connections.establish_time.count(), succeeded);
    }
}
