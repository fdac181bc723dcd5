//! The prose tests for MONGODB-AWS, "Cached Credentials". Endpoints with the same options share a cache. Where the
//! specification clears the cache, a test creates a new endpoint. The specification's clients correspond to connections
//! here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use wharf::Endpoint;

use super::aws::{TOKEN, answer, credential};
use super::*;

/// A simulated ECS agent. The test sets its responses.
struct Agent {
    next: Arc<Mutex<(String, u64)>>,
    service: HttpServer,
    /// Additional environment variables.
    variables: Arc<Mutex<HashMap<&'static str, String>>>,
}

impl Agent {
    async fn start() -> Self {
        let next = Arc::new(Mutex::new((KEY_ID.to_owned(), 3600)));
        let answered = Arc::clone(&next);
        let service = HttpServer::start(move |_| {
            let (id, seconds) = answered.lock().unwrap().clone();
            Answer::ok(answer(&id, seconds))
        });
        let service = service.await;
        let agent = [("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/credentials".to_owned())];
        Self { next, service, variables: Arc::new(Mutex::new(HashMap::from(agent))) }
    }

    fn answer_with(&self, id: &str, seconds: u64) {
        *self.next.lock().unwrap() = (id.to_owned(), seconds);
    }

    fn set(&self, id: &str, key: &str, token: &str) {
        let keys = [("AWS_ACCESS_KEY_ID", id), ("AWS_SECRET_ACCESS_KEY", key), ("AWS_SESSION_TOKEN", token)];
        self.variables.lock().unwrap().extend(keys.map(|(name, value)| (name, value.to_owned())));
    }

    fn asked(&self) -> usize {
        self.service.seen().len()
    }

    /// Returns an endpoint with its own, empty cache.
    fn endpoint(&self, server: &Server) -> Endpoint {
        let variables = Arc::clone(&self.variables);
        let cloud = CloudEnvironment::default()
            .aws_ecs(&self.service.url)
            .variables(move |name| variables.lock().unwrap().get(name).map(Into::into));
        options(server, credential(cloud)).endpoint().unwrap()
    }
}

async fn run(endpoint: &Endpoint) -> Result<(), EstablishError> {
    let mut connection = endpoint.connect().await?;
    connection.run_command("test", &find()).await.unwrap();
    Ok(())
}

async fn start() -> (Server, Agent) {
    (Server::of_key(KEY_ID, SECRET_KEY, Some(TOKEN)).await, Agent::start().await)
}

#[tokio::test]
async fn credentials_are_kept_until_five_minutes_before_they_expire() {
    let (server, agent) = start().await;
    let endpoint = agent.endpoint(&server);
    // Credentials that expire within five minutes are fetched again.
    for (seconds, asked) in [(59, 1), (299, 2), (303, 3), (3600, 3)] {
        agent.answer_with(KEY_ID, seconds);
        run(&endpoint).await.unwrap();
        assert_eq!(agent.asked(), asked, "{seconds}");
    }
    // Clones of the endpoint share the credentials; another endpoint has its own.
    run(&endpoint.clone()).await.unwrap();
    assert_eq!(agent.asked(), 3);
    run(&agent.endpoint(&server)).await.unwrap();
    assert_eq!(agent.asked(), 4);
}

#[tokio::test]
async fn failure_clears_the_cache() {
    let (server, agent) = start().await;
    let endpoint = agent.endpoint(&server);
    agent.answer_with("AKIAPOISON", 3600);
    shown(&run(&endpoint).await.unwrap_err());
    assert_eq!(agent.asked(), 1);
    agent.answer_with(KEY_ID, 3600);
    run(&endpoint).await.unwrap();
    run(&endpoint).await.unwrap();
    assert_eq!(agent.asked(), 2);

    // Any failure to authenticate clears the cache, not only a refused proof.
    server.state().failures.push_back(("saslStart", 0));
    shown(&run(&endpoint).await.unwrap_err());
    run(&endpoint).await.unwrap();
    assert_eq!(agent.asked(), 3);
}

#[tokio::test]
async fn credentials_in_the_environment_are_read_each_time() {
    let (server, agent) = start().await;
    agent.set(KEY_ID, SECRET_KEY, TOKEN);
    let endpoint = agent.endpoint(&server);
    run(&endpoint).await.unwrap();
    assert_eq!(agent.asked(), 0);
    agent.set("AKIAWRONG", "wrong", "wrong");
    shown(&run(&endpoint).await.unwrap_err());
    agent.set(KEY_ID, SECRET_KEY, TOKEN);
    run(&endpoint).await.unwrap();
    assert_eq!(agent.asked(), 0);
}

#[tokio::test]
async fn cached_credentials_take_precedence_over_the_environment() {
    let (server, agent) = start().await;
    let endpoint = agent.endpoint(&server);
    agent.answer_with(KEY_ID, 60);
    run(&endpoint).await.unwrap();
    agent.set("AKIAWRONG", "wrong", "wrong");
    // The cached credentials have expired, and are renewed from their source.
    agent.answer_with(KEY_ID, 3600);
    run(&endpoint).await.unwrap();
    run(&endpoint).await.unwrap();
    assert_eq!(agent.asked(), 2);
}

#[tokio::test]
async fn concurrent_connections_do_not_wait_for_each_other() {
    let (server, agent) = start().await;
    let endpoint = agent.endpoint(&server);
    let (one, other) = tokio::join!(run(&endpoint), run(&endpoint));
    one.unwrap();
    other.unwrap();
    assert_eq!(agent.asked(), 2);
}
