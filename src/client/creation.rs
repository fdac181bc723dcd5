//! The functions that create a client.

use super::{Client, ClientBuilder, TracingOptions};
use crate::endpoint::options::{InvalidOption, Options};

impl Client {
    /// Creates a client from a connection string, without resolving a name or connecting.
    ///
    /// If the string begins with `mongodb+srv://`, its name is looked up when the client is first used, and then
    /// periodically while the deployment is a sharded cluster or unknown (Polling SRV Records for mongos Discovery). A
    /// failed lookup is retried, and server selection errors say why it failed.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidOption`] in the same cases as [`Options::parse`] and [`Client::new`].
    #[doc(alias = "with_uri_str")]
    pub fn from_uri(uri: &str) -> Result<Self, InvalidOption> {
        Self::new(Options::parse(uri)?)
    }

    /// Creates a client from a connection string, treating every warning of [`from_uri`](Self::from_uri), such as one
    /// about a misspelt option, as an error.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidOption`] in the same cases as [`Options::parse_strict`] and [`Client::new`].
    pub fn from_uri_strict(uri: &str) -> Result<Self, InvalidOption> {
        Self::new(Options::parse_strict(uri)?)
    }

    /// Creates a client with these options. Does not connect.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`] names the first option that is invalid, its value and what is allowed.
    #[doc(alias = "with_options")]
    pub fn new(options: Options) -> Result<Self, InvalidOption> {
        Self::builder(options).build()
    }

    /// Returns a builder for a client with these options.
    pub fn builder(options: Options) -> ClientBuilder {
        ClientBuilder {
            options,
            subscribers: Vec::new(),
            topology_subscribers: Vec::new(),
            resolver: None,
            budget: None,
            command_subscribers: Vec::new(),
            most_logged: None,
            tracing: TracingOptions::new(),
        }
    }
}
