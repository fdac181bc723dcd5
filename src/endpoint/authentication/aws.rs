//! The mechanism MONGODB-AWS (Authentication specification, "MONGODB-AWS").

use std::io;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zeroize::Zeroizing;

use super::{Cause, Conversation};
use crate::options::{AwsCredentials, CloudEnvironment, Credential, InvalidOption, Mechanism, aws};
use crate::wire::auth::aws::{Keys, NONCE_LENGTH, ServerFirst, Timestamp, client_first, client_second};
use crate::wire::auth::sasl::{self, SaslReply};
use crate::wire::{PeerText, WireError};

mod sources;

use sources::Unavailable;

/// The database of users that the server does not keep itself.
const DATABASE: &str = "$external";

/// How long before they expire credentials are no longer used.
const EXPIRY_MARGIN: Duration = Duration::from_secs(5 * 60);

/// What all connections share for MONGODB-AWS.
#[derive(Debug)]
pub(super) struct Aws {
    provider: Option<aws::Provider>,
    cloud: CloudEnvironment,
    /// Credentials of a service, until they expire or authentication fails.
    ///
    /// The lock is only ever held to read or write the pointer: connections that find no valid credentials ask for them
    /// side by side, as the specification wants it, and the last answer stays.
    cache: Mutex<Option<Arc<AwsCredentials>>>,
}

impl Aws {
    pub fn new(credential: &Credential) -> Result<Self, InvalidOption> {
        Ok(Self { provider: credential.aws_provider.clone(), cloud: credential.cloud.clone(), cache: Mutex::new(None) })
    }

    /// Holds the conversation of MONGODB-AWS. It is never speculative.
    pub async fn authenticate(&self, conversation: &mut Conversation<'_>) -> Result<(), Cause> {
        let outcome = self.converse(conversation).await;
        if outcome.is_err() {
            self.set_cached(None);
        }
        outcome
    }

    async fn converse(&self, conversation: &mut Conversation<'_>) -> Result<(), Cause> {
        // The credentials come first, so that the server does not wait for another service.
        let credentials = conversation.deadline.bound(self.credentials()).await.map_err(Cause::Timeout)?;
        let credentials = credentials.map_err(|error| Cause::Provider(Box::new(error)))?;

        let mut nonce = [0; NONCE_LENGTH];
        getrandom::fill(&mut nonce).map_err(|error| Cause::Randomness(io::Error::other(error)))?;
        let command = sasl::start(Mechanism::MongoDbAws, client_first(&nonce).as_bytes(), None);
        let reply = SaslReply::read(conversation.run(DATABASE, &command).await?)?;
        require_done(&reply, false)?;
        let server = ServerFirst::read(reply.payload, &nonce)?;

        let keys = Keys {
            access_key_id: &credentials.access_key_id,
            secret_access_key: credentials.secret_access_key.reveal(),
            session_token: credentials.session_token.as_ref().map(|token| token.reveal()),
        };
        let message = Zeroizing::new(client_second(&server, keys, now())?.into_bytes());
        let command = sasl::advance(&reply.conversation_id, &message);
        require_done(&SaslReply::read(conversation.run_secret(DATABASE, command).await?)?, true)?;
        Ok(())
    }

    /// Credentials that are valid now, from the first source that there is.
    async fn credentials(&self) -> Result<Arc<AwsCredentials>, Unavailable> {
        if let Some(aws::Provider(provider)) = &self.provider {
            return provider.credentials().await.map(Arc::new).map_err(Unavailable::Custom);
        }
        let cached = self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match &cached {
            Some(credentials) if is_valid(credentials) => return Ok(Arc::clone(credentials)),
            // Credentials that came from a service are renewed there, even if there are variables now.
            Some(_) => {}
            None => {
                if let Some(credentials) = sources::from_variables(&self.cloud)? {
                    return Ok(Arc::new(credentials));
                }
            }
        }
        let credentials = Arc::new(sources::from_service(&self.cloud).await?);
        // Nobody could tell when others must be renewed.
        if credentials.expiration.is_some() {
            self.set_cached(Some(Arc::clone(&credentials)));
        }
        Ok(credentials)
    }

    fn set_cached(&self, credentials: Option<Arc<AwsCredentials>>) {
        let before = std::mem::replace(&mut *self.cache.lock().unwrap_or_else(PoisonError::into_inner), credentials);
        drop(before);
    }
}

fn is_valid(credentials: &AwsCredentials) -> bool {
    credentials.expiration.is_some_and(|expiration| expiration > SystemTime::now() + EXPIRY_MARGIN)
}

fn now() -> Timestamp {
    // A clock before 1970 is as wrong as one that says 1970: the server refuses the signature, and says why.
    Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// Refuses a reply that ends the conversation too early, or does not end it.
fn require_done(reply: &SaslReply<'_>, done: bool) -> Result<(), WireError> {
    let allowed = if done { "true after the last message" } else { "false before the last message" };
    match reply.done == done {
        true => Ok(()),
        false => Err(WireError::ReplyField { field: "done", value: PeerText::of(reply.done), allowed }),
    }
}
