//! The SCRAM-SHA-1 and SCRAM-SHA-256 conversation.

use bson::raw::cstr;
use bson::{RawDocument, RawDocumentBuf, rawdoc};

use zeroize::Zeroizing;

use super::{Cause, Conversation, KeyCache};
use crate::endpoint::options::{Credential, InvalidOption};
use crate::endpoint::wire::auth::sasl::{self, SaslReply};
use crate::endpoint::wire::auth::scram::{ClientFirst, Hash, ScramError};

/// The state that all connections share for SCRAM.
#[derive(Debug)]
pub(super) struct Scram {
    username: String,
    /// The database in which the user is defined.
    source: String,
    /// `None` if the server and the client must negotiate the mechanism.
    forced: Option<Hash>,
    keys: KeyCache,
}

/// A conversation that began with the hello.
#[derive(Debug)]
pub(super) struct Begun {
    hash: Hash,
    client_first: ClientFirst,
}

impl Scram {
    pub fn new(credential: &Credential, source: &str, forced: Option<Hash>) -> Result<Self, InvalidOption> {
        let (username, password) = super::name_and_password(credential)?;
        let (username, source) = (username.to_owned(), source.to_owned());
        Ok(Self { keys: KeyCache::new(username.clone(), password.clone()), username, source, forced })
    }

    /// Returns `saslSupportedMechs`, with the user name exactly as given, if the mechanism must be negotiated.
    pub fn supported_mechanisms_of(&self) -> Option<String> {
        self.forced.is_none().then(|| format!("{}.{}", self.source, self.username))
    }

    /// Returns the first message, to send along with hello. If the mechanism must be negotiated, the message belongs to
    /// SCRAM-SHA-256, as the specification requires.
    ///
    /// # Errors
    ///
    /// [`Cause::Randomness`] if the operating system cannot supply random bytes.
    pub fn speculation(&self) -> Result<(RawDocumentBuf, Begun), Cause> {
        let begun = self.begin(self.forced.unwrap_or(Hash::Sha256))?;
        let mut command = begun.command();
        command.append(cstr!("db"), self.source.as_str());
        Ok((command, begun))
    }

    /// Returns the mechanism for a server that reports these mechanisms for the user. If the server reports none, the
    /// mechanism is SCRAM-SHA-1 (Authentication specification, "Default Authentication Methods").
    pub fn choose(&self, supported: Option<&[String]>) -> Hash {
        let sha_256 = || supported.is_some_and(|names| names.iter().any(|name| name == "SCRAM-SHA-256"));
        match self.forced {
            Some(hash) => hash,
            None if sha_256() => Hash::Sha256,
            None => Hash::Sha1,
        }
    }

    /// Completes the conversation. `begun` holds the message that was sent along with hello, and the reply to it. If
    /// the message belongs to a mechanism other than `hash`, the conversation starts over.
    pub async fn authenticate(
        &self,
        conversation: &mut Conversation<'_>,
        hash: Hash,
        begun: Option<(Begun, &RawDocument)>,
    ) -> Result<(), Cause> {
        if let Some((begun, reply)) = begun.filter(|(begun, _)| begun.hash == hash) {
            return self.conclude(conversation, begun, Started::read(reply)?).await;
        }
        let begun = self.begin(hash)?;
        let started = Started::read(conversation.run(&self.source, &begun.command()).await?)?;
        self.conclude(conversation, begun, started).await
    }

    fn begin(&self, hash: Hash) -> Result<Begun, Cause> {
        Ok(Begun { hash, client_first: ClientFirst::new(&self.username, &super::nonce()?) })
    }

    /// Continues after the server's first message.
    async fn conclude(&self, conversation: &mut Conversation<'_>, begun: Begun, started: Started) -> Result<(), Cause> {
        let challenge = begun.client_first.read(&started.payload)?;
        let keys =
            conversation.deadline.bound(self.keys.keys(begun.hash, &challenge)).await.map_err(Cause::Timeout)??;
        // The client's final message is wiped: its proof would let an attacker test any number of passwords offline.
        let (client_final, verification) = challenge.answer(&keys);
        let client_final = Zeroizing::new(client_final);
        let command = sasl::advance(&started.conversation_id, client_final.as_bytes());
        let reply = SaslReply::read(conversation.run_secret(&self.source, command).await?)?;
        verification.check(reply.payload)?;
        if reply.done {
            return Ok(());
        }
        // A server that does not know `skipEmptyExchange` expects one more message.
        let command = sasl::advance(&started.conversation_id, b"");
        let reply = SaslReply::read(conversation.run(&self.source, &command).await?)?;
        if reply.done { Ok(()) } else { Err(Cause::Endless) }
    }
}

impl Begun {
    fn command(&self) -> RawDocumentBuf {
        let options = rawdoc! { "skipEmptyExchange": true };
        sasl::start(self.hash.mechanism(), self.client_first.message().as_bytes(), Some(&options))
    }
}

/// The server's answer to the first message, copied out of the receive buffer.
struct Started {
    conversation_id: bson::RawBson,
    payload: Vec<u8>,
}

impl Started {
    fn read(reply: &RawDocument) -> Result<Self, Cause> {
        let SaslReply { conversation_id, payload, done } = SaslReply::read(reply)?;
        // A server that ends the conversation here has proven nothing.
        if done {
            Err(ScramError::EndedEarly.into())
        } else {
            Ok(Self { conversation_id, payload: payload.to_owned() })
        }
    }
}
