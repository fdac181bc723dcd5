//! The credentials and providers that an application supplies for MONGODB-AWS.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use super::{CallbackError, CallbackFuture, Credential, Secret};

/// The keys of an Amazon Web Services identity. Debug output shows neither the secret key nor the token.
///
/// An application with its own keys sets them in code, because the specification forbids them in connection strings. The
/// keys also implement [`AwsCredentialProvider`]:
///
/// ```
/// use wharf::{AwsCredentials, Credential, Mechanism, Options};
///
/// let keys = AwsCredentials::new("AKIAI44QH8DHBEXAMPLE", "je7MtGbClwBF2Zp9Utk3h3yCo8nvbEXAMPLEKEY");
/// let credential = Credential::of(Mechanism::MongoDbAws).aws_credential_provider(keys);
/// let options = Options::parse("mongodb://db.example.com/?tls=true")?.credential(credential);
/// assert!(options.endpoint().is_ok());
/// # Ok::<(), wharf::InvalidOption>(())
/// ```
///
/// For keys that change or expire, use a closure: see [`AwsCredentialProvider`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct AwsCredentials {
    /// The access key's identifier.
    pub access_key_id: String,
    /// The secret access key.
    pub secret_access_key: Secret,
    /// The session token, which temporary credentials need.
    pub session_token: Option<Secret>,
    /// When temporary credentials expire, if known.
    pub(crate) expiration: Option<SystemTime>,
}

impl AwsCredentials {
    /// Creates credentials from an access key's identifier and secret.
    pub fn new(access_key_id: impl Into<String>, secret_access_key: impl Into<Secret>) -> Self {
        Self {
            access_key_id: access_key_id.into(),
            secret_access_key: secret_access_key.into(),
            session_token: None,
            expiration: None,
        }
    }

    /// Sets [`session_token`](Self#structfield.session_token).
    pub fn session_token(mut self, token: impl Into<Secret>) -> Self {
        self.session_token = Some(token.into());
        self
    }
}

/// Obtains Amazon Web Services credentials for `MONGODB-AWS` (Authentication specification, "Custom Credential
/// Providers"), for example from an SDK.
///
/// Closures that return futures are providers:
///
/// ```
/// use wharf::{AwsCredentials, Credential, Mechanism};
///
/// let credential = Credential::default().mechanism(Mechanism::MongoDbAws).aws_credential_provider(|| async {
///     let secret = std::fs::read_to_string("/run/secrets/aws")?;
///     Ok(AwsCredentials::new("AKIAI44QH8DHBEXAMPLE", secret))
/// });
/// ```
pub trait AwsCredentialProvider: Send + Sync {
    /// Obtains credentials that are valid now.
    ///
    /// This method is called for every new connection, possibly for several connections concurrently. The provider
    /// should cache credentials that are costly to obtain. The future is dropped when the time for opening the
    /// connection runs out (`connectTimeoutMS`).
    ///
    /// # Errors
    ///
    /// If the provider returns an error, the connection is not opened. The reported reason includes the error's
    /// message.
    fn credentials(&self) -> CallbackFuture<'_, AwsCredentials>;
}

impl<F, R> AwsCredentialProvider for F
where
    F: Fn() -> R + Send + Sync,
    R: Future<Output = Result<AwsCredentials, CallbackError>> + Send + 'static,
{
    fn credentials(&self) -> CallbackFuture<'_, AwsCredentials> {
        Box::pin(self())
    }
}

/// Provides the same keys each time.
impl AwsCredentialProvider for AwsCredentials {
    fn credentials(&self) -> CallbackFuture<'_, AwsCredentials> {
        Box::pin(std::future::ready(Ok(self.clone())))
    }
}

/// A provider, as stored in a credential.
#[derive(Clone)]
pub(crate) struct Provider(pub Arc<dyn AwsCredentialProvider>);

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AwsCredentialProvider")
    }
}

/// A provider is equal only to its clones.
impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Provider {}

impl Credential {
    /// `AWS_CREDENTIAL_PROVIDER` for `MONGODB-AWS`: sets the application's own credential provider. A provider takes
    /// precedence over all other sources.
    ///
    /// Without a provider, `MONGODB-AWS` uses the first of these sources that is configured:
    ///
    /// 1. the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`;
    /// 2. a web identity, which is exchanged for credentials: `AWS_WEB_IDENTITY_TOKEN_FILE`, `AWS_ROLE_ARN`,
    ///    `AWS_ROLE_SESSION_NAME`;
    /// 3. the container's agent: the ECS agent (`AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`) or another agent
    ///    (`AWS_CONTAINER_CREDENTIALS_FULL_URI`), such as the EKS Pod Identity agent;
    /// 4. the EC2 metadata service.
    ///
    /// A full URI must begin with `https`, or name a loopback address, 169.254.170.2, 169.254.170.23 or
    /// `[fd00:ec2::23]`. The request to the agent carries the token in the file that
    /// `AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE` names, which is read each time. If that variable is not set, the
    /// request carries the token in `AWS_CONTAINER_AUTHORIZATION_TOKEN`.
    ///
    /// If a configured source fails, so does the authentication. Falling back to the next source, such as the machine's
    /// role, would use a different identity.
    pub fn aws_credential_provider(mut self, provider: impl AwsCredentialProvider + 'static) -> Self {
        self.aws_provider = Some(Provider(Arc::new(provider)));
        self
    }

    /// Returns whether [`aws_credential_provider`](Self::aws_credential_provider) has been set.
    #[must_use]
    pub fn has_aws_credential_provider(&self) -> bool {
        self.aws_provider.is_some()
    }
}
