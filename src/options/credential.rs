//! Who the application is, and how it proves it.

use super::Secret;

/// A user's name, its proof, and the mechanism that carries it (Authentication specification, "MongoCredential").
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Credential {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) source: Option<String>,
    pub(crate) mechanism: Option<Mechanism>,
    /// `authMechanismProperties`, in the order in which they were given.
    pub(crate) mechanism_properties: Vec<(String, Secret)>,
    #[cfg(feature = "aws")]
    pub(crate) aws_provider: Option<super::aws::Provider>,
    #[cfg(feature = "oidc")]
    pub(crate) oidc: super::OidcOptions,
    #[cfg(any(feature = "aws", feature = "oidc"))]
    pub(crate) cloud: super::CloudEnvironment,
}

/// `authMechanism`: how a client proves who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mechanism {
    /// `SCRAM-SHA-1`.
    ScramSha1,
    /// `SCRAM-SHA-256`.
    ScramSha256,
    /// `MONGODB-X509`: the client's TLS certificate.
    MongoDbX509,
    /// `PLAIN`: LDAP, in clear text within TLS.
    Plain,
    /// `MONGODB-AWS`: an identity of Amazon Web Services.
    MongoDbAws,
    /// `MONGODB-OIDC`: an access token of an identity provider.
    MongoDbOidc,
    /// `GSSAPI`: Kerberos. Connection strings may name it, but wharf does not implement it.
    Gssapi,
}

impl Mechanism {
    /// The mechanism's name in connection strings and on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ScramSha1 => "SCRAM-SHA-1",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::MongoDbX509 => "MONGODB-X509",
            Self::Plain => "PLAIN",
            Self::MongoDbAws => "MONGODB-AWS",
            Self::MongoDbOidc => "MONGODB-OIDC",
            Self::Gssapi => "GSSAPI",
        }
    }
}

impl Credential {
    /// The credential of a user with a password. The mechanism is negotiated, unless [`mechanism`](Self::mechanism)
    /// names one.
    pub fn new(username: impl Into<String>, password: impl Into<Secret>) -> Self {
        Self { username: Some(username.into()), password: Some(password.into()), ..Self::default() }
    }

    /// `authMechanism`.
    pub fn mechanism(mut self, mechanism: Mechanism) -> Self {
        self.mechanism = Some(mechanism);
        self
    }

    /// `authSource`: the database that the user is defined in.
    pub fn source(mut self, database: impl Into<String>) -> Self {
        self.source = Some(database.into());
        self
    }
}
