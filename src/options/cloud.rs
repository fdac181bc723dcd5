//! Where the clouds' own services are, and what the environment says.

use std::error::Error as StdError;
use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::Credential;

/// Why an application's callback could not do what it was asked. Its message is shown, so it must hold no secret.
pub type CallbackError = Box<dyn StdError + Send + Sync>;

/// What an application's callback is doing. Dropping it cancels the callback.
pub type CallbackFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, CallbackError>> + Send + 'a>>;

type Lookup = dyn Fn(&str) -> Option<OsString> + Send + Sync;

/// What `MONGODB-AWS` and `MONGODB-OIDC` find out from their surroundings: environment variables, and the services that
/// a cloud's machines reach at fixed addresses.
///
/// The default is the process's environment and the addresses that the specification names. Others are for tests, and
/// for machines that reach their cloud's services through a proxy. Each is a URL without a path: `http://host:port` or
/// `https://host:port`, the latter with the operating system's trust store.
#[derive(Clone)]
#[must_use]
pub struct CloudEnvironment {
    variables: Option<Arc<Lookup>>,
    pub(crate) aws_ecs: String,
    pub(crate) aws_ec2: String,
    /// `None` is the service of the region.
    pub(crate) aws_sts: Option<String>,
    pub(crate) azure: String,
    pub(crate) gcp: String,
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
    /// Looks environment variables up here instead of in the process's environment. It is called anew whenever a
    /// variable is needed, from any thread, and must not block.
    pub fn variables(mut self, lookup: impl Fn(&str) -> Option<OsString> + Send + Sync + 'static) -> Self {
        self.variables = Some(Arc::new(lookup));
        self
    }

    /// The agent of Amazon's ECS, for `AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`. By default `http://169.254.170.2`.
    /// `AWS_CONTAINER_CREDENTIALS_FULL_URI` names its agent itself.
    pub fn aws_ecs(mut self, url: impl Into<String>) -> Self {
        self.aws_ecs = url.into();
        self
    }

    /// The metadata service of Amazon's EC2. By default `http://169.254.169.254`.
    pub fn aws_ec2(mut self, url: impl Into<String>) -> Self {
        self.aws_ec2 = url.into();
        self
    }

    /// Amazon's Security Token Service.
    ///
    /// By default it is the service of the region that `AWS_REGION` names, else `AWS_DEFAULT_REGION`, such as
    /// `https://sts.eu-central-1.amazonaws.com`. Without a region it is the global `https://sts.amazonaws.com`, and with
    /// `AWS_STS_REGIONAL_ENDPOINTS=legacy` also in the regions that existed before 2019.
    pub fn aws_sts(mut self, url: impl Into<String>) -> Self {
        self.aws_sts = Some(url.into());
        self
    }

    /// The metadata service of Azure. By default `http://169.254.169.254`.
    pub fn azure(mut self, url: impl Into<String>) -> Self {
        self.azure = url.into();
        self
    }

    /// The metadata service of Google's cloud. By default `http://metadata`.
    pub fn gcp(mut self, url: impl Into<String>) -> Self {
        self.gcp = url.into();
        self
    }

    /// The value of an environment variable; `None` if it is not set, or empty.
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

/// Lookups are equal if they are the same.
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
    /// The surroundings in which `MONGODB-AWS` and `MONGODB-OIDC` look for proof, if they are not the usual ones.
    pub fn cloud_environment(mut self, environment: CloudEnvironment) -> Self {
        self.cloud = environment;
        self
    }
}
