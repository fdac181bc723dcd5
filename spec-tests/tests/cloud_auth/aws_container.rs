//! The agents that provide credentials to containers. The client queries them in the same way as the container
//! credential provider of the AWS SDKs.

use super::aws::{TOKEN, TokenFile, answer, credential};
use super::*;

const FULL_URI: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
const RELATIVE_URI: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
const AUTHORIZATION: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
const AUTHORIZATION_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";

/// A server that accepts the container's credentials, the agent that provides them, and the node's metadata service.
/// The server also accepts the node's credentials, so authentication succeeds with either service, and the tests check
/// which one received requests.
struct Node {
    server: Server,
    agent: HttpServer,
    metadata: HttpServer,
}

impl Node {
    /// Starts a node whose container credentials are valid for `seconds`.
    async fn start(seconds: u64) -> Self {
        let server = Server::of_key(KEY_ID, SECRET_KEY, Some(TOKEN)).await;
        let agent = HttpServer::start(move |_| Answer::ok(answer(KEY_ID, seconds))).await;
        let metadata = HttpServer::start(|seen| match &*seen.line {
            "PUT /latest/api/token" => Answer::ok("session"),
            "GET /latest/meta-data/iam/security-credentials/" => Answer::ok("node"),
            _ => Answer::ok(answer(KEY_ID, 3600)),
        });
        Self { server, agent, metadata: metadata.await }
    }

    fn credential(&self, set: &[(&'static str, &str)]) -> Credential {
        credential(variables(set).aws_ec2(&self.metadata.url).aws_ecs(&self.agent.url))
    }

    async fn connect(&self, set: &[(&'static str, &str)]) -> Result<DirectConnection, EstablishError> {
        let outcome = connect(&self.server, self.credential(set)).await;
        assert_eq!(self.metadata.seen().len(), 0, "the metadata service of the node was asked with {set:?}");
        outcome
    }

    /// Returns the message of the error that these variables cause.
    async fn refusal(&self, set: &[(&'static str, &str)]) -> String {
        let error = self.connect(set).await.err().unwrap_or_else(|| panic!("{set:?} is accepted"));
        assert_eq!(self.server.state().count("saslStart"), 0);
        shown(&error)
    }
}

#[tokio::test]
async fn full_uri_is_asked_with_the_current_token_of_its_file() {
    // The credentials expire so soon that they are fetched again each time.
    let node = Node::start(60).await;
    let file = TokenFile::new("pod-identity", "token-of-a-pod\n");
    let uri = format!("{}/v1/credentials?x=1", node.agent.url);
    let set = [(FULL_URI, &*uri), (AUTHORIZATION_FILE, file.path()), (AUTHORIZATION, "token-unused")];
    let endpoint = options(&node.server, node.credential(&set)).endpoint().unwrap();
    endpoint.connect().await.unwrap();
    std::fs::write(&file.0, "token-renewed").unwrap();
    endpoint.connect().await.unwrap();

    let seen = node.agent.seen();
    let tokens: Vec<_> = seen.iter().map(|seen| seen.header("authorization")).collect();
    assert_eq!(tokens, [Some("token-of-a-pod"), Some("token-renewed")]);
    for seen in seen {
        assert_eq!((&*seen.line, seen.header("accept")), ("GET /v1/credentials?x=1", Some("application/json")));
    }
    assert_eq!(node.metadata.seen().len(), 0);
}

#[tokio::test]
async fn token_variable_is_sent_unchanged() {
    let node = Node::start(3600).await;
    let uri = node.agent.url.replace("127.0.0.1", "localhost");
    for (set, expected) in [
        (&[(FULL_URI, &*uri), (AUTHORIZATION, "Basic token-a")][..], Some("Basic token-a")),
        (&[(RELATIVE_URI, "/x"), (AUTHORIZATION, "Basic token-b")][..], Some("Basic token-b")),
        (&[(FULL_URI, &*uri)][..], None),
        (&[(FULL_URI, &*uri), (AUTHORIZATION, ""), (AUTHORIZATION_FILE, "")][..], None),
    ] {
        node.connect(set).await.unwrap();
        assert_eq!(node.agent.seen().last().unwrap().header("authorization"), expected, "{set:?}");
    }
}

#[tokio::test]
async fn relative_uri_takes_precedence_over_a_full_uri() {
    let node = Node::start(3600).await;
    let uri = format!("{}/full", node.agent.url);
    node.connect(&[(FULL_URI, &*uri), (RELATIVE_URI, "/relative")]).await.unwrap();
    assert_eq!(node.agent.seen().last().unwrap().line, "GET /relative");
}

#[tokio::test]
async fn forbidden_uri_is_an_error_and_the_role_of_the_node_is_not_used() {
    let node = Node::start(3600).await;
    let file = TokenFile::new("refused", "token-of-a-pod");
    for uri in
        ["http://10.0.0.1/x", "http://169.254.169.254/x", "http://user:token-x@127.0.0.1/x", "ftp://127.0.0.1/x", "/x"]
    {
        let text = node.refusal(&[(FULL_URI, uri), (AUTHORIZATION_FILE, file.path())]).await;
        assert!(
            text.contains("AWS_CONTAINER_CREDENTIALS_FULL_URI must be an https URL") && text.contains("169.254.170.23"),
            "{text}"
        );
    }
    assert_eq!(node.agent.seen().len(), 0);
}

/// The operating system reads this host as 10.0.0.1, just as an attacker's host name might resolve to that address.
#[cfg(unix)]
#[tokio::test]
async fn host_must_resolve_to_a_local_address() {
    let node = Node::start(3600).await;
    let text = node.refusal(&[(FULL_URI, "http://0x0a000001/x"), (AUTHORIZATION, "token-of-a-pod")]).await;
    assert!(text.contains("AWS_CONTAINER_CREDENTIALS_FULL_URI must be an https URL"), "{text}");
    assert!(text.contains(", got a host with the address 10.0.0.1"), "{text}");
}

#[tokio::test]
async fn invalid_token_is_an_error_that_names_its_variable() {
    let node = Node::start(3600).await;
    let (empty, two) = (TokenFile::new("no-token", "\n"), TokenFile::new("two-lines", "token-a\r\nx-evil: 1"));
    let uri = node.agent.url.clone();
    for (variable, value, expected) in [
        (AUTHORIZATION_FILE, "/nonexistent/token", "No such file"),
        (AUTHORIZATION_FILE, empty.path(), "it is empty"),
        (AUTHORIZATION_FILE, two.path(), "must be one line of visible ASCII characters"),
        (AUTHORIZATION, "token-a\r\nx-evil: 1", "must be one line of visible ASCII characters"),
        (AUTHORIZATION, "token-ä", "must be one line of visible ASCII characters"),
    ] {
        // A usable token in the other variable is not used as a fallback.
        let others = (variable == AUTHORIZATION_FILE).then_some((AUTHORIZATION, "token-unused"));
        let set: Vec<_> = [(FULL_URI, &*uri), (variable, value)].into_iter().chain(others).collect();
        let text = node.refusal(&set).await;
        assert!(text.contains(variable) && text.contains(expected), "{text}");
    }
    assert_eq!(node.agent.seen().len(), 0);
}

#[tokio::test]
async fn failed_agent_is_an_error_and_the_role_of_the_node_is_not_used() {
    let node = Node::start(3600).await;
    let failing = HttpServer::start(|_| Answer::Says(500, String::new())).await;
    for (uri, expected) in
        [(&*failing.url, "its status must be 200 OK, got 500"), ("http://127.0.0.1:9", "connecting failed")]
    {
        let text = node.refusal(&[(FULL_URI, uri)]).await;
        assert!(text.contains("the agent of AWS_CONTAINER_CREDENTIALS_FULL_URI gave no credentials"), "{text}");
        assert!(text.contains(expected), "{text}");
    }
}
