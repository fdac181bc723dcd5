//! The cloud services and environment variables that authentication uses.

use std::error::Error as StdError;
use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::Credential;

/// An error from an application's callback. Its message is shown, so it must not contain a secret.
pub type CallbackError = Box<dyn StdError + Send + Sync>;

/// The future from an application's callback. Dropping it cancels the callback.
pub type CallbackFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CallbackError>> + Send + 'a>>;

type Lookup = dyn Fn(&str) -> Option<OsString> + Send + Sync;

/// The environment variables and cloud services that `MONGODB-AWS` and `MONGODB-OIDC` use.
///
/// The default is the process's environment and the addresses that the specification names. Other values are for tests,
/// and for machines that reach their cloud's services through a proxy. Each service is a URL without a path:
/// `http://host:port`, or `https://host:port` with the operating system's trust store.
///
/// ```
/// use wharf::{CloudEnvironment, Credential, Mechanism};
///
/// let cloud = CloudEnvironment::default().aws_ec2("http://metadata-proxy:8080");
/// let credential = Credential::of(Mechanism::MongoDbAws).cloud_environment(cloud);
/// ```
#[derive(Clone)]
#[non_exhaustive]
#[must_use]
pub struct CloudEnvironment {
    variables: Option<Arc<Lookup>>,
    /// The Amazon ECS agent, for `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`. Default `http://169.254.170.2`.
    ///
    /// This address does not apply to `AWS_CONTAINER_CREDENTIALS_FULL_URI`, which contains the agent's address.
    pub aws_ecs: String,
    /// The Amazon EC2 metadata service. Default `http://169.254.169.254`.
    pub aws_ec2: String,
    /// Amazon's Security Token Service. By default, the region's endpoint.
    ///
    /// `AWS_REGION` or, failing that, `AWS_DEFAULT_REGION` names the region. A region's endpoint is, for example,
    /// `https://sts.eu-central-1.amazonaws.com`. Without a region, the global endpoint `https://sts.amazonaws.com` is
    /// used. With `AWS_STS_REGIONAL_ENDPOINTS=legacy`, it is also used for the regions that existed before 2019.
    pub aws_sts: Option<String>,
    /// Azure's metadata service. Default `http://169.254.169.254`.
    pub azure: String,
    /// Google Cloud's metadata service. Default `http://metadata`.
    pub gcp: String,
}

impl Default for CloudEnvironment {
    fn default() -> Self {
        Self {
            variables: None,
            aws_ecs: "http://169.254.170.2".to_owned(),
            aws_ec2: "http://169.254.169.254".to_owned(),
            aws_sts: None,
            azure: "http://169.254.169.254".to_owned(),
            gcp: "http://metadata".to_owned(),
        }
    }
}

impl CloudEnvironment {
    /// Sets the function that looks up environment variables, in place of the process's environment.
    ///
    /// `lookup` is called each time a variable is needed, from any thread, and must not block.
    pub fn variables(mut self, lookup: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        self.variables = Some(Arc::new(lookup));
        self
    }

    /// Returns whether [`variables`](Self::variables) has replaced the process's environment.
    #[must_use]
    pub fn has_own_variables(&self) -> bool {
        self.variables.is_some()
    }

    /// Sets [`aws_ecs`](Self#structfield.aws_ecs).
    pub fn aws_ecs(mut self, url: impl Into<String>) -> Self {
        self.aws_ecs = url.into();
        self
    }

    /// Sets [`aws_ec2`](Self#structfield.aws_ec2).
    pub fn aws_ec2(mut self, url: impl Into<String>) -> Self {
        self.aws_ec2 = url.into();
        self
    }

    /// Sets [`aws_sts`](Self#structfield.aws_sts).
    pub fn aws_sts(mut self, url: impl Into<String>) -> Self {
        self.aws_sts = Some(url.into());
        self
    }

    /// Sets [`azure`](Self#structfield.azure).
    pub fn azure(mut self, url: impl Into<String>) -> Self {
        self.azure = url.into();
        self
    }

    /// Sets [`gcp`](Self#structfield.gcp).
    pub fn gcp(mut self, url: impl Into<String>) -> Self {
        self.gcp = url.into();
        self
    }

    /// Returns the value of an environment variable, or `None` if the variable is not set or is empty.
    pub(crate) fn variable(&self, name: &str) -> Option<OsString> {
        let value = match &self.variables {
            Some(lookup) => lookup(name),
            None => std::env::var_os(name),
        };
        value.filter(|value| !value.is_empty())
    }
}

impl fmt::Debug for CloudEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variables, aws_ecs, aws_ec2, aws_sts, azure, gcp } = self;
        f.debug_struct("CloudEnvironment")
            .field("variables", &if variables.is_some() { "the application's" } else { "the process's" })
            .field("aws_ecs", aws_ecs)
            .field("aws_ec2", aws_ec2)
            .field("aws_sts", aws_sts)
            .field("azure", azure)
            .field("gcp", gcp)
            .finish()
    }
}

/// A function that looks up variables is equal only to its clones.
impl PartialEq for CloudEnvironment {
    fn eq(&self, other: &Self) -> bool {
        let urls = |of: &Self| (of.aws_sts.clone(), [&of.aws_ecs, &of.aws_ec2, &of.azure, &of.gcp].map(String::clone));
        let same_variables = match (&self.variables, &other.variables) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        same_variables && urls(self) == urls(other)
    }
}

impl Eq for CloudEnvironment {}

impl Credential {
    /// Sets the environment variables and cloud services that `MONGODB-AWS` and `MONGODB-OIDC` use.
    pub fn cloud_environment(mut self, environment: CloudEnvironment) -> Self {
        self.cloud = environment;
        self
    }

    /// Returns the environment variables and cloud services that `MONGODB-AWS` and `MONGODB-OIDC` use: as set by
    /// [`cloud_environment`](Self::cloud_environment), or the default.
    pub fn effective_cloud_environment(&self) -> &CloudEnvironment {
        &self.cloud
    }
}
