//! The built-in environments of MONGODB-OIDC.

use super::aws::TokenFile;
use super::*;

fn credential(environment: &str, cloud: CloudEnvironment) -> Credential {
    Credential::of(Mechanism::MongoDbOidc).mechanism_property("ENVIRONMENT", environment).cloud_environment(cloud)
}

fn with_resource(environment: &str, cloud: CloudEnvironment) -> Credential {
    credential(environment, cloud).mechanism_property("TOKEN_RESOURCE", "api://a,b/c d?e&f")
}

#[tokio::test]
async fn test_reads_the_file_of_its_variable_for_every_new_token() {
    let server = Server::of_tokens(&["token-a"]).await;
    let file = TokenFile::new("oidc-test", "token-a\n");
    let endpoint = options(&server, credential("test", variables(&[("OIDC_TOKEN_FILE", file.path())])));
    let endpoint = endpoint.endpoint().unwrap();
    endpoint.connect().await.unwrap();
    std::fs::write(&file.0, "token-b").unwrap();
    server.state().tokens = ["token-b".to_owned()].into();
    endpoint.connect().await.unwrap();

    let error = connect(&server, credential("test", variables(&[]))).await.unwrap_err();
    assert!(shown(&error).contains("the environment variable OIDC_TOKEN_FILE is not set"), "{error}");
}

#[tokio::test]
async fn k8s_reads_the_first_file_that_a_variable_names() {
    let (azure, aws) = (TokenFile::new("k8s-azure", "token-azure"), TokenFile::new("k8s-aws", "token-aws"));
    let set = [("AZURE_FEDERATED_TOKEN_FILE", azure.path()), ("AWS_WEB_IDENTITY_TOKEN_FILE", aws.path())];
    for (set, token) in [(&set[..], "token-azure"), (&set[1..], "token-aws")] {
        let server = Server::of_tokens(&[token]).await;
        connect(&server, credential("k8s", variables(set))).await.unwrap();
    }
    let server = Server::of_tokens(&[]).await;
    let error = connect(&server, credential("k8s", variables(&[]))).await.unwrap_err();
    let path = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    assert!(shown(&error).contains(path), "{error}");
}

#[tokio::test]
async fn azure_is_asked_for_a_token_for_the_resource() {
    let server = Server::of_tokens(&["token-a"]).await;
    let answer = r#"{"access_token":"token-a","refresh_token":"","expires_in":"3599","token_type":"Bearer"}"#;
    let metadata = HttpServer::start(move |_| Answer::ok(answer)).await;
    let cloud = || variables(&[]).azure(&metadata.url);
    connect(&server, with_resource("azure", cloud())).await.unwrap();
    connect(&server, with_resource("azure", cloud()).username("client/1")).await.unwrap();
    let path = "GET /metadata/identity/oauth2/token?api-version=2018-02-01&resource=api%3A%2F%2Fa%2Cb%2Fc%20d%3Fe%26f";
    let [one, other] = &metadata.seen()[..] else { panic!("not asked twice") };
    assert_eq!(one.line, path);
    assert_eq!((one.header("metadata"), one.header("accept")), (Some("true"), Some("application/json")));
    assert_eq!(other.line, format!("{path}&client_id=client%2F1"));
}

#[tokio::test]
async fn azure_with_a_wrong_user_shows_the_answer_of_the_service() {
    let server = Server::of_tokens(&["token-a"]).await;
    let metadata = HttpServer::start(|_| Answer::Says(400, r#"{"error":"Identity not found"}"#.to_owned())).await;
    let credential = with_resource("azure", variables(&[]).azure(&metadata.url)).username("bad");
    let text = shown(&connect(&server, credential).await.unwrap_err());
    assert!(
        text.contains("its status must be 200 OK, got 400 Bad Request") && text.contains("Identity not found"),
        "{text}"
    );
}

#[tokio::test]
async fn google_is_asked_for_a_token_for_the_resource() {
    let server = Server::of_tokens(&["token-a"]).await;
    let metadata = HttpServer::start(|_| Answer::ok("token-a")).await;
    connect(&server, with_resource("gcp", variables(&[]).gcp(&metadata.url))).await.unwrap();
    let [seen] = &metadata.seen()[..] else { panic!("not asked once") };
    let path =
        "GET /computeMetadata/v1/instance/service-accounts/default/identity?audience=api%3A%2F%2Fa%2Cb%2Fc%20d%3Fe%26f";
    assert_eq!((&*seen.line, seen.header("metadata-flavor")), (path, Some("Google")));
}

#[tokio::test]
async fn answer_without_a_token_is_named() {
    let server = Server::of_tokens(&[]).await;
    for (environment, answer, expected) in [
        ("azure", Answer::ok(""), "the body of its answer must be a JSON object"),
        ("azure", Answer::ok("{}"), "access_token of its answer must be text"),
        ("azure", Answer::ok(r#"{"access_token":""}"#), "access_token of its answer must be text"),
        ("azure", Answer::ok(r#"{"access_token":1}"#), "access_token of its answer must be text"),
        ("azure", Answer::ok("x".repeat(65_537)), "its answer is longer than 65536 bytes"),
        ("gcp", Answer::ok(" \n"), "the body of its answer must be a token"),
        (
            "gcp",
            Answer::Says(403, "not here".to_owned()),
            "its status must be 200 OK, got 403 Forbidden; it says \"not here\"",
        ),
        ("gcp", Answer::Says(500, "x".repeat(5_000)), "500 Internal Server Error"),
        ("gcp", Answer::Sends(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx".to_vec()), "the exchange failed"),
    ] {
        let metadata = HttpServer::start(move |_| answer.clone()).await;
        let cloud = variables(&[]).azure(&metadata.url).gcp(&metadata.url);
        let text = shown(&connect(&server, with_resource(environment, cloud)).await.unwrap_err());
        assert!(text.contains(expected), "{text}");
        assert!(text.len() < 4_500, "{} bytes", text.len());
    }
    assert_eq!(server.state().count("saslStart"), 0);
}
