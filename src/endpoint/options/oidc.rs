//! The callbacks and tokens that an application supplies for MONGODB-OIDC.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{CallbackError, CallbackFuture, Credential, InvalidOption, Secret};

/// Obtains access tokens for `MONGODB-OIDC` (Authentication specification, "OIDC Callback").
///
/// Closures that return futures are callbacks:
///
/// ```
/// use wharf::{Credential, Mechanism, OidcContext, OidcToken};
///
/// let credential = Credential::default().mechanism(Mechanism::MongoDbOidc).oidc_callback(
///     |context: OidcContext| async move {
///         if context.version > 1 {
///             return Err("OidcCallback has changed".into());
///         }
///         Ok(OidcToken::new(std::fs::read_to_string("/run/secrets/token")?))
///     },
/// );
/// ```
pub trait OidcCallback: Send + Sync {
    /// Obtains an access token.
    ///
    /// All connections of a client share one token, and so do the connections of all endpoints from one call to
    /// [`Options::endpoints`](super::Options::endpoints). At most one call runs at a time, and it begins at least
    /// 100 ms after the previous call. The future is dropped after [`OidcContext::timeout`], or once no task is waiting
    /// for the connection that needs the token.
    ///
    /// # Errors
    ///
    /// If the callback returns an error, the connection is not opened. The reported reason includes the error's
    /// message.
    fn access_token(&self, context: OidcContext) -> CallbackFuture<'_, OidcToken>;
}

impl<F, R> OidcCallback for F
where
    F: Fn(OidcContext) -> R + Send + Sync,
    R: Future<Output = Result<OidcToken, CallbackError>> + Send + 'static,
{
    fn access_token(&self, context: OidcContext) -> CallbackFuture<'_, OidcToken> {
        Box::pin(self(context))
    }
}

/// The arguments to an [`OidcCallback`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OidcContext {
    /// How long the callback may take: 5 minutes for a human callback; otherwise 1 minute, or the rest of `timeoutMS` and
    /// `connectTimeoutMS` if `timeoutMS` is set.
    pub timeout: Duration,
    /// The version of this interface, which is 1.
    pub version: u32,
    /// The credential's user.
    pub username: Option<String>,
    /// The identity provider that the server names. Only human callbacks receive it.
    pub idp_info: Option<IdpInfo>,
    /// The refresh token from the last [`OidcToken`], if the server no longer accepts its access token. Only human
    /// callbacks receive it.
    pub refresh_token: Option<Secret>,
}

/// An identity provider, as the server describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdpInfo {
    /// The URL that identifies the provider: the `iss` of its tokens.
    pub issuer: String,
    /// The identifier of this client, for providers that people log in to.
    pub client_id: Option<String>,
    /// Additional scopes to request.
    pub request_scopes: Vec<String>,
}

/// The tokens that an [`OidcCallback`] obtained. Debug output does not show them.
///
/// ```
/// use std::time::Duration;
/// use wharf::OidcToken;
///
/// let token = OidcToken::new("an access token").expires_in(Duration::from_secs(3600)).refresh_token("a refresh token");
/// assert!(!format!("{token:?}").contains("an access token"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct OidcToken {
    /// The access token. It is sent unchanged; an empty token is refused.
    pub access_token: Secret,
    /// How long the token is valid. wharf does not use it yet, and keeps a token until the server refuses it.
    pub expires_in: Option<Duration>,
    /// The token that is passed to the callback when a new access token is needed. Only human callbacks receive it.
    pub refresh_token: Option<Secret>,
}

impl OidcToken {
    /// Creates a callback's result from an access token.
    pub fn new(access_token: impl Into<Secret>) -> Self {
        Self { access_token: access_token.into(), expires_in: None, refresh_token: None }
    }

    /// Sets [`expires_in`](Self#structfield.expires_in).
    pub fn expires_in(mut self, lifetime: Duration) -> Self {
        self.expires_in = Some(lifetime);
        self
    }

    /// Sets [`refresh_token`](Self#structfield.refresh_token).
    pub fn refresh_token(mut self, token: impl Into<Secret>) -> Self {
        self.refresh_token = Some(token.into());
        self
    }
}

/// The servers that human callbacks may give tokens to, unless the application lists different servers.
pub(crate) const DEFAULT_ALLOWED_HOSTS: [&str; 8] = [
    "*.mongodb.net",
    "*.mongodb-qa.net",
    "*.mongodb-dev.net",
    "*.mongodbgov.net",
    "localhost",
    "127.0.0.1",
    "::1",
    "*.mongo.com",
];

/// The MONGODB-OIDC options that connection strings cannot set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OidcOptions {
    pub callback: Option<Callback>,
    pub human_callback: Option<Callback>,
    /// `ALLOWED_HOSTS`, if it is set.
    pub allowed_hosts: Option<Vec<String>>,
}

/// A callback, as stored in a credential.
#[derive(Clone)]
pub(crate) struct Callback(pub Arc<dyn OidcCallback>);

impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OidcCallback")
    }
}

/// A callback is equal only to its clones.
impl PartialEq for Callback {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Callback {}

impl Credential {
    /// `OIDC_CALLBACK`: sets how to obtain access tokens for `MONGODB-OIDC` without human interaction, instead of an
    /// `ENVIRONMENT`.
    pub fn oidc_callback(mut self, callback: impl OidcCallback + 'static) -> Self {
        self.oidc.callback = Some(Callback(Arc::new(callback)));
        self
    }

    /// `OIDC_HUMAN_CALLBACK`: sets how to obtain access tokens for `MONGODB-OIDC` with human interaction.
    ///
    /// The callback may take 5 minutes. This time does not count towards `connectTimeoutMS`. The callback is run only
    /// for servers that [`allowed_hosts`](Self::allowed_hosts) lists.
    pub fn oidc_human_callback(mut self, callback: impl OidcCallback + 'static) -> Self {
        self.oidc.human_callback = Some(Callback(Arc::new(callback)));
        self
    }

    /// `ALLOWED_HOSTS`: sets the servers that a human callback may give tokens to, by name or IP address, without ports.
    /// `*.example.com` matches all names that end in `.example.com`. Connection strings cannot set it.
    ///
    /// The default is `*.mongodb.net`, `*.mongodb-qa.net`, `*.mongodb-dev.net`, `*.mongodbgov.net`, `localhost`, `127.0.0.1`,
    /// `::1` and `*.mongo.com`.
    pub fn allowed_hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.oidc.allowed_hosts = Some(hosts.into_iter().map(Into::into).collect());
        self
    }

    /// Returns the servers that a human callback may give tokens to: the list from [`allowed_hosts`](Self::allowed_hosts),
    /// or the default.
    #[must_use]
    pub fn effective_allowed_hosts(&self) -> Vec<&str> {
        match &self.oidc.allowed_hosts {
            Some(hosts) => hosts.iter().map(String::as_str).collect(),
            None => DEFAULT_ALLOWED_HOSTS.to_vec(),
        }
    }

    /// Returns whether [`oidc_callback`](Self::oidc_callback) has been set.
    #[must_use]
    pub fn has_oidc_callback(&self) -> bool {
        self.oidc.callback.is_some()
    }

    /// Returns whether [`oidc_human_callback`](Self::oidc_human_callback) has been set.
    #[must_use]
    pub fn has_oidc_human_callback(&self) -> bool {
        self.oidc.human_callback.is_some()
    }
}

impl OidcOptions {
    /// Refuses options that conflict. `environment` is the value of the `ENVIRONMENT` property.
    ///
    /// Returns whether there is a callback. If there is, no environment may be set.
    pub fn validate(&self, environment: Option<&str>) -> Result<bool, InvalidOption> {
        let Self { callback, human_callback, allowed_hosts } = self;
        if callback.is_some() && human_callback.is_some() {
            return Err(InvalidOption::conflict("OIDC_HUMAN_CALLBACK", "OIDC_CALLBACK"));
        }
        if allowed_hosts.is_some() && human_callback.is_none() {
            return Err(InvalidOption::because("ALLOWED_HOSTS", "requires OIDC_HUMAN_CALLBACK"));
        }
        let called = callback.is_some() || human_callback.is_some();
        match environment {
            Some(environment) if called => Err(InvalidOption::new(
                "ENVIRONMENT of authMechanismProperties",
                "left out with a callback",
                environment,
            )),
            _ => Ok(called),
        }
    }
}
