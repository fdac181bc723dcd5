//! What MONGODB-AWS is told by the application.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::SystemTime;

use super::{CallbackError, CallbackFuture, Credential, Secret};

/// The keys of an identity of Amazon Web Services. Debug output shows neither the secret key nor the token.
///
/// It is a provider of itself, for applications that have keys of their own, which the specification forbids to put into
/// connection strings:
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
/// Keys that change or end want a closure: see [`AwsCredentialProvider`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct AwsCredentials {
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: Secret,
    pub(crate) session_token: Option<Secret>,
    /// When temporary credentials end; `None` if nobody said.
    pub(crate) expiration: Option<SystemTime>,
}

impl AwsCredentials {
    /// An access key's identifier, and the secret access key.
    pub fn new(access_key_id: impl Into<String>, secret_access_key: impl Into<Secret>) -> Self {
        Self {
            access_key_id: access_key_id.into(),
            secret_access_key: secret_access_key.into(),
            session_token: None,
            expiration: None,
        }
    }

    /// The session token, which temporary credentials need.
    pub fn session_token(mut self, token: impl Into<Secret>) -> Self {
        self.session_token = Some(token.into());
        self
    }
}

/// Obtains credentials of Amazon Web Services for `MONGODB-AWS` (Authentication specification, "Custom Credential
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
    /// It is asked for every connection, and by several connections at a time: it caches by itself what is costly. The
    /// future is dropped when the establishment of the connection is over (`connectTimeoutMS`).
    ///
    /// # Errors
    ///
    /// Any; the connection is then not established, and the error's message is part of the reason.
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

/// The same keys, whenever they are asked for.
impl AwsCredentialProvider for AwsCredentials {
    fn credentials(&self) -> CallbackFuture<'_, AwsCredentials> {
        Box::pin(std::future::ready(Ok(self.clone())))
    }
}

/// A provider, as a credential keeps it.
#[derive(Clone)]
pub(crate) struct Provider(pub Arc<dyn AwsCredentialProvider>);

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AwsCredentialProvider")
    }
}

/// Providers are equal if they are the same.
impl PartialEq for Provider {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Provider {}

impl Credential {
    /// `AWS_CREDENTIAL_PROVIDER` of `MONGODB-AWS`: obtains credentials in the application's own way, before all others.
    ///
    /// Without it they are looked for in the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    /// `AWS_SESSION_TOKEN`), then exchanged for a web identity (`AWS_WEB_IDENTITY_TOKEN_FILE`, `AWS_ROLE_ARN`,
    /// `AWS_ROLE_SESSION_NAME`), then asked of the container's agent, or of the metadata service of EC2.
    ///
    /// The container's agent is that of ECS (`AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`) or another
    /// (`AWS_CONTAINER_CREDENTIALS_FULL_URI`), such as that of EKS Pod Identity. A full URI begins with `https`, or names
    /// a loopback address, 169.254.170.2, 169.254.170.23 or `[fd00:ec2::23]`. The agent gets the token that is in the file
    /// `AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE`, which is read anew each time, else in
    /// `AWS_CONTAINER_AUTHORIZATION_TOKEN`.
    ///
    /// A source that is named and fails is an error: the next source, such as the role of the machine, would be another
    /// identity.
    pub fn aws_credential_provider(mut self, provider: impl AwsCredentialProvider + 'static) -> Self {
        self.aws_provider = Some(Provider(Arc::new(provider)));
        self
    }
}
