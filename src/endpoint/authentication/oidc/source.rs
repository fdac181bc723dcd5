//! Sources of access tokens: the application's callback, or a built-in environment ("Built-in OIDC Environment
//! Integrations").

use std::ffi::OsString;
use std::time::Duration;

use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use thiserror::Error;
use zeroize::Zeroizing;

use super::super::token_file::{self, TokenFileError};
use crate::endpoint::deadline::ConnectTimeoutError;
use crate::endpoint::http::{HttpError, HttpRequest};
use crate::endpoint::options::{
    Callback, CallbackError, CallbackFuture, CloudEnvironment, Credential, InvalidOption, OidcContext, OidcToken,
    Secret,
};
use crate::text::milliseconds::Milliseconds;
use crate::text::printable::PeerText;

/// The file with the service account's token, unless a variable names another file.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Why there is no access token. Contains no secrets.
#[derive(Debug, Error)]
pub(in crate::endpoint::authentication) enum NoToken {
    #[error("the OIDC callback failed: {0}")]
    Callback(#[source] CallbackError),
    #[error("no access token was obtained within {}", Milliseconds(.0.limit))]
    Timeout(#[source] ConnectTimeoutError),
    #[error("the access token is empty")]
    Empty,
    #[error("{host} must not receive the tokens of human users: ALLOWED_HOSTS is {allowed:?}")]
    Host { host: String, allowed: String },
    #[error("the environment variable OIDC_TOKEN_FILE is not set, but ENVIRONMENT is test")]
    NoFile,
    #[error(transparent)]
    File(#[from] TokenFileError),
    #[error("{service} gave no access token: {source}")]
    Http { service: &'static str, source: HttpError },
    #[error("{service} gave no access token: its status must be 200 OK, got {status}; it says \"{body}\"")]
    Status { service: &'static str, status: StatusCode, body: PeerText },
    #[error("{service} gave no access token: {field} of its answer must be {allowed}")]
    Answer { service: &'static str, field: &'static str, allowed: &'static str },
}

impl NoToken {
    /// Converts an error from a callback. Errors from built-in sources already have this type.
    pub fn of_callback(error: CallbackError) -> Self {
        match error.downcast() {
            Ok(error) => *error,
            Err(error) => Self::Callback(error),
        }
    }
}

/// A source of access tokens.
#[derive(Debug)]
pub(super) enum Source {
    /// The application's callback, which may involve a human.
    Callback(Callback),
    /// The file that `OIDC_TOKEN_FILE` names.
    Test(CloudEnvironment),
    /// Azure's metadata service.
    Azure { cloud: CloudEnvironment, resource: String },
    /// Google Cloud's metadata service.
    Gcp { cloud: CloudEnvironment, resource: String },
    /// The token of the Kubernetes service account.
    Kubernetes(CloudEnvironment),
}

impl Source {
    /// # Errors
    ///
    /// [`InvalidOption`] if there is not exactly one source, or if the source is incomplete.
    pub fn new(credential: &Credential) -> Result<Self, InvalidOption> {
        const ENVIRONMENT: &str = "ENVIRONMENT of authMechanismProperties";
        let environment = credential.property("ENVIRONMENT").map(Secret::reveal);
        credential.oidc.validate(environment)?;
        let oidc = &credential.oidc;
        if let Some(callback) = oidc.callback.as_ref().or(oidc.human_callback.as_ref()) {
            return Ok(Self::Callback(callback.clone()));
        }
        let cloud = credential.cloud.clone();
        let resource = || match credential.property("TOKEN_RESOURCE") {
            Some(resource) => Ok(resource.reveal().to_owned()),
            None => Err(InvalidOption::missing("TOKEN_RESOURCE of authMechanismProperties", "with this ENVIRONMENT")),
        };
        match environment {
            Some("test") => Ok(Self::Test(cloud)),
            Some("azure") => Ok(Self::Azure { cloud, resource: resource()? }),
            Some("gcp") => Ok(Self::Gcp { cloud, resource: resource()? }),
            Some("k8s") => Ok(Self::Kubernetes(cloud)),
            Some(other) => Err(InvalidOption::new(ENVIRONMENT, "azure, gcp or k8s", other)),
            None => Err(InvalidOption::missing(ENVIRONMENT, "with authMechanism=MONGODB-OIDC without a callback")),
        }
    }

    /// Obtains an access token, without caching it.
    pub fn token(&self, context: OidcContext) -> CallbackFuture<'_, OidcToken> {
        let built_in = async |token: Result<Secret, NoToken>| Ok(OidcToken::new(token?));
        match self {
            Self::Callback(Callback(callback)) => callback.access_token(context),
            Self::Test(cloud) => Box::pin(async move { built_in(from_test_file(cloud).await).await }),
            Self::Kubernetes(cloud) => Box::pin(async move { built_in(from_service_account(cloud).await).await }),
            Self::Azure { cloud, resource } => {
                Box::pin(async move { built_in(from_azure(cloud, resource, &context).await).await })
            }
            Self::Gcp { cloud, resource } => {
                Box::pin(async move { built_in(from_gcp(cloud, resource, &context).await).await })
            }
        }
    }
}

async fn from_test_file(cloud: &CloudEnvironment) -> Result<Secret, NoToken> {
    let path = cloud.variable("OIDC_TOKEN_FILE").ok_or(NoToken::NoFile)?;
    Ok(token_file::read(path).await?)
}

async fn from_service_account(cloud: &CloudEnvironment) -> Result<Secret, NoToken> {
    let variables = ["AZURE_FEDERATED_TOKEN_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE"];
    let path = variables.into_iter().find_map(|name| cloud.variable(name));
    Ok(token_file::read(path.unwrap_or_else(|| OsString::from(SERVICE_ACCOUNT))).await?)
}

async fn from_azure(cloud: &CloudEnvironment, resource: &str, context: &OidcContext) -> Result<Secret, NoToken> {
    const SERVICE: &str = "the metadata service of Azure";
    let encode = |text| utf8_percent_encode(text, NON_ALPHANUMERIC);
    let mut path = format!("/metadata/identity/oauth2/token?api-version=2018-02-01&resource={}", encode(resource));
    if let Some(client) = &context.username {
        path.push_str("&client_id=");
        path.extend(encode(client));
    }
    let headers = [("accept", "application/json"), ("metadata", "true")];
    let body = ask(SERVICE, &cloud.azure, &path, &headers, context.timeout).await?;
    let answer = |field, allowed| NoToken::Answer { service: SERVICE, field, allowed };
    let mut value: Value = serde_json::from_slice(&body).map_err(|_| answer("the body", "a JSON object"))?;
    match value.get_mut("access_token").map(Value::take) {
        Some(Value::String(token)) if !token.is_empty() => Ok(Secret::new(token)),
        _ => Err(answer("access_token", "text")),
    }
}

async fn from_gcp(cloud: &CloudEnvironment, resource: &str, context: &OidcContext) -> Result<Secret, NoToken> {
    const SERVICE: &str = "the metadata service of Google's cloud";
    let resource = utf8_percent_encode(resource, NON_ALPHANUMERIC);
    let path = format!("/computeMetadata/v1/instance/service-accounts/default/identity?audience={resource}");
    let body = ask(SERVICE, &cloud.gcp, &path, &[("metadata-flavor", "Google")], context.timeout).await?;
    match std::str::from_utf8(&body).map(str::trim_ascii) {
        Ok(token) if !token.is_empty() => Ok(Secret::new(token)),
        _ => Err(NoToken::Answer { service: SERVICE, field: "the body", allowed: "a token" }),
    }
}

async fn ask(
    service: &'static str,
    base: &str,
    path: &str,
    headers: &[(&'static str, &str)],
    limit: Duration,
) -> Result<Zeroizing<Vec<u8>>, NoToken> {
    let request =
        HttpRequest { method: Method::GET, base, path, headers, body: Zeroizing::default(), peers: None, limit };
    let answer = request.send().await.map_err(|source| NoToken::Http { service, source })?;
    match answer.status {
        StatusCode::OK => Ok(answer.body),
        status => {
            let body = PeerText::of(String::from_utf8_lossy(&answer.body).trim());
            Err(NoToken::Status { service, status, body })
        }
    }
}
