//! Sources of AWS credentials (Authentication specification, "Credential Fetching Order").
//!
//! `AWS_CONTAINER_CREDENTIALS_FULL_URI` goes beyond the specification. Without it, a pod on EKS would get the node's
//! role instead of the pod's role. Profiles and shared files are not supported: an application that needs them can
//! supply the provider from an AWS SDK.
//!
//! A variable that is set but unusable is an error, because the next source would yield a different identity.

use std::ffi::OsString;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use thiserror::Error;
use zeroize::Zeroizing;

use super::super::token_file::{self, TokenFileError};
use crate::endpoint::http::{HttpError, HttpRequest, Peers};
use crate::endpoint::options::{AwsCredentials, CallbackError, CloudEnvironment, Secret};
use crate::endpoint::wire::auth::aws::Timestamp;

mod container;
mod security_token_service;

/// How long a service may take to answer each request.
const LIMIT: Duration = Duration::from_secs(10);

/// The lifetime, in seconds, of the session with the EC2 metadata service. The session is used for only two requests.
const SESSION_SECONDS: &str = "30";

/// Why there are no credentials. Contains no secrets.
#[derive(Debug, Error)]
pub(in crate::endpoint::authentication) enum Unavailable {
    #[error("the AWS credential provider failed: {0}")]
    Custom(#[source] CallbackError),
    #[error("the operating system has no random numbers: {0}")]
    Random(#[source] getrandom::Error),
    #[error("the environment variable {name} must be {allowed}")]
    Variable { name: &'static str, allowed: &'static str },
    #[error("the environment variable {name} must be {allowed}, got {value:?}")]
    Text { name: &'static str, value: String, allowed: &'static str },
    #[error("the environment variable {name} must be {allowed}, got a host with the address {address}")]
    Address { name: &'static str, address: IpAddr, allowed: &'static str },
    #[error("{name}: {source}")]
    File { name: &'static str, source: TokenFileError },
    #[error("{service} gave no {what}: {source}")]
    Http { service: &'static str, what: &'static str, source: HttpError },
    #[error("{service} gave no {what}: its status must be 200 OK, got {status}")]
    Status { service: &'static str, what: &'static str, status: StatusCode },
    #[error("{service} gave no {what}: {field} of its answer is missing")]
    Missing { service: &'static str, what: &'static str, field: &'static str },
    #[error("{service} gave no {what}: {field} of its answer must be {allowed}, got {value}")]
    Answer {
        service: &'static str,
        what: &'static str,
        field: &'static str,
        value: &'static str,
        allowed: &'static str,
    },
}

/// Returns the credentials in the environment variables, or `None` if there are none.
pub(super) fn from_variables(cloud: &CloudEnvironment) -> Result<Option<AwsCredentials>, Unavailable> {
    const ID: &str = "AWS_ACCESS_KEY_ID";
    const KEY: &str = "AWS_SECRET_ACCESS_KEY";
    const TOKEN: &str = "AWS_SESSION_TOKEN";
    let (id, key, token) = (text(cloud, ID)?, text(cloud, KEY)?, text(cloud, TOKEN)?);
    let missing = |name, allowed| Err(Unavailable::Variable { name, allowed });
    match (id, key, token) {
        (None, None, None) => Ok(None),
        (Some(id), Some(key), token) => {
            Ok(Some(AwsCredentials { session_token: token.map(Secret::new), ..AwsCredentials::new(id, key) }))
        }
        (Some(_), None, _) => missing(KEY, "set where AWS_ACCESS_KEY_ID is"),
        (None, Some(_), _) => missing(ID, "set where AWS_SECRET_ACCESS_KEY is"),
        (None, None, Some(_)) => missing(ID, "set where AWS_SESSION_TOKEN is"),
    }
}

/// Obtains credentials from the service that the environment selects.
pub(super) async fn from_service(cloud: &CloudEnvironment) -> Result<AwsCredentials, Unavailable> {
    let file = cloud.variable(WEB_IDENTITY_TOKEN_FILE);
    if let (Some(file), Some(role)) = (file, text(cloud, "AWS_ROLE_ARN")?) {
        return from_web_identity(cloud, file, &role).await;
    }
    match container::from_agent(cloud).await {
        Some(outcome) => outcome,
        None => from_ec2(cloud).await,
    }
}

/// The variable that names a file with a token.
const WEB_IDENTITY_TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";

async fn read_token(name: &'static str, file: OsString) -> Result<Secret, Unavailable> {
    token_file::read(file).await.map_err(|source| Unavailable::File { name, source })
}

fn text(cloud: &CloudEnvironment, name: &'static str) -> Result<Option<String>, Unavailable> {
    let refuse = |_| Unavailable::Variable { name, allowed: "text in UTF-8" };
    cloud.variable(name).map(OsString::into_string).transpose().map_err(refuse)
}

/// A service, and what to ask it for.
#[derive(Clone, Copy)]
struct Question<'a> {
    service: &'static str,
    what: &'static str,
    base: &'a str,
    /// The addresses allowed for the service; `None` allows all.
    peers: Option<Peers>,
}

impl Question<'_> {
    async fn ask(
        self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Zeroizing<Vec<u8>>,
    ) -> Result<Zeroizing<Vec<u8>>, Unavailable> {
        let Self { service, what, base, peers } = self;
        let request = HttpRequest { method, base, path, headers, body, peers, limit: LIMIT };
        let answer = request.send().await.map_err(|source| Unavailable::Http { service, what, source })?;
        match answer.status {
            StatusCode::OK => Ok(answer.body),
            // The error omits the body, because the body may repeat the request.
            status => Err(Unavailable::Status { service, what, status }),
        }
    }

    fn missing(self, field: &'static str) -> Unavailable {
        Unavailable::Missing { service: self.service, what: self.what, field }
    }

    fn refuse(self, field: &'static str, value: &'static str, allowed: &'static str) -> Unavailable {
        Unavailable::Answer { service: self.service, what: self.what, field, value, allowed }
    }

    /// Reads a short text that becomes part of the next request.
    fn read_line(self, body: &[u8]) -> Result<Zeroizing<String>, Unavailable> {
        let line = std::str::from_utf8(body).unwrap_or("").trim_ascii();
        if line.is_empty() || !line.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(self.refuse("the text", "something else", "one line of visible ASCII characters"));
        }
        Ok(Zeroizing::new(line.to_owned()))
    }

    fn read_json(self, body: &[u8]) -> Result<Value, Unavailable> {
        match serde_json::from_slice(body) {
            Ok(value @ Value::Object(_)) => Ok(value),
            _ => Err(self.refuse("the body", "something else", "a JSON object")),
        }
    }

    /// Takes the credentials out of a JSON object.
    fn read_credentials(self, value: &mut Value, token: &'static str) -> Result<AwsCredentials, Unavailable> {
        let mut take = |field: &'static str| match value.get_mut(field).map(Value::take) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text),
            None => Err(self.missing(field)),
            Some(_) => Err(self.refuse(field, "something else", "text")),
        };
        let (id, key, token) = (take("AccessKeyId")?, Secret::new(take("SecretAccessKey")?), Secret::new(take(token)?));
        let seconds = match value.get("Expiration") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => {
                let allowed = "a time such as 2026-01-31T12:00:00Z";
                let time = Timestamp::parse(text).ok_or_else(|| self.refuse("Expiration", "another text", allowed))?;
                Some(time.0)
            }
            // The Security Token Service returns seconds since 1970.
            Some(Value::Number(number)) => {
                let allowed = "seconds since 1970";
                let seconds = number.as_f64().filter(|seconds| (0.0..1e11).contains(seconds));
                Some(seconds.ok_or_else(|| self.refuse("Expiration", "another number", allowed))? as u64)
            }
            Some(_) => return Err(self.refuse("Expiration", "something else", "a time")),
        };
        let expiration = match seconds.map(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds))) {
            Some(None) => return Err(self.refuse("Expiration", "a later one", "a time that the clock can show")),
            Some(expiration) => expiration,
            None => None,
        };
        Ok(AwsCredentials { expiration, ..AwsCredentials::new(id, key).session_token(token) })
    }
}

/// Requests credentials from version 2 of the EC2 metadata service ("EC2 endpoint").
async fn from_ec2(cloud: &CloudEnvironment) -> Result<AwsCredentials, Unavailable> {
    const ROLES: &str = "/latest/meta-data/iam/security-credentials/";
    let question =
        Question { service: "the metadata service of EC2", what: "session", base: &cloud.aws_ec2, peers: None };
    let seconds = [("x-aws-ec2-metadata-token-ttl-seconds", SESSION_SECONDS)];
    let body = question.ask(Method::PUT, "/latest/api/token", &seconds, Zeroizing::default()).await?;
    let session = question.read_line(&body)?;
    let headers = [("x-aws-ec2-metadata-token", session.as_str())];

    let question = Question { what: "role", ..question };
    let role = question.read_line(&question.ask(Method::GET, ROLES, &headers, Zeroizing::default()).await?)?;

    let question = Question { what: "credentials", ..question };
    let path = format!("{ROLES}{}", utf8_percent_encode(&role, PATH_SEGMENT));
    let mut value = question.read_json(&question.ask(Method::GET, &path, &headers, Zeroizing::default()).await?)?;
    match value.get("Code") {
        None | Some(Value::Null) => {}
        Some(Value::String(code)) if code == "Success" => {}
        Some(_) => return Err(question.refuse("Code", "something else", "\"Success\"")),
    }
    question.read_credentials(&mut value, "Token")
}

/// The characters that are encoded in a path. Role names consist of characters that need no encoding.
const PATH_SEGMENT: &percent_encoding::AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'+').remove(b'=').remove(b'@');

/// Exchanges a token from another identity provider ("AssumeRoleWithWebIdentity").
async fn from_web_identity(
    cloud: &CloudEnvironment,
    file: OsString,
    role: &str,
) -> Result<AwsCredentials, Unavailable> {
    let token = read_token(WEB_IDENTITY_TOKEN_FILE, file).await?;
    let name = match text(cloud, "AWS_ROLE_SESSION_NAME")? {
        Some(name) => name,
        None => random_name()?,
    };
    let base = security_token_service::url(cloud)?;
    let question = Question { service: "the Security Token Service", what: "credentials", base: &base, peers: None };
    let headers = [("accept", "application/json"), ("content-type", "application/x-www-form-urlencoded")];
    let body = question.ask(Method::POST, "/", &headers, web_identity_form(&name, role, &token)).await?;
    let mut value = question.read_json(&body)?;
    // The service nests the object from the specification inside other objects.
    let wrapped = "/AssumeRoleWithWebIdentityResponse/AssumeRoleWithWebIdentityResult/Credentials";
    let path = if value.pointer(wrapped).is_some() { wrapped } else { "/Credentials" };
    match value.pointer_mut(path) {
        Some(credentials @ Value::Object(_)) => question.read_credentials(credentials, "SessionToken"),
        _ => Err(question.missing("Credentials")),
    }
}

/// Returns the parameters as the body of a request. In a URL, they might be logged.
fn web_identity_form(name: &str, role: &str, token: &Secret) -> Zeroizing<Vec<u8>> {
    // Encoding turns one byte into at most three. A buffer that had to grow would leave a copy of the token in memory.
    let length = 128 + 3 * (name.len() + role.len() + token.reveal().len());
    let mut form = Zeroizing::new(Vec::with_capacity(length));
    let fields = [("RoleSessionName", name), ("RoleArn", role), ("WebIdentityToken", token.reveal())];
    form.extend_from_slice(b"Action=AssumeRoleWithWebIdentity&Version=2011-06-15");
    for (field, value) in fields {
        form.push(b'&');
        form.extend_from_slice(field.as_bytes());
        form.push(b'=');
        for part in utf8_percent_encode(value, NON_ALPHANUMERIC) {
            form.extend_from_slice(part.as_bytes());
        }
    }
    form
}

fn random_name() -> Result<String, Unavailable> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(Unavailable::Random)?;
    let mut name = "wharf-".to_owned();
    for byte in bytes {
        write!(name, "{byte:02x}").expect("BUG: a String takes all text");
    }
    Ok(name)
}
