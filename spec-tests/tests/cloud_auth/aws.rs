//! MONGODB-AWS: the sources of credentials, and how the client uses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use bson::{Document, doc};
use wharf::AwsCredentials;

use super::*;

pub const TOKEN: &str = "token-of-a-session";

pub fn credential(cloud: CloudEnvironment) -> Credential {
    Credential::of(Mechanism::MongoDbAws).cloud_environment(cloud)
}

/// Returns a response like those of ECS and EC2, with credentials that are valid for `seconds`.
pub fn answer(id: &str, seconds: u64) -> String {
    let expiration = SystemTime::now() + Duration::from_secs(seconds);
    let expiration = bson::DateTime::from_system_time(expiration).try_to_rfc3339_string().unwrap();
    format!(
        r#"{{"Code":"Success","LastUpdated":"2026-01-01T00:00:00Z","Type":"AWS-HMAC","AccessKeyId":"{id}",
            "SecretAccessKey":"{SECRET_KEY}","Token":"{TOKEN}","Expiration":"{expiration}"}}"#
    )
}

/// Starts a simulated EC2 metadata service, which calls `credentials` for each request for credentials.
async fn ec2(credentials: impl Fn() -> Answer + Send + Sync + 'static) -> HttpServer {
    HttpServer::start(move |seen| match &*seen.line {
        "PUT /latest/api/token" => Answer::ok("token-of-the-metadata\n"),
        "GET /latest/meta-data/iam/security-credentials/" => Answer::ok("app-role"),
        "GET /latest/meta-data/iam/security-credentials/app-role" => credentials(),
        _ => Answer::Says(404, String::new()),
    })
    .await
}

async fn server_with_token() -> Server {
    Server::of_key(KEY_ID, SECRET_KEY, Some(TOKEN)).await
}

/// A file with a token, which is removed on drop.
pub struct TokenFile(pub std::path::PathBuf);

impl TokenFile {
    pub fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("wharf-cloud-auth-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[tokio::test]
async fn credentials_come_from_the_environment() {
    let keys = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];
    let server = Server::of_key(KEY_ID, SECRET_KEY, None).await;
    let mut connection = connect(&server, credential(variables(&keys))).await.unwrap();
    connection.run_command("test", &find()).await.unwrap();
    assert_eq!(server.state().commands, ["hello", "saslStart", "saslContinue", "find"]);
    // No MONGODB-AWS message is sent along with hello.
    assert_eq!(server.state().speculations, [None]);

    let server = server_with_token().await;
    let [id, key] = keys;
    let cloud = variables(&[id, key, ("AWS_SESSION_TOKEN", TOKEN)]);
    assert!(connect(&server, credential(cloud)).await.is_ok());
}

#[tokio::test]
async fn incomplete_variables_are_an_error_that_names_the_missing_one() {
    let server = Server::start(Default::default()).await;
    for (set, missing) in [
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"),
    ] {
        let error = connect(&server, credential(variables(&[(set, "token-half")]))).await.unwrap_err();
        let expected = format!("the environment variable {missing} must be set where {set} is");
        assert!(shown(&error).contains(&expected), "{error}");
    }
    assert_eq!(server.state().count("saslStart"), 0);
}

#[tokio::test]
async fn server_refuses_a_wrong_key() {
    let server = Server::of_key(KEY_ID, SECRET_KEY, None).await;
    let keys = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", "token-wrong")];
    let error = connect(&server, credential(variables(&keys))).await.unwrap_err();
    assert!(shown(&error).contains("error 18"), "{error}");
}

#[tokio::test]
async fn ec2_is_asked_in_three_steps() {
    let (server, metadata) = (server_with_token().await, ec2(|| Answer::ok(answer(KEY_ID, 3600))).await);
    connect(&server, credential(variables(&[]).aws_ec2(&metadata.url))).await.unwrap();
    let seen = metadata.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[0].header("x-aws-ec2-metadata-token-ttl-seconds"), Some("30"));
    assert_eq!(seen[0].header("x-aws-ec2-metadata-token"), None);
    for seen in &seen[1..] {
        assert_eq!(seen.header("x-aws-ec2-metadata-token"), Some("token-of-the-metadata"));
    }
    assert_eq!(seen[0].header("host"), metadata.url.strip_prefix("http://"));
}

#[tokio::test]
async fn ecs_is_asked_if_its_variable_is_set() {
    let server = server_with_token().await;
    let agent = HttpServer::start(|_| Answer::ok(answer(KEY_ID, 3600))).await;
    for path in ["/v2/credentials/app?x=1", "v2/credentials/app?x=1"] {
        let cloud = variables(&[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", path)]).aws_ecs(&agent.url);
        connect(&server, credential(cloud)).await.unwrap();
        assert_eq!(agent.seen().last().unwrap().line, "GET /v2/credentials/app?x=1");
    }
}

#[tokio::test]
async fn web_identity_is_exchanged_for_credentials() {
    let server = server_with_token().await;
    let file = TokenFile::new("web-identity", "token-of-a-web-identity\n");
    // The service reports the expiration in seconds since the epoch. It may also wrap the specification's response in
    // additional objects.
    let expiration = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 3600;
    let credentials = format!(
        r#"{{"Credentials":{{"AccessKeyId":"{KEY_ID}","SecretAccessKey":"{SECRET_KEY}","SessionToken":"{TOKEN}",
            "Expiration":{expiration}.5}}}}"#
    );
    let wrapped =
        format!(r#"{{"AssumeRoleWithWebIdentityResponse":{{"AssumeRoleWithWebIdentityResult":{credentials}}}}}"#);
    let set = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.path()),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/app"),
        ("AWS_ROLE_SESSION_NAME", "app 1"),
        // A web identity takes precedence over this variable.
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/unused"),
    ];
    for (set, answer) in [(&set[..], credentials), (&set[..2], wrapped)] {
        let service = HttpServer::start(move |_| Answer::ok(answer.clone())).await;
        connect(&server, credential(variables(set).aws_sts(&service.url))).await.unwrap();
        let [seen] = &service.seen()[..] else { panic!("not asked once") };
        assert_eq!((&*seen.line, seen.header("accept")), ("POST /", Some("application/json")));
        assert_eq!(seen.header("content-type"), Some("application/x-www-form-urlencoded"));
        let fields: Vec<_> = seen.body.split('&').collect();
        assert_eq!(fields[..2], ["Action=AssumeRoleWithWebIdentity", "Version=2011-06-15"]);
        assert_eq!(fields[3], "RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fapp");
        assert_eq!(fields[4], "WebIdentityToken=token%2Dof%2Da%2Dweb%2Didentity");
        let name = fields[2].strip_prefix("RoleSessionName=").unwrap();
        match set.len() {
            2 => assert!(name.len() > 16 && name.starts_with("wharf%2D"), "{name}"),
            _ => assert_eq!(name, "app%201"),
        }
    }
    // Keys in environment variables take precedence over a web identity.
    let cloud = variables(&[set[0], set[1], ("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)]);
    assert!(shown(&connect(&server, credential(cloud)).await.unwrap_err()).contains("the network failed"));
}

#[tokio::test]
async fn web_identity_is_exchanged_in_the_region_of_the_environment() {
    let server = Server::start(Default::default()).await;
    let file = TokenFile::new("region", "token-of-a-web-identity");
    let path = file.path().to_owned();
    let cloud = CloudEnvironment::default().variables(move |name| match name {
        "AWS_WEB_IDENTITY_TOKEN_FILE" => Some(path.clone().into()),
        "AWS_ROLE_ARN" => Some("role".into()),
        // A host name cannot contain a space, so no request leaves this machine.
        "AWS_REGION" => Some("no region".into()),
        _ => None,
    });
    let text = shown(&connect(&server, credential(cloud)).await.unwrap_err());
    assert!(text.contains("AWS_REGION must be a region's name, such as eu-central-1, got \"no region\""), "{text}");
}

#[tokio::test]
async fn provider_of_the_application_comes_first() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let server = server_with_token().await;
    let credential = credential(variables(&[("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", "wrong")]))
        .aws_credential_provider(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok(AwsCredentials::new(KEY_ID, SECRET_KEY).session_token(TOKEN)) }
        });
    assert!(!format!("{credential:?}").contains("wrong"));
    let endpoint = options(&server, credential).endpoint().unwrap();
    for asked in 1..=2 {
        endpoint.connect().await.unwrap();
        // The client does not cache these credentials, because caching is up to the provider.
        assert_eq!(calls.load(Ordering::Relaxed), asked);
    }
    // `AwsCredentials` is itself a provider.
    let keys = AwsCredentials::new(KEY_ID, SECRET_KEY).session_token(TOKEN);
    let credential = Credential::of(Mechanism::MongoDbAws).aws_credential_provider(keys);
    let endpoint = options(&server, credential).endpoint().unwrap();
    for _ in 0..2 {
        endpoint.connect().await.unwrap();
    }
    let shown = format!("{:?}", AwsCredentials::new(KEY_ID, SECRET_KEY).session_token(TOKEN));
    assert!(!shown.contains(SECRET_KEY) && !shown.contains(TOKEN), "{shown}");
}

#[tokio::test]
async fn failed_provider_gives_its_reason() {
    let server = Server::start(Default::default()).await;
    let credential = credential(variables(&[])).aws_credential_provider(|| async { Err("no profile \"app\"".into()) });
    let error = connect(&server, credential).await.unwrap_err();
    assert!(shown(&error).ends_with("the AWS credential provider failed: no profile \"app\""), "{error}");
}

#[tokio::test]
async fn explicit_keys_are_refused() {
    let server = Server::start(Default::default()).await;
    let credential = Credential::new(KEY_ID, SECRET_KEY).mechanism(Mechanism::MongoDbAws);
    let error = options(&server, credential).endpoint().unwrap_err();
    assert_eq!(error.option, "username");
}

#[tokio::test]
async fn invalid_answer_of_a_service_is_named() {
    let server = Server::start(Default::default()).await;
    let with = |field: &str, value: serde_json::Value| {
        let mut answer: serde_json::Value = serde_json::from_str(&answer(KEY_ID, 3600)).unwrap();
        answer[field] = value;
        Answer::ok(answer.to_string())
    };
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "a".repeat(20_000)).into_bytes();
    let broken = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec();
    for (answer, expected) in [
        (Answer::Says(404, SECRET_KEY.to_owned()), "its status must be 200 OK, got 404 Not Found"),
        (Answer::Says(302, String::new()), "its status must be 200 OK, got 302 Found"),
        (Answer::ok(""), "the body of its answer must be a JSON object, got something else"),
        (Answer::ok("[]"), "must be a JSON object"),
        (Answer::ok(r#"{"Code":"Failed"}"#), "Code of its answer must be \"Success\", got something else"),
        (Answer::ok("{}"), "AccessKeyId of its answer is missing"),
        (with("AccessKeyId", "".into()), "AccessKeyId of its answer must be text, got something else"),
        (with("SecretAccessKey", 1.into()), "SecretAccessKey of its answer must be text, got something else"),
        (with("Token", serde_json::Value::Null), "Token of its answer must be text, got something else"),
        (
            with("Expiration", "tomorrow".into()),
            "Expiration of its answer must be a time such as 2026-01-31T12:00:00Z, got another text",
        ),
        (with("Expiration", (-1).into()), "Expiration of its answer must be seconds since 1970, got another number"),
        (with("Expiration", true.into()), "Expiration of its answer must be a time, got something else"),
        (Answer::ok("x".repeat(65_537)), "its answer is longer than 65536 bytes"),
        (Answer::Sends(long), "the exchange failed"),
        (Answer::Sends(broken), "the exchange failed"),
        (Answer::Sends(b"SSH-2.0-x\r\n".to_vec()), "the exchange failed"),
        (Answer::Sends(Vec::new()), "the exchange failed"),
    ] {
        let metadata = ec2(move || answer.clone()).await;
        let error = connect(&server, credential(variables(&[]).aws_ec2(&metadata.url))).await.unwrap_err();
        let text = shown(&error);
        assert!(text.contains("the metadata service of EC2 gave no credentials") && text.contains(expected), "{text}");
    }
    assert_eq!(server.state().count("saslStart"), 0);
}

#[tokio::test]
async fn session_and_role_must_be_one_line() {
    let server = Server::start(Default::default()).await;
    for (session, role, what) in
        [("", "role", "session"), ("a\nb", "role", "session"), ("session", " ", "role"), ("session", "röle", "role")]
    {
        let metadata = HttpServer::start(move |seen| match &*seen.line {
            "PUT /latest/api/token" => Answer::ok(session),
            _ => Answer::ok(role),
        });
        let metadata = metadata.await;
        let error = connect(&server, credential(variables(&[]).aws_ec2(&metadata.url))).await.unwrap_err();
        assert!(shown(&error).contains(&format!("gave no {what}: the text of its answer")), "{error}");
    }
    let nowhere = credential(variables(&[]));
    assert!(shown(&connect(&server, nowhere).await.unwrap_err()).contains("gave no session: connecting failed"));
    let no_url = credential(variables(&[]).aws_ec2("metadata"));
    assert!(shown(&connect(&server, no_url).await.unwrap_err()).contains("\"metadata\" is not the URL of a service"));
}

#[tokio::test]
async fn unusable_token_file_is_named() {
    let server = Server::start(Default::default()).await;
    let (empty, long) = (TokenFile::new("empty", " \n"), TokenFile::new("long", &"x".repeat(65_537)));
    let folder = std::env::temp_dir();
    for (path, expected) in [
        ("/nonexistent/token", "No such file"),
        (empty.path(), "it is empty"),
        (long.path(), "it is longer than 65536 bytes"),
        (folder.to_str().unwrap(), "it is not a regular file"),
    ] {
        let cloud = variables(&[("AWS_WEB_IDENTITY_TOKEN_FILE", path), ("AWS_ROLE_ARN", "role")]);
        let text = shown(&connect(&server, credential(cloud)).await.unwrap_err());
        assert!(text.contains(path) && text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn server_that_violates_the_conversation_is_rejected() {
    let keys = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];
    for host in ["", "sts..com", ".amazonaws.com", "sts.amazonaws.", &"a".repeat(256), "sts.a\nx-amz-date:b"] {
        let server = Server::of_key(KEY_ID, SECRET_KEY, None).await;
        server.state().host = host.to_owned();
        let error = connect(&server, credential(variables(&keys))).await.unwrap_err();
        assert!(shown(&error).contains("h (sts host)"), "{error}");
        assert_eq!(server.state().count("saslContinue"), 0);
    }
    let not_mine =
        doc! { "s": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![0; 64] }, "h": "h" };
    let replies: [(&str, Document, &str); 6] = [
        (
            "saslStart",
            server::sasl(not_mine, false),
            "s (server nonce) must be the client's nonce followed by the server's, got another",
        ),
        ("saslStart", server::sasl(doc! {}, false), "s (server nonce) is missing"),
        ("saslStart", server::sasl(doc! {}, true), "done must be false before the last message, got true"),
        ("saslStart", doc! { "ok": 1 }, "conversationId is missing"),
        ("saslContinue", server::sasl(doc! {}, false), "done must be true after the last message, got false"),
        ("saslContinue", doc! {}, "ok is missing"),
    ];
    for (command, reply, expected) in replies {
        let server = Server::of_key(KEY_ID, SECRET_KEY, None).await;
        server.state().replies.insert(command, reply);
        let error = connect(&server, credential(variables(&keys))).await.unwrap_err();
        assert!(shown(&error).contains(expected), "{error}");
    }
}
