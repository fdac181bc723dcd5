//! The mechanism MONGODB-OIDC (Authentication specification, "MONGODB-OIDC").
//!
//! All connections share one access token ([`tokens`]), which comes from the application's callback or from an
//! environment ([`source`]). A connection keeps the token that it was authenticated with. If the server later refuses
//! that token, only that token is dropped.

use std::error::Error as StdError;
use std::time::Duration;

use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf};
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::{Cause, Conversation};
use crate::endpoint::deadline::{ConnectTimeoutError, Deadline};
use crate::endpoint::host_name;
use crate::endpoint::options::{
    CallbackFuture, DEFAULT_ALLOWED_HOSTS, Host, IdpInfo, InvalidOption, Mechanism, OidcContext, OidcToken, Options,
    Secret, ServerAddress,
};
use crate::endpoint::wire::auth::oidc as messages;
use crate::endpoint::wire::auth::sasl::{self, SaslReply};
use crate::pool::runtime::PerProcess;

mod source;
mod tokens;

use source::{NoToken, Source};
use tokens::{Limit, Tokens};

pub(super) use tokens::Token;

/// The database for users that are not stored on the server.
const DATABASE: &str = "$external";

/// The version of [`OidcContext`].
const VERSION: u32 = 1;

/// How long a callback that involves a human may take.
const HUMAN_LIMIT: ConnectTimeoutError = limit_of_callback(Duration::from_secs(5 * 60));

/// How long any other callback may take, if `timeoutMS` is not set.
const MACHINE_LIMIT: ConnectTimeoutError = limit_of_callback(Duration::from_secs(60));

const fn limit_of_callback(limit: Duration) -> ConnectTimeoutError {
    ConnectTimeoutError::new("the limit of an OIDC callback", limit)
}

/// The server's error code for a token that it does not accept (AuthenticationError).
const NOT_ACCEPTED: i32 = 18;

/// How many times a human's shared token is tried before the server is asked again for the token issuer. A token that
/// another connection has just obtained is worth another attempt, but the number of attempts must be limited.
const ROUNDS: u32 = 3;

/// The state that all connections share for MONGODB-OIDC.
#[derive(Debug)]
pub(super) struct Oidc {
    username: Option<String>,
    source: Source,
    /// The hosts that may receive a human's tokens; `None` if no human is involved.
    allowed_hosts: Option<Vec<String>>,
    /// `timeoutMS`.
    timeout: Option<Duration>,
    /// A forked child has separate state. The callback that the parent awaits never completes in the child. An issuer
    /// may also regard a refresh token as stolen if two processes use it.
    tokens: PerProcess<Tokens>,
}

impl Oidc {
    /// # Errors
    ///
    /// [`InvalidOption`] if there is neither a callback nor an environment, if there are both, or if the environment is
    /// incomplete.
    pub fn new(options: &Options) -> Result<Self, InvalidOption> {
        let credential = options.credential.as_ref().expect("BUG: an authenticator is made of a credential");
        let hosts = || match &credential.oidc.allowed_hosts {
            Some(hosts) => hosts.iter().map(|host| pattern(host)).collect(),
            None => Ok(DEFAULT_ALLOWED_HOSTS.map(str::to_owned).to_vec()),
        };
        Ok(Self {
            username: credential.username.clone(),
            source: Source::new(credential)?,
            allowed_hosts: credential.oidc.human_callback.is_some().then(hosts).transpose()?,
            timeout: options.timeout,
            tokens: PerProcess::default(),
        })
    }

    /// Returns the command to send along with hello (`saslStart`, with `db`), and the token that it carries. Returns `None`
    /// if there is no token yet, or no token for this server.
    pub fn speculation(&self, address: &ServerAddress) -> Option<(RawDocumentBuf, Token)> {
        self.require_allowed(address).ok()?;
        let token = self.tokens.get().current()?;
        let mut command = start(&token);
        command.append(cstr!("db"), DATABASE);
        Some((command, token))
    }

    /// Authenticates a new connection. `speculated` holds the token that was sent along with hello, and the server's
    /// answer to it.
    pub async fn authenticate(
        &self,
        conversation: &mut Conversation<'_>,
        speculated: Option<(Token, &RawDocument)>,
    ) -> Result<Token, Cause> {
        self.require_allowed(conversation.address).map_err(provider)?;
        match speculated {
            // If the server refused the token here, the token is kept: the conversation that follows finds out why.
            Some((token, reply)) if SaslReply::read(reply).is_ok_and(|reply| reply.done) => Ok(token),
            _ if self.allowed_hosts.is_some() => self.authenticate_by_human(conversation).await,
            _ => self.authenticate_by_machine(conversation).await,
        }
    }

    /// Reauthenticates a connection whose token the server no longer accepts (error 391).
    pub async fn reauthenticate(&self, conversation: &mut Conversation<'_>, token: &mut Token) -> Result<(), Cause> {
        self.tokens.get().invalidate(token);
        *token = self.authenticate(conversation, None).await?;
        Ok(())
    }

    async fn authenticate_by_machine(&self, conversation: &mut Conversation<'_>) -> Result<Token, Cause> {
        let (token, is_new) = self.token(conversation, None, None).await?;
        let outcome = one_step(conversation, &token).await;
        if is_new || !is_not_accepted(&outcome) {
            return outcome.map(|()| token);
        }
        self.tokens.get().invalidate(&token);
        let (token, _) = self.token(conversation, None, None).await?;
        one_step(conversation, &token).await.map(|()| token)
    }

    async fn authenticate_by_human(&self, conversation: &mut Conversation<'_>) -> Result<Token, Cause> {
        for _ in 0..ROUNDS {
            if let Some(token) = self.tokens.get().current() {
                let outcome = one_step(conversation, &token).await;
                if !is_not_accepted(&outcome) {
                    return outcome.map(|()| token);
                }
                self.tokens.get().invalidate(&token);
            }
            let Some((refresh_token, idp_info)) = self.tokens.get().refresh() else { break };
            let (token, _) = self.token(conversation, Some(idp_info), Some(refresh_token)).await?;
            let outcome = one_step(conversation, &token).await;
            if !is_not_accepted(&outcome) {
                return outcome.map(|()| token);
            }
            self.tokens.get().invalidate_with_refresh(&token);
        }
        self.two_steps(conversation).await
    }

    /// Asks the server for the token issuer, obtains a token, and sends it to the server.
    async fn two_steps(&self, conversation: &mut Conversation<'_>) -> Result<Token, Cause> {
        let payload = messages::principal(self.username.as_deref());
        let command = sasl::start(Mechanism::MongoDbOidc, payload.as_bytes(), None);
        let reply = conversation.run(DATABASE, &command).await?.to_owned();
        let reply = SaslReply::read(&reply)?;
        reply.require_done(false)?;
        let idp_info = messages::read_idp(reply.payload)?;
        // The refresh token must not be passed on here, because another issuer may have issued it.
        let (token, _) = self.token(conversation, Some(idp_info), None).await?;

        let payload = Zeroizing::new(messages::token(token.reveal()).into_bytes());
        let command = sasl::advance(&reply.conversation_id, &payload);
        finish(conversation, command).await.map(|()| token)
    }

    /// Returns the shared token, and whether this call obtained it.
    ///
    /// The time to obtain a token counts towards `connectTimeoutMS` only if a single limit covers all steps:
    /// `timeoutMS` or, when the connection authenticates again, the command's timeout. The time that a human takes
    /// never counts.
    async fn token(
        &self,
        conversation: &mut Conversation<'_>,
        idp_info: Option<IdpInfo>,
        refresh_token: Option<Secret>,
    ) -> Result<(Token, bool), Cause> {
        let started = Instant::now();
        let (time, counts) = self.limit(conversation.deadline);
        let issuer = idp_info.clone();
        let call = |timeout| -> CallbackFuture<'_, OidcToken> {
            let username = self.username.clone();
            self.source.token(OidcContext { timeout, version: VERSION, username, idp_info, refresh_token })
        };
        let outcome = self.tokens.get().current_or(Limit { time, together: counts }, issuer, call).await;
        if !counts {
            conversation.deadline = conversation.deadline.later_by(started.elapsed());
        }
        outcome.map_err(provider)
    }

    /// Returns how long a callback may take, and whether that time counts towards `connectTimeoutMS`.
    fn limit(&self, deadline: Deadline) -> (ConnectTimeoutError, bool) {
        match (&self.allowed_hosts, self.timeout) {
            (Some(_), _) => (HUMAN_LIMIT, false),
            (None, None) if !deadline.is_whole() => (MACHINE_LIMIT, false),
            (None, timeout) => {
                let timeout = timeout.filter(|timeout| !timeout.is_zero());
                let timeout = timeout.map(|timeout| ConnectTimeoutError::new("timeoutMS", timeout));
                let limit = [timeout, deadline.rest()].into_iter().flatten().min_by_key(|limit| limit.limit);
                (limit.unwrap_or(MACHINE_LIMIT), true)
            }
        }
    }

    /// Refuses a server that must not receive a human's tokens ("ALLOWED_HOSTS").
    fn require_allowed(&self, address: &ServerAddress) -> Result<(), NoToken> {
        let Some(allowed) = &self.allowed_hosts else { return Ok(()) };
        let is_allowed = |host: &str| allowed.iter().any(|pattern| matches(pattern, host));
        match &address.host {
            Host::Tcp { name, .. } if host_name::canonical(name).is_some_and(|name| is_allowed(&name)) => Ok(()),
            _ => Err(NoToken::Host { host: address.text.to_string(), allowed: allowed.join(", ") }),
        }
    }
}

/// Converts a pattern from `ALLOWED_HOSTS` to the form in which names are compared.
fn pattern(host: &str) -> Result<String, InvalidOption> {
    let (any, name) = match host.strip_prefix('*') {
        Some(end) => ("*", end),
        None => ("", host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)),
    };
    let name = host_name::canonical(name).ok_or_else(|| {
        InvalidOption::new(
            "ALLOWED_HOSTS",
            "names in ASCII (xn--… for other characters) or IP addresses",
            format!("{host:?}"),
        )
    })?;
    Ok(format!("{any}{name}"))
}

/// Returns whether a pattern matches the host. Both must be in the form in which names are compared.
fn matches(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        // The period stays, so that `*.example.com` matches neither `example.com` nor `badexample.com`.
        Some(end) if end.starts_with('.') => host.len() > end.len() && host.ends_with(end),
        _ => host == pattern,
    }
}

fn start(token: &Token) -> RawDocumentBuf {
    let payload = Zeroizing::new(messages::token(token.reveal()).into_bytes());
    sasl::start(Mechanism::MongoDbOidc, &payload, None)
}

/// Sends a token to the server.
async fn one_step(conversation: &mut Conversation<'_>, token: &Token) -> Result<(), Cause> {
    finish(conversation, start(token)).await
}

/// Runs the last command of a conversation, which carries a token.
async fn finish(conversation: &mut Conversation<'_>, command: RawDocumentBuf) -> Result<(), Cause> {
    SaslReply::read(conversation.run_secret(DATABASE, command).await?)?.require_done(true)?;
    Ok(())
}

fn is_not_accepted(outcome: &Result<(), Cause>) -> bool {
    matches!(outcome, Err(Cause::Refused(error)) if error.code == NOT_ACCEPTED)
}

/// Returns whether a token could not be obtained in time.
pub(super) fn is_timeout(error: &(dyn StdError + Send + Sync + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(NoToken::Timeout(_)))
}

fn provider(error: NoToken) -> Cause {
    Cause::Provider(Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn child_forked_while_a_callback_is_awaited_calls_its_own() {
        use crate::endpoint::options::Credential;
        use crate::pool::runtime::in_child;
        use std::future::{Future, pending};
        use std::pin::pin;
        use std::task::{Context, Waker};

        let callback = |_| -> CallbackFuture<'static, OidcToken> { Box::pin(pending()) };
        let credential =
            Credential { mechanism: Some(Mechanism::MongoDbOidc), ..Credential::default() }.oidc_callback(callback);
        let mut options = Options::new(["localhost"]).unwrap();
        options.credential = Some(credential);
        let oidc = Oidc::new(&options).unwrap();
        let limit = Limit { time: MACHINE_LIMIT, together: false };
        let obtain = |call: fn() -> CallbackFuture<'static, OidcToken>| {
            let tokens = oidc.tokens.get();
            async move { tokens.current_or(limit, None, |_| call()).await }
        };
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let parents = runtime().unwrap();
        let mut awaited = pin!(obtain(|| Box::pin(pending())));
        parents.block_on(async {
            assert!(awaited.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        });
        let child = || {
            let obtained = runtime().map_err(|_| 1)?.block_on(obtain(|| Box::pin(async { Ok(OidcToken::new("a")) })));
            obtained.map(drop).map_err(|_| 2)
        };
        assert_eq!(in_child(child), 0);
        // The child succeeds even if a thread holds a lock at the time of the fork.
        let tokens = oidc.tokens.get();
        assert_eq!(tokens.while_known_is_locked(|| in_child(child)), 0);
        // The parent's call continues.
        parents.block_on(async {
            assert!(awaited.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        });
    }

    #[test]
    fn patterns_and_hosts_are_compared_in_one_form() {
        for (allowed, host) in [
            ("DB.example.com.", "db.example.com"),
            ("db.example.com", "db.example.com."),
            ("*.Example.com", "a.example.com."),
            ("[0:0::1]", "::1"),
            ("::1", "0:0:0:0:0:0:0:1"),
        ] {
            assert!(matches(&pattern(allowed).unwrap(), &host_name::canonical(host).unwrap()), "{allowed} {host}");
        }
        let error = pattern("*.bücher.example").unwrap_err();
        assert_eq!((error.option, error.value.as_deref()), ("ALLOWED_HOSTS", Some("\"*.bücher.example\"")));
    }

    #[test]
    fn pattern_matches_only_hosts_below_its_domain() {
        for (pattern, host, expected) in [
            ("localhost", "localhost", true),
            ("localhost", "localhost.example.com", false),
            ("::1", "::1", true),
            ("*.mongodb.net", "a.mongodb.net", true),
            ("*.mongodb.net", "a.b.mongodb.net", true),
            ("*.mongodb.net", "mongodb.net", false),
            ("*.mongodb.net", ".mongodb.net", false),
            ("*.mongodb.net", "badmongodb.net", false),
            ("*.mongodb.net", "a.mongodb.net.example.com", false),
            ("*mongodb.net", "badmongodb.net", false),
            ("*", "anything", false),
            ("", "anything", false),
        ] {
            assert_eq!(matches(pattern, host), expected, "{pattern} {host}");
        }
    }
}
