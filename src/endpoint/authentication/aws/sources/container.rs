//! The agents that give containers their credentials: the ECS agent and the EKS Pod Identity agent.
//!
//! The specification describes the ECS agent ("ECS endpoint"). The EKS agent, and the token that either agent may require,
//! follow the container credential provider of the AWS SDKs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::{Method, Uri};
use zeroize::Zeroizing;

use super::{Question, Unavailable, read_token, text};
use crate::endpoint::http::HttpError;
use crate::endpoint::options::{AwsCredentials, CloudEnvironment, Secret};

const RELATIVE_URI: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
const FULL_URI: &str = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
const TOKEN: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
const TOKEN_FILE: &str = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";

/// The allowed URIs. Plain HTTP is allowed only for addresses at which no other machine can answer, because the token
/// and the credentials are sent unencrypted.
const ALLOWED_URI: &str = "an https URL, or an http URL of a loopback address, 169.254.170.2, 169.254.170.23 or \
                           [fd00:ec2::23]";

/// Requests credentials from the container's agent. Returns `None` if the environment names no agent.
pub(super) async fn from_agent(cloud: &CloudEnvironment) -> Option<Result<AwsCredentials, Unavailable>> {
    match agent(cloud) {
        Ok(Some(agent)) => Some(agent.ask(cloud).await),
        Ok(None) => None,
        Err(error) => Some(Err(error)),
    }
}

struct Agent {
    service: &'static str,
    base: String,
    path: String,
    /// Whether the agent must have a local address, because its URL comes from the environment and uses plain HTTP.
    must_be_local: bool,
}

/// Returns the agent that the environment names. The relative URI takes precedence, as in the SDKs.
fn agent(cloud: &CloudEnvironment) -> Result<Option<Agent>, Unavailable> {
    if let Some(path) = text(cloud, RELATIVE_URI)? {
        let path = format!("/{}", path.trim_start_matches('/'));
        let service = "the agent of ECS";
        return Ok(Some(Agent { service, base: cloud.aws_ecs.clone(), path, must_be_local: false }));
    }
    text(cloud, FULL_URI)?.map(|uri| parse(&uri)).transpose()
}

fn parse(text: &str) -> Result<Agent, Unavailable> {
    let refuse = || {
        // The part before an at sign may hold a password.
        let value = if text.contains('@') { "(not shown: it has an at-sign)" } else { text };
        Unavailable::Text { name: FULL_URI, value: value.to_owned(), allowed: ALLOWED_URI }
    };
    let uri: Uri = text.parse().map_err(|_| refuse())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else { return Err(refuse()) };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let is_allowed = match scheme {
        "https" => true,
        // The addresses of a name are checked when the name is resolved.
        "http" => host.parse().map_or(true, is_local),
        _ => false,
    };
    if !is_allowed || authority.as_str().contains('@') {
        return Err(refuse());
    }
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    // A query may directly follow the host.
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let (base, must_be_local) = (format!("{scheme}://{authority}"), scheme == "http");
    Ok(Agent { service: "the agent of AWS_CONTAINER_CREDENTIALS_FULL_URI", base, path, must_be_local })
}

impl Agent {
    async fn ask(&self, cloud: &CloudEnvironment) -> Result<AwsCredentials, Unavailable> {
        let Self { service, base, path, must_be_local } = self;
        let token = token(cloud).await?;
        let peers = must_be_local.then_some(is_local as fn(IpAddr) -> bool);
        let question = Question { service, what: "credentials", base, peers };
        let mut headers = vec![("accept", "application/json")];
        headers.extend(token.as_ref().map(|token| ("authorization", token.reveal())));
        let body =
            question.ask(Method::GET, path, &headers, Zeroizing::default()).await.map_err(|error| match error {
                Unavailable::Http { source: HttpError::Peer { address }, .. } => {
                    Unavailable::Address { name: FULL_URI, address, allowed: ALLOWED_URI }
                }
                other => other,
            })?;
        question.read_credentials(&mut question.read_json(&body)?, "Token")
    }
}

/// Returns whether this is a loopback address, or the fixed address of an ECS or EKS agent.
fn is_local(address: IpAddr) -> bool {
    const AGENTS: [IpAddr; 3] = [
        IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),
        IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)),
    ];
    address.is_loopback() || AGENTS.contains(&address)
}

/// Returns the value of the `Authorization` header. A token file is read each time, because its token is renewed from
/// time to time.
async fn token(cloud: &CloudEnvironment) -> Result<Option<Secret>, Unavailable> {
    let (name, token) = match cloud.variable(TOKEN_FILE) {
        Some(file) => (TOKEN_FILE, read_token(TOKEN_FILE, file).await?),
        None => match text(cloud, TOKEN)? {
            Some(token) => (TOKEN, Secret::new(token)),
            None => return Ok(None),
        },
    };
    // A line break would start another header.
    if !token.reveal().bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Err(Unavailable::Variable { name, allowed: "one line of visible ASCII characters" });
    }
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_goes_to_local_addresses_only() {
        for uri in [
            "http://127.0.0.1/x",
            "http://127.8.9.10:8000/x",
            "http://[::1]:80/x",
            "http://169.254.170.2/x",
            "http://169.254.170.23/x",
            "http://[fd00:ec2::23]/x",
            // The addresses of a name are checked later.
            "http://localhost/x",
            "https://credentials.example.com/x",
            "https://10.0.0.1/x",
        ] {
            let agent = parse(uri).ok().unwrap();
            assert_eq!((agent.base + &agent.path, agent.must_be_local), (uri.to_owned(), uri.starts_with("http:")));
        }
        for uri in [
            "http://10.0.0.1/x",
            // The EC2 metadata service is not a container agent.
            "http://169.254.169.254/x",
            "http://169.254.170.3/x",
            "http://[fd00:ec2::254]/x",
            "http://[::ffff:10.0.0.1]/x",
            "http://0.0.0.0/x",
            "http://[::]/x",
            "ftp://127.0.0.1/x",
            "unix:///x",
            "/x",
            "127.0.0.1/x",
            "http://",
            "http://127.0.0.1/x y",
            "http://127.0.0.1/\r\nx-evil: 1",
        ] {
            let error = parse(uri).err().unwrap_or_else(|| panic!("{uri} is accepted"));
            let error = error.to_string();
            assert!(error.contains(&format!("{FULL_URI} must be an https URL")), "{error}");
            assert!(error.ends_with(&format!(", got {uri:?}")), "{error}");
        }
        let error = parse("http://user:hidden@127.0.0.1/x").err().unwrap();
        assert!(!error.to_string().contains("hidden"), "{error}");
    }

    #[test]
    fn path_and_query_are_kept() {
        for (uri, path) in [
            ("http://127.0.0.1", "/"),
            ("http://127.0.0.1/", "/"),
            ("http://127.0.0.1?a=1", "/?a=1"),
            ("http://127.0.0.1/v1/credentials?a=1&b=2", "/v1/credentials?a=1&b=2"),
        ] {
            let agent = parse(uri).ok().unwrap();
            assert_eq!((&*agent.base, &*agent.path), ("http://127.0.0.1", path));
        }
    }
}
