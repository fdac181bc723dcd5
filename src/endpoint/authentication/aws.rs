//! The mechanism MONGODB-AWS (Authentication specification, "MONGODB-AWS").

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use zeroize::Zeroizing;

use super::{Cause, Conversation};
use crate::endpoint::options::{AwsCredentials, CloudEnvironment, Credential, InvalidOption, Mechanism, aws};
use crate::endpoint::wire::auth::aws::{AccessKeys, NONCE_LENGTH, ServerFirst, Timestamp, client_first, client_second};
use crate::endpoint::wire::auth::sasl::{self, SaslReply};

mod sources;

use sources::Unavailable;

/// The database for users that are not stored on the server.
const DATABASE: &str = "$external";

/// Credentials that expire within this time are no longer used.
const EXPIRY_MARGIN: Duration = Duration::from_secs(5 * 60);

/// The state that all connections share for MONGODB-AWS.
#[derive(Debug)]
pub(super) struct Aws {
    provider: Option<aws::Provider>,
    cloud: CloudEnvironment,
    /// Credentials from a service, kept until they expire or authentication fails.
    ///
    /// Connections that find no valid credentials request them concurrently, as the specification requires, and the
    /// last answer is kept. The cache is not behind a lock: in a forked child, the lock might be held by a thread that
    /// exists only in the parent.
    cache: ArcSwapOption<AwsCredentials>,
}

impl Aws {
    pub fn new(credential: &Credential) -> Result<Self, InvalidOption> {
        Ok(Self {
            provider: credential.aws_provider.clone(),
            cloud: credential.cloud.clone(),
            cache: ArcSwapOption::empty(),
        })
    }

    /// Runs the MONGODB-AWS conversation, which is never speculative.
    pub async fn authenticate(&self, conversation: &mut Conversation<'_>) -> Result<(), Cause> {
        let outcome = self.converse(conversation).await;
        if outcome.is_err() {
            self.cache.store(None);
        }
        outcome
    }

    async fn converse(&self, conversation: &mut Conversation<'_>) -> Result<(), Cause> {
        // The credentials are obtained before the conversation begins, so that the server does not wait for another
        // service.
        let credentials = conversation.deadline.bound(self.credentials()).await.map_err(Cause::Timeout)?;
        let credentials = credentials.map_err(|error| Cause::Provider(Box::new(error)))?;

        let mut nonce = [0; NONCE_LENGTH];
        getrandom::fill(&mut nonce).map_err(|error| Cause::Randomness(io::Error::other(error)))?;
        let command = sasl::start(Mechanism::MongoDbAws, client_first(&nonce).as_bytes(), None);
        let reply = SaslReply::read(conversation.run(DATABASE, &command).await?)?;
        reply.require_done(false)?;
        let server = ServerFirst::read(reply.payload, &nonce)?;

        let keys = AccessKeys {
            access_key_id: &credentials.access_key_id,
            secret_access_key: credentials.secret_access_key.reveal(),
            session_token: credentials.session_token.as_ref().map(|token| token.reveal()),
        };
        let message = Zeroizing::new(client_second(&server, keys, now())?.into_bytes());
        let command = sasl::advance(&reply.conversation_id, &message);
        SaslReply::read(conversation.run_secret(DATABASE, command).await?)?.require_done(true)?;
        Ok(())
    }

    /// Returns credentials that are valid now, from the first available source.
    async fn credentials(&self) -> Result<Arc<AwsCredentials>, Unavailable> {
        if let Some(aws::Provider(provider)) = &self.provider {
            return provider.credentials().await.map(Arc::new).map_err(Unavailable::Custom);
        }
        let cached = self.cache.load_full();
        match &cached {
            Some(credentials) if is_valid(credentials) => return Ok(Arc::clone(credentials)),
            // The credentials came from a service, so they are renewed there, even if variables have been set since.
            Some(_) => {}
            None => {
                if let Some(credentials) = sources::from_variables(&self.cloud)? {
                    return Ok(Arc::new(credentials));
                }
            }
        }
        let credentials = Arc::new(sources::from_service(&self.cloud).await?);
        // Credentials without an expiry are not cached, because it is not known when to renew them.
        if credentials.expiration.is_some() {
            self.cache.store(Some(Arc::clone(&credentials)));
        }
        Ok(credentials)
    }
}

fn is_valid(credentials: &AwsCredentials) -> bool {
    credentials.expiration.is_some_and(|expiration| expiration > SystemTime::now() + EXPIRY_MARGIN)
}

fn now() -> Timestamp {
    // A clock that shows a time before 1970 is treated as if it showed 1970: the server refuses the signature in both
    // cases, and says why.
    Timestamp(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::pool::runtime::in_child;

    /// If there were a lock, it would be held during some of the forks.
    #[test]
    fn forked_child_finds_credentials_while_a_thread_of_the_parent_stores_some() {
        let expiration = SystemTime::now() + 2 * EXPIRY_MARGIN;
        let credentials = Arc::new(AwsCredentials {
            access_key_id: "id".to_owned(),
            secret_access_key: "key".into(),
            session_token: None,
            expiration: Some(expiration),
        });
        let cache = ArcSwapOption::new(Some(Arc::clone(&credentials)));
        let (aws, stop) = (Aws { provider: None, cloud: CloudEnvironment::default(), cache }, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    aws.cache.store(Some(Arc::clone(&credentials)));
                }
            });
            let use_cache = || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|_| 1)?;
                let found = runtime.block_on(aws.credentials()).map_err(|_| 2)?;
                aws.cache.store(None);
                if Arc::ptr_eq(&found, &credentials) && aws.cache.load().is_none() { Ok(()) } else { Err(3) }
            };
            let codes: Vec<_> = (0..50).map(|_| in_child(use_cache)).take_while(|code| *code == 0).collect();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(codes.len(), 50);
        });
        assert!(aws.cache.load().is_some());
    }
}
