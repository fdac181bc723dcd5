//! Credentials and authentication mechanisms.

use super::{InvalidOption, Secret};

/// A user's name and proof of identity, and the mechanism for which they are meant (Authentication specification,
/// "MongoCredential").
///
/// A client does not authenticate with an arbiter, because an arbiter has no users (Authentication specification,
/// "Authentication Handshake"). An arbiter therefore never proves that it knows the password, so a pool refuses
/// connections to it. [`Endpoint::connect`](crate::Endpoint::connect) does connect to an arbiter.
/// [`EndpointConnection::is_authenticated`](crate::EndpointConnection::is_authenticated) is then false.
///
/// Nothing is checked until [`Options::validate`](super::Options::validate), which refuses a credential with missing
/// parts, or with parts that the mechanism cannot use.
///
/// ```
/// use wharf::{Credential, Mechanism};
///
/// let user = Credential::new("ada", "secret").source("admin");
/// assert!(!format!("{user:?}").contains("secret"));
///
/// let certificate = Credential::of(Mechanism::MongoDbX509);
/// let workload = Credential::of(Mechanism::MongoDbOidc)
///     .mechanism_property("ENVIRONMENT", "azure")
///     .mechanism_property("TOKEN_RESOURCE", "api://cluster");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Credential {
    /// The user's name.
    pub username: Option<String>,
    /// The user's password.
    ///
    /// A name without a password is a valid credential and a valid connection string (`mongodb://ada@localhost`). Without
    /// a mechanism, [`Options::endpoint`](super::Options::endpoint) refuses it, because SCRAM needs a password.
    pub password: Option<Secret>,
    /// `authSource`: the database that the user is defined in, if it was given.
    /// [`effective_source`](Self::effective_source) applies the defaults.
    pub source: Option<String>,
    /// `authMechanism`. By default, client and server negotiate the mechanism.
    pub mechanism: Option<Mechanism>,
    /// `authMechanismProperties`, in the order in which they were given.
    pub mechanism_properties: Vec<(String, Secret)>,
    #[cfg(feature = "aws")]
    pub(crate) aws_provider: Option<super::aws::Provider>,
    #[cfg(feature = "oidc")]
    pub(crate) oidc: super::OidcOptions,
    #[cfg(any(feature = "aws", feature = "oidc"))]
    pub(crate) cloud: super::CloudEnvironment,
}

/// `authMechanism`: how a client authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mechanism {
    /// `SCRAM-SHA-1`.
    ScramSha1,
    /// `SCRAM-SHA-256`.
    ScramSha256,
    /// `MONGODB-X509`: the client's TLS certificate, from
    /// [`TlsOptions::certificate_key_file`](super::TlsOptions#structfield.certificate_key_file) or from memory.
    /// [`Options::endpoint`](super::Options::endpoint) refuses it without TLS or without a client certificate.
    MongoDbX509,
    /// `PLAIN`: LDAP. The client sends the password in clear text, so use TLS ([`Options::tls`](super::Options::tls))
    /// or a Unix domain socket. wharf does not require TLS, because the specification does not, and because the network
    /// may be protected by other means.
    Plain,
    /// `MONGODB-AWS`: an Amazon Web Services identity. Needs the `aws` feature.
    MongoDbAws,
    /// `MONGODB-OIDC`: an access token from an identity provider. The client sends the token unencrypted, so use TLS,
    /// as with `PLAIN`. Needs the `oidc` feature.
    MongoDbOidc,
    /// `GSSAPI`: Kerberos. It is parsed and validated, but not supported:
    /// [`Options::endpoint`](super::Options::endpoint) refuses it.
    Gssapi,
}

/// The source for users that are not stored on the server.
const EXTERNAL: &str = "$external";

impl Mechanism {
    const ALL: [Self; 7] = [
        Self::ScramSha1,
        Self::ScramSha256,
        Self::MongoDbX509,
        Self::Plain,
        Self::MongoDbAws,
        Self::MongoDbOidc,
        Self::Gssapi,
    ];

    /// Returns the mechanism's name in connection strings and on the wire.
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

    /// Returns the mechanism with that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    /// Returns the names of the mechanisms that this build of wharf supports, separated by commas.
    pub(crate) fn supported() -> String {
        let names: Vec<_> =
            Self::ALL.into_iter().filter(|mechanism| mechanism.is_supported()).map(Self::name).collect();
        names.join(", ")
    }

    fn is_supported(self) -> bool {
        match self {
            Self::ScramSha1 | Self::ScramSha256 | Self::MongoDbX509 | Self::Plain => true,
            Self::MongoDbAws => cfg!(feature = "aws"),
            Self::MongoDbOidc => cfg!(feature = "oidc"),
            Self::Gssapi => false,
        }
    }

    /// Returns whether users of this mechanism are not stored on the server, so that their source is `$external`.
    fn is_external(self) -> bool {
        matches!(self, Self::MongoDbX509 | Self::MongoDbAws | Self::MongoDbOidc | Self::Gssapi)
    }

    /// Returns the names of the properties that the mechanism accepts.
    fn properties(self) -> &'static [&'static str] {
        match self {
            Self::Gssapi => &["SERVICE_NAME", "CANONICALIZE_HOST_NAME", "SERVICE_REALM", "SERVICE_HOST"],
            Self::MongoDbOidc => &["ENVIRONMENT", "TOKEN_RESOURCE"],
            _ => &[],
        }
    }
}

impl Credential {
    /// Creates a credential for a user with a password. Without [`mechanism`](Self::mechanism), client and server
    /// negotiate the mechanism.
    pub fn new(username: impl Into<String>, password: impl Into<Secret>) -> Self {
        Self { username: Some(username.into()), password: Some(password.into()), ..Self::default() }
    }

    /// Creates a credential for a mechanism that needs no name or password, such as `MONGODB-X509`.
    pub fn of(mechanism: Mechanism) -> Self {
        Self { mechanism: Some(mechanism), ..Self::default() }
    }

    /// Sets [`username`](Self#structfield.username), for a mechanism that takes a name but no password.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.username = Some(username.into());
        self
    }

    /// Sets [`mechanism`](Self#structfield.mechanism).
    pub fn mechanism(mut self, mechanism: Mechanism) -> Self {
        self.mechanism = Some(mechanism);
        self
    }

    /// Sets [`source`](Self#structfield.source).
    pub fn source(mut self, database: impl Into<String>) -> Self {
        self.source = Some(database.into());
        self
    }

    /// Sets one of `authMechanismProperties`. Names are case-insensitive. If a property is set twice, the last value
    /// applies.
    ///
    /// | mechanism | property | value |
    /// | --- | --- | --- |
    /// | `MONGODB-OIDC` | `ENVIRONMENT` | `azure`, `gcp`, `k8s`; `test` for tests |
    /// | `MONGODB-OIDC` | `TOKEN_RESOURCE` | a URI; required for `azure` and `gcp` |
    /// | `GSSAPI` | `SERVICE_NAME`, `SERVICE_REALM`, `SERVICE_HOST` | a name |
    /// | `GSSAPI` | `CANONICALIZE_HOST_NAME` | `none`, `forward` or `forwardAndReverse` |
    ///
    /// The other mechanisms have no properties. A `TOKEN_RESOURCE` may contain colons, here and in connection strings,
    /// because a property's name ends at the first colon. A value with a comma can be set only here, because a comma
    /// separates properties in connection strings.
    pub fn mechanism_property(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        let name = name.into();
        self.mechanism_properties.retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        self.mechanism_properties.push((name, value.into()));
        self
    }

    /// Returns the database that the user is defined in. It is the first of these that is set or applies:
    ///
    /// 1. [`source`](Self#structfield.source);
    /// 2. `$external` for `MONGODB-X509`, `MONGODB-AWS`, `MONGODB-OIDC` and `GSSAPI`;
    /// 3. [`Options::default_database`](super::Options#structfield.default_database);
    /// 4. `$external` for `PLAIN`, and `admin` for the others.
    #[must_use]
    pub fn effective_source<'a>(&'a self, default_database: Option<&'a str>) -> &'a str {
        match (&self.source, self.mechanism) {
            (Some(source), _) => source,
            (None, Some(mechanism)) if mechanism.is_external() => EXTERNAL,
            (None, Some(Mechanism::Plain)) => default_database.unwrap_or(EXTERNAL),
            (None, _) => default_database.unwrap_or("admin"),
        }
    }

    /// Returns the value of a mechanism property, by its case-insensitive name.
    #[must_use]
    pub fn property(&self, name: &str) -> Option<&Secret> {
        self.mechanism_properties
            .iter()
            .rev()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Sets the source to this default if the credential has no source and its mechanism does not require `$external`.
    pub(super) fn inherit_source(&mut self, default: Option<&String>) {
        if self.source.is_none() && !self.mechanism.is_some_and(Mechanism::is_external) {
            self.source = default.cloned();
        }
    }

    /// Refuses a credential with missing parts, or with parts that the mechanism cannot use.
    pub(super) fn validate(&self) -> Result<(), InvalidOption> {
        if self.source.as_deref() == Some("") {
            return Err(InvalidOption::because("authSource", "must not be empty"));
        }
        let Some(mechanism) = self.mechanism else {
            self.require_username("in a credential without authMechanism")?;
            return self.check_properties("without authMechanism", &[]);
        };
        let name = mechanism.name();
        if let Some(source) = self.source.as_ref().filter(|source| mechanism.is_external() && *source != EXTERNAL) {
            return Err(InvalidOption::new("authSource", format!("{EXTERNAL} with authMechanism={name}"), source));
        }
        self.check_properties(&format!("with authMechanism={name}"), mechanism.properties())?;
        self.check_callbacks(mechanism)?;
        match mechanism {
            Mechanism::ScramSha1 | Mechanism::ScramSha256 | Mechanism::Plain => {
                self.require_username(&format!("with authMechanism={name}"))?;
                self.require_password(name)
            }
            Mechanism::Gssapi => {
                self.require_username("with authMechanism=GSSAPI")?;
                self.check_canonicalization()
            }
            Mechanism::MongoDbX509 => self.refuse_password(name),
            Mechanism::MongoDbAws => self.refuse_username(name).and(self.refuse_password(name)),
            Mechanism::MongoDbOidc => {
                self.refuse_password(name)?;
                #[cfg(feature = "oidc")]
                if self.oidc.validate(self.property("ENVIRONMENT").map(Secret::reveal))? {
                    return self.refuse_resource("a callback");
                }
                self.check_environment()
            }
        }
    }

    fn require_username(&self, reason: &str) -> Result<(), InvalidOption> {
        match self.username.as_deref() {
            None | Some("") => Err(InvalidOption::missing("username", reason)),
            Some(_) => Ok(()),
        }
    }

    fn require_password(&self, mechanism: &str) -> Result<(), InvalidOption> {
        match &self.password {
            Some(_) => Ok(()),
            None => Err(InvalidOption::missing("password", format!("with authMechanism={mechanism}"))),
        }
    }

    fn refuse_username(&self, mechanism: &str) -> Result<(), InvalidOption> {
        match &self.username {
            None => Ok(()),
            // The identifier of an access key is half of a secret, so the error does not show it.
            Some(_) => Err(InvalidOption::conflict(
                "username",
                format!("authMechanism={mechanism}, which takes credentials from the environment"),
            )),
        }
    }

    fn refuse_password(&self, mechanism: &str) -> Result<(), InvalidOption> {
        match &self.password {
            None => Ok(()),
            Some(_) => Err(InvalidOption::conflict("password", format!("authMechanism={mechanism}"))),
        }
    }

    /// Returns a property's name in the form that errors show. The name is hidden if it may be the rest of a secret
    /// that contains a comma without percent-encoding.
    pub(super) fn shown_property(name: &str) -> &str {
        const LONGEST: usize = 32;
        let is_name = name.len() <= LONGEST && name.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if is_name { name } else { "(not shown)" }
    }

    fn check_properties(&self, condition: &str, known: &[&str]) -> Result<(), InvalidOption> {
        let unknown = |name: &str| !known.iter().any(|known| known.eq_ignore_ascii_case(name));
        match self.mechanism_properties.iter().find(|(name, _)| unknown(name)) {
            None => Ok(()),
            Some((name, _)) => {
                let allowed = match known {
                    [] => format!("left out {condition}"),
                    known => format!("one of {} {condition}", known.join(", ")),
                };
                Err(InvalidOption::new("authMechanismProperties", allowed, Self::shown_property(name)))
            }
        }
    }

    fn check_canonicalization(&self) -> Result<(), InvalidOption> {
        const KNOWN: [&str; 5] = ["none", "forward", "forwardAndReverse", "true", "false"];
        match self.property("CANONICALIZE_HOST_NAME") {
            Some(value) if !KNOWN.contains(&value.reveal()) => Err(InvalidOption::new(
                "CANONICALIZE_HOST_NAME of authMechanismProperties",
                "none, forward or forwardAndReverse",
                value.reveal(),
            )),
            _ => Ok(()),
        }
    }

    fn refuse_resource(&self, with: &str) -> Result<(), InvalidOption> {
        match self.property("TOKEN_RESOURCE") {
            Some(_) => Err(InvalidOption::conflict("TOKEN_RESOURCE of authMechanismProperties", with)),
            None => Ok(()),
        }
    }

    /// Refuses callbacks that the mechanism does not call.
    fn check_callbacks(&self, mechanism: Mechanism) -> Result<(), InvalidOption> {
        #[cfg(feature = "aws")]
        if self.aws_provider.is_some() && mechanism != Mechanism::MongoDbAws {
            return Err(InvalidOption::because("AWS_CREDENTIAL_PROVIDER", "requires authMechanism=MONGODB-AWS"));
        }
        #[cfg(feature = "oidc")]
        if self.oidc != super::OidcOptions::default() && mechanism != Mechanism::MongoDbOidc {
            return Err(InvalidOption::because("OIDC_CALLBACK", "requires authMechanism=MONGODB-OIDC"));
        }
        let _ = mechanism;
        Ok(())
    }

    fn check_environment(&self) -> Result<(), InvalidOption> {
        const OPTION: &str = "ENVIRONMENT of authMechanismProperties";
        let environment = self.property("ENVIRONMENT").map(Secret::reveal);
        let resource = self.property("TOKEN_RESOURCE");
        match (environment, resource) {
            (None, _) => Err(InvalidOption::missing(OPTION, "with authMechanism=MONGODB-OIDC without a callback")),
            // The other environments may use the username or ignore it.
            (Some("test"), None) if self.username.is_some() => {
                Err(InvalidOption::conflict("username", "ENVIRONMENT=test"))
            }
            (Some("azure" | "gcp"), Some(_)) | (Some("k8s" | "test"), None) => Ok(()),
            (Some(needing @ ("azure" | "gcp")), None) => Err(InvalidOption::missing(
                "TOKEN_RESOURCE of authMechanismProperties",
                format!("with ENVIRONMENT={needing}"),
            )),
            (Some(other @ ("k8s" | "test")), Some(_)) => self.refuse_resource(&format!("ENVIRONMENT={other}")),
            (Some(unknown), _) => {
                Err(InvalidOption::new(OPTION, "azure, gcp or k8s with authMechanism=MONGODB-OIDC", unknown))
            }
        }
    }
}
