//! The prose tests for MONGODB-OIDC, "Human Authentication Flow".

use wharf::{Endpoint, Secret};

use super::oidc_machine::Callback;
use super::*;

fn credential(callback: &Callback) -> Credential {
    Credential::of(Mechanism::MongoDbOidc).oidc_human_callback(callback.function())
}

fn endpoint(server: &Server, callback: &Callback) -> Endpoint {
    options(server, credential(callback)).endpoint().unwrap()
}

fn refreshed(tokens: &[(&str, &str)]) -> Callback {
    Callback::of(tokens.iter().map(|(access, refresh)| OidcToken::new(*access).refresh_token(*refresh)))
}

#[tokio::test]
async fn p1_1_and_p2_1_callback_runs_between_two_steps() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let mut connection = endpoint(&server, &callback).connect().await.unwrap();
    connection.run_command("test", &find()).await.unwrap();
    assert_eq!(server.state().commands, ["hello", "saslStart", "saslContinue", "find"]);
    assert_eq!(server.state().principals, [None]);
    let context = callback.contexts.lock().unwrap().pop().unwrap();
    assert_eq!((context.timeout, context.version), (Duration::from_secs(300), 1));
    assert_eq!((context.username, context.refresh_token), (None, None));
    let idp = context.idp_info.unwrap();
    assert_eq!((&*idp.issuer, idp.client_id.as_deref()), ("https://issuer", Some("client")));
    assert_eq!(idp.request_scopes, ["a", "b"]);
}

#[tokio::test]
async fn p1_2_server_gets_the_user_name() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    connect(&server, credential(&callback).username("ada@example.com")).await.unwrap();
    assert_eq!(server.state().principals, [Some("ada@example.com".to_owned())]);
    assert_eq!(callback.contexts.lock().unwrap()[0].username.as_deref(), Some("ada@example.com"));
}

#[tokio::test]
async fn p1_5_server_without_a_provider_gets_no_token() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    server.state().idp = None;
    assert!(shown(&endpoint(&server, &callback).connect().await.unwrap_err()).contains("error 18"));
    server.state().idp = Some(bson::doc! { "clientId": "no issuer" });
    assert!(shown(&endpoint(&server, &callback).connect().await.unwrap_err()).contains("issuer is missing"));
    assert_eq!(callback.calls(), 0);
}

#[tokio::test]
async fn p1_6_forbidden_host_gets_no_message() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    for allowed in [&[][..], &["example.com"], &["*.0.0.1x", "localhost"]] {
        let credential = credential(&callback).allowed_hosts(allowed.iter().copied());
        let error = connect(&server, credential).await.unwrap_err();
        assert!(shown(&error).contains("must not receive the tokens of human users"), "{error}");
    }
    assert_eq!((callback.calls(), server.state().count("saslStart")), (0, 0));
    connect(&server, credential(&callback).allowed_hosts(["*.0.0.1"])).await.unwrap();
}

#[tokio::test]
async fn cached_token_is_not_sent_to_a_forbidden_host() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let port = server.address().split_once(':').unwrap().1.to_owned();
    let (allowed, forbidden) = (server.address(), format!("localhost:{port}"));
    let credential = credential(&callback).allowed_hosts(["127.0.0.1"]);
    let options = Options::new([allowed.as_str(), forbidden.as_str()]).unwrap().credential(credential);
    let [allowed, forbidden] = &options.endpoints().unwrap()[..] else { panic!("not two") };
    allowed.connect().await.unwrap();
    shown(&forbidden.connect().await.unwrap_err());
    assert_eq!(server.state().speculations, [None, None]);
    allowed.connect().await.unwrap();
    assert!(server.state().speculations[2].is_some());
}

#[tokio::test]
async fn p1_8_machine_provider_has_no_client_id() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    server.state().idp = Some(bson::doc! { "issuer": "https://machines" });
    connect(&server, credential(&callback).username("test_machine")).await.unwrap();
    assert_eq!(callback.contexts.lock().unwrap()[0].idp_info.as_ref().unwrap().client_id, None);
}

#[tokio::test]
async fn p2_2_callback_must_return_a_token() {
    let (server, callback) = (Server::of_tokens(&[""]).await, Callback::new(&[""]));
    let error = endpoint(&server, &callback).connect().await.unwrap_err();
    assert!(shown(&error).ends_with("the access token is empty"), "{error}");
}

#[tokio::test]
async fn p2_3_and_p4_1_refresh_token_is_passed_to_the_callback() {
    let server = Server::of_tokens(&["token-a", "token-b"]).await;
    let callback = refreshed(&[("token-a", "token-r"), ("token-b", "token-s")]);
    let mut connection = endpoint(&server, &callback).connect().await.unwrap();
    connection.run_command("test", &find()).await.unwrap();
    server.state().commands.clear();
    server.state().failures.push_back(("find", 391));
    connection.run_command("test", &find()).await.unwrap();
    // With a refresh token, one step is enough.
    assert_eq!(server.state().commands, ["find", "saslStart", "find"]);
    let contexts = callback.contexts.lock().unwrap();
    let refresh: Vec<_> = contexts.iter().map(|context| context.refresh_token.as_ref().map(Secret::reveal)).collect();
    assert_eq!(refresh, [None, Some("token-r")]);
    assert_eq!(contexts[1].idp_info, contexts[0].idp_info);
    assert!(!format!("{contexts:?}").contains("token-"));
}

#[tokio::test]
async fn p3_1_cached_token_travels_with_hello() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let endpoint = endpoint(&server, &callback);
    let mut connection = endpoint.connect().await.unwrap();
    server.state().failures.extend([("find", 0), ("saslStart", 18)]);
    connection.run_command("test", &find()).await.unwrap_err();
    endpoint.connect().await.unwrap().run_command("test", &find()).await.unwrap();
    assert_eq!((callback.calls(), server.state().count("saslStart")), (1, 1));
}

#[tokio::test]
async fn p3_2_nothing_travels_with_hello_without_a_cached_token() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    server.state().failures.push_back(("saslStart", 18));
    assert!(shown(&endpoint(&server, &callback).connect().await.unwrap_err()).contains("error 18"));
    assert_eq!(server.state().speculations, [None]);
}

#[tokio::test]
async fn p4_2_callback_runs_again_without_a_refresh_token() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let mut connection = endpoint(&server, &callback).connect().await.unwrap();
    server.state().commands.clear();
    server.state().failures.push_back(("find", 391));
    connection.run_command("test", &find()).await.unwrap();
    assert_eq!(callback.calls(), 2);
    assert_eq!(server.state().commands, ["find", "saslStart", "saslContinue", "find"]);
}

#[tokio::test]
async fn p4_3_bad_refresh_token_is_harmless_if_the_access_token_is_good() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, refreshed(&[("token-a", "token-bad")]));
    let mut connection = endpoint(&server, &callback).connect().await.unwrap();
    assert_eq!(callback.calls(), 1);
    server.state().failures.push_back(("find", 391));
    connection.run_command("test", &find()).await.unwrap();
    assert_eq!(callback.calls(), 2);
}

#[tokio::test]
async fn p4_4_refused_refreshed_token_starts_a_new_login() {
    let server = Server::of_tokens(&["token-a"]).await;
    let callback = refreshed(&[("token-a", "token-r"), ("token-bad", "token-s")]);
    let endpoint = endpoint(&server, &callback);
    endpoint.connect().await.unwrap();
    let mut connection = endpoint.connect().await.unwrap();
    assert_eq!(callback.calls(), 1);
    server.state().failures.push_back(("find", 391));
    connection.run_command("test", &find()).await.unwrap_err();
    let contexts = callback.contexts.lock().unwrap();
    let refresh: Vec<_> = contexts.iter().map(|context| context.refresh_token.as_ref().map(Secret::reveal)).collect();
    assert_eq!(refresh, [None, Some("token-r"), None]);
}

#[tokio::test]
async fn concurrent_connections_call_the_callback_once() {
    let (server, callback) = (Server::of_tokens(&["token-a"]).await, Callback::new(&["token-a"]));
    let endpoint = endpoint(&server, &callback);
    let (one, other) = tokio::join!(endpoint.connect(), endpoint.connect());
    one.unwrap();
    other.unwrap();
    assert_eq!(callback.calls(), 1);
}
