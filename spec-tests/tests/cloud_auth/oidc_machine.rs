//! The prose tests for MONGODB-OIDC, "Machine Authentication Flow".

use std::sync::{Arc, Mutex};

use wharf::{CallbackError, Client, Endpoint, Operation};

use super::*;

/// A callback that returns the given tokens one after another, and then keeps returning the last one.
#[derive(Clone, Default)]
pub struct Callback {
    tokens: Arc<Mutex<Vec<OidcToken>>>,
    pub contexts: Arc<Mutex<Vec<OidcContext>>>,
}

impl Callback {
    pub fn new(tokens: &[&str]) -> Self {
        Self::of(tokens.iter().map(|token| OidcToken::new(*token)))
    }

    pub fn of(tokens: impl IntoIterator<Item = OidcToken>) -> Self {
        let tokens: Vec<_> = tokens.into_iter().collect();
        Self { tokens: Arc::new(Mutex::new(tokens)), ..Self::default() }
    }

    pub fn calls(&self) -> usize {
        self.contexts.lock().unwrap().len()
    }

    fn next(&self, context: OidcContext) -> OidcToken {
        self.contexts.lock().unwrap().push(context);
        let mut tokens = self.tokens.lock().unwrap();
        if tokens.len() > 1 { tokens.remove(0) } else { tokens[0].clone() }
    }

    pub fn function(&self) -> impl wharf::OidcCallback + use<> {
        let this = self.clone();
        move |context| {
            let token = this.next(context);
            async { Ok::<_, CallbackError>(token) }
        }
    }

    fn endpoint(&self, server: &Server) -> Endpoint {
        let credential = Credential::of(Mechanism::MongoDbOidc).oidc_callback(self.function());
        options(server, credential).endpoint().unwrap()
    }
}

#[tokio::test]
async fn p1_1_callback_is_called_during_authentication() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let mut connection = callback.endpoint(&server).connect().await.unwrap();
    connection.run_command("test", &find()).await.unwrap();
    assert_eq!(callback.calls(), 1);
    assert_eq!(server.state().commands, ["hello", "saslStart", "find"]);
    // Without a cached token, nothing is sent along with hello.
    assert_eq!(server.state().speculations, [None]);
}

#[tokio::test]
async fn p1_2_one_call_is_enough_for_many_connections() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let pool = callback.endpoint(&server).pool().build().unwrap();
    pool.ready();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move {
                for _ in 0..100 {
                    pool.check_out().await.unwrap().run_command("test", &find()).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((callback.calls(), server.state().count("find")), (1, 1000));
}

#[tokio::test]
async fn p2_1_callback_gets_the_specified_context() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let credential = Credential::of(Mechanism::MongoDbOidc).username("ada").oidc_callback(callback.function());
    connect(&server, credential).await.unwrap();
    let context = callback.contexts.lock().unwrap().pop().unwrap();
    assert_eq!((context.timeout, context.version), (Duration::from_secs(60), 1));
    assert_eq!(context.username.as_deref(), Some("ada"));
    assert_eq!((context.idp_info, context.refresh_token), (None, None));
    assert!(!format!("{:?}", OidcToken::new("token-a").refresh_token("token-r")).contains("token-"));
}

#[tokio::test]
async fn p2_2_and_p2_3_callback_must_return_a_token() {
    let (server, callback) = (Server::of_tokens(&[""]).await, Callback::new(&[""]));
    let error = callback.endpoint(&server).connect().await.unwrap_err();
    assert!(shown(&error).ends_with("the access token is empty"), "{error}");

    let fails = |_: OidcContext| async { Err("the provider is down".into()) };
    let credential = Credential::of(Mechanism::MongoDbOidc).oidc_callback(fails);
    let error = connect(&server, credential).await.unwrap_err();
    assert!(shown(&error).ends_with("the OIDC callback failed: the provider is down"), "{error}");
    assert_eq!(server.state().count("saslStart"), 0);
}

#[tokio::test]
async fn contradictory_options_are_refused() {
    let server = Server::of_tokens(&[]).await;
    let callback = || Callback::new(&["token-a"]).function();
    let oidc = || Credential::of(Mechanism::MongoDbOidc);
    let azure = || oidc().mechanism_property("ENVIRONMENT", "azure").mechanism_property("TOKEN_RESOURCE", "r");
    for (credential, option) in [
        // Prose test 2.4.
        (
            oidc().mechanism_property("ENVIRONMENT", "test").oidc_callback(callback()),
            "ENVIRONMENT of authMechanismProperties",
        ),
        (
            oidc().mechanism_property("ENVIRONMENT", "test").oidc_human_callback(callback()),
            "ENVIRONMENT of authMechanismProperties",
        ),
        // Prose test 2.5.
        (azure().allowed_hosts([""; 0]), "ALLOWED_HOSTS"),
        (oidc().oidc_callback(callback()).allowed_hosts(["localhost"]), "ALLOWED_HOSTS"),
        (oidc().oidc_callback(callback()).oidc_human_callback(callback()), "OIDC_HUMAN_CALLBACK"),
        (
            oidc().oidc_callback(callback()).mechanism_property("TOKEN_RESOURCE", "r"),
            "TOKEN_RESOURCE of authMechanismProperties",
        ),
        (oidc(), "ENVIRONMENT of authMechanismProperties"),
        (Credential::new("ada", "p").oidc_callback(callback()).mechanism(Mechanism::MongoDbOidc), "password"),
        (Credential::new("ada", "p").mechanism(Mechanism::Plain).oidc_callback(callback()), "OIDC_CALLBACK"),
    ] {
        let error = options(&server, credential).endpoint().unwrap_err();
        assert_eq!(error.option, option, "{error}");
    }
}

#[tokio::test]
async fn p3_1_refused_cached_token_is_replaced() {
    let (server, callback) = (Server::of_tokens(&["token-old"]).await, Callback::new(&["token-old", "token-new"]));
    let endpoint = callback.endpoint(&server);
    endpoint.connect().await.unwrap();
    server.state().tokens = ["token-new".to_owned()].into();
    let mut connection = endpoint.connect().await.unwrap();
    connection.run_command("test", &find()).await.unwrap();
    assert_eq!(callback.calls(), 2);
    // The first connection sends one token. The second sends the old token again, because the server did not accept it
    // in hello, and then sends the new token.
    assert_eq!(server.state().count("saslStart"), 3);
    // From now on, new connections share the new token.
    endpoint.connect().await.unwrap();
    assert_eq!((callback.calls(), server.state().count("saslStart")), (2, 3));
}

#[tokio::test]
async fn p3_2_refused_new_token_is_an_error() {
    let (server, callback) = (Server::of_tokens(&[]).await, Callback::new(&["token-bad"]));
    let error = callback.endpoint(&server).connect().await.unwrap_err();
    assert!(shown(&error).contains("error 18"), "{error}");
    assert_eq!((callback.calls(), server.state().count("saslStart")), (1, 1));
}

#[tokio::test]
async fn p3_3_other_error_does_not_clear_the_cache() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let endpoint = callback.endpoint(&server);
    server.state().failures.push_back(("saslStart", 20));
    assert!(shown(&endpoint.connect().await.unwrap_err()).contains("error 20"));
    assert_eq!(callback.calls(), 1);
    endpoint.connect().await.unwrap();
    assert_eq!(callback.calls(), 1);

    // The error does not clear a previously cached token either.
    server.state().tokens.clear();
    server.state().failures.push_back(("saslStart", 20));
    assert!(shown(&endpoint.connect().await.unwrap_err()).contains("error 20"));
    server.state().tokens.insert("token-a".to_owned());
    endpoint.connect().await.unwrap();
    assert_eq!(callback.calls(), 1);
}

#[tokio::test]
async fn p4_1_connection_is_reauthenticated() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let mut connection = callback.endpoint(&server).connect().await.unwrap();
    server.state().failures.push_back(("find", 391));
    connection.run_command("test", &find()).await.unwrap();
    assert_eq!(callback.calls(), 2);
    // Reauthentication does not repeat hello, and the command is then sent again.
    assert_eq!(server.state().commands, ["hello", "saslStart", "find", "saslStart", "find"]);
    // The unit tests in `tokens` cover the time between two calls, using virtual time.
}

#[tokio::test]
async fn p4_2_and_p4_3_commands_fail_if_reauthentication_fails() {
    for command in [find(), rawdoc! { "insert": "collName", "documents": [{ "_id": 1 }] }] {
        let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a", "token-bad"]));
        let mut connection = callback.endpoint(&server).connect().await.unwrap();
        connection.run_command("test", &command).await.unwrap();
        server.state().failures.extend([("find", 391), ("insert", 391)]);
        let error = connection.run_command("test", &command).await.unwrap_err();
        assert!(error.to_string().contains("error 18"), "{error}");
        assert!(!format!("{error:?} {error}").contains("token-"), "{error:?}");
        assert_eq!((callback.calls(), server.state().count("saslStart")), (2, 2));
    }
}

#[tokio::test]
async fn p4_4_only_new_connections_authenticate_with_hello() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let endpoint = callback.endpoint(&server);
    endpoint.connect().await.unwrap();
    let mut connection = endpoint.connect().await.unwrap();
    let insert = rawdoc! { "insert": "collName", "documents": [{ "_id": 1 }] };
    connection.run_command("test", &insert).await.unwrap();
    assert_eq!((callback.calls(), server.state().count("saslStart")), (1, 1));
    server.state().failures.push_back(("insert", 391));
    connection.run_command("test", &insert).await.unwrap();
    assert_eq!((callback.calls(), server.state().count("saslStart")), (2, 2));
    assert_eq!(server.state().speculations.len(), 2);
}

#[tokio::test]
async fn p4_5_reauthentication_succeeds_in_a_session() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let credential = Credential::of(Mechanism::MongoDbOidc).oidc_callback(callback.function());
    let client = Client::new(options(&server, credential)).unwrap();
    let mut session = client.start_session().await.unwrap();
    server.state().failures.push_back(("find", 391));
    client.run(Operation::read("test", &find()).session(&mut session)).await.unwrap();
    assert_eq!((callback.calls(), server.state().count("find")), (2, 2));
}

#[tokio::test]
async fn connection_invalidates_only_the_token_that_it_used() {
    let (server, callback) = (Server::of_tokens(&["token-a", "token-b"]).await, Callback::new(&["token-a", "token-b"]));
    let endpoint = callback.endpoint(&server);
    let (mut one, mut other) = (endpoint.connect().await.unwrap(), endpoint.connect().await.unwrap());
    server.state().failures.push_back(("find", 391));
    one.run_command("test", &find()).await.unwrap();
    // The second connection also used the first token, which the first connection had already replaced.
    server.state().failures.push_back(("find", 391));
    other.run_command("test", &find()).await.unwrap();
    assert_eq!(callback.calls(), 2);
    // Both now use the second token, so it is invalidated in turn.
    server.state().failures.push_back(("find", 391));
    other.run_command("test", &find()).await.unwrap();
    assert_eq!(callback.calls(), 3);
}

#[tokio::test]
async fn command_that_fails_again_is_not_retried_again() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let mut connection = callback.endpoint(&server).connect().await.unwrap();
    server.state().failures.extend([("find", 391), ("find", 391)]);
    let error = connection.run_command("test", &find()).await.unwrap_err();
    assert_eq!(error.server_error().unwrap().code, 391);
    assert_eq!((callback.calls(), server.state().count("find")), (2, 2));
}

#[tokio::test]
async fn handshake_with_a_cached_token_needs_no_sasl_command() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let endpoint = callback.endpoint(&server);
    let insert = rawdoc! { "insert": "collName", "documents": [{ "_id": 1 }] };
    let mut connection = endpoint.connect().await.unwrap();
    server.state().failures.extend([("insert", 0), ("saslStart", 18)]);
    connection.run_command("test", &insert).await.unwrap_err();
    endpoint.connect().await.unwrap().run_command("test", &insert).await.unwrap();
    assert_eq!(server.state().count("saslStart"), 1);
    let speculation = server.state().speculations[1].clone().unwrap();
    assert_eq!(speculation.get_str("mechanism").unwrap(), "MONGODB-OIDC");
    assert_eq!(speculation.get_str("db").unwrap(), "$external");
}

#[tokio::test]
async fn handshake_without_a_cached_token_needs_a_sasl_command() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    server.state().failures.push_back(("saslStart", 18));
    assert!(shown(&callback.endpoint(&server).connect().await.unwrap_err()).contains("error 18"));
}

#[tokio::test]
async fn conversation_that_does_not_end_is_rejected() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    server.state().replies.insert("saslStart", server::sasl(bson::doc! {}, false));
    let error = callback.endpoint(&server).connect().await.unwrap_err();
    assert!(shown(&error).contains("done must be true after the last message, got false"), "{error}");
}

#[tokio::test]
async fn endpoints_of_the_same_options_share_the_token() {
    let (one, other) = (Server::of_tokens(&["token-a"]).await, Server::of_tokens(&["token-a"]).await);
    let callback = Callback::new(&["token-a"]);
    let credential = Credential::of(Mechanism::MongoDbOidc).oidc_callback(callback.function());
    let hosts = [one.address(), other.address()];
    let options = Options::new(hosts.iter().map(String::as_str)).unwrap().credential(credential);
    for endpoint in options.endpoints().unwrap() {
        endpoint.connect().await.unwrap();
    }
    assert_eq!(callback.calls(), 1);
}
