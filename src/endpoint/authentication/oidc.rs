//! The mechanism MONGODB-OIDC.

use bson::{RawDocument, RawDocumentBuf};

use super::{Cause, Conversation};
use crate::options::{Credential, InvalidOption};

/// What all connections share for MONGODB-OIDC.
#[derive(Debug)]
pub(super) struct Oidc {}

/// What one connection was last authenticated with.
#[derive(Debug)]
pub(super) struct Token {}

impl Oidc {
    pub fn new(credential: &Credential) -> Result<Self, InvalidOption> {
        let _ = credential;
        Err(super::unavailable(crate::options::Mechanism::MongoDbOidc))
    }

    /// The command to send along with hello (`saslStart`, without `db`), and the token that it carries; `None` if there
    /// is no token yet.
    pub async fn speculation(&self) -> Option<(RawDocumentBuf, Token)> {
        None
    }

    /// Authenticates a new connection. `speculated` is what was sent along with hello and the server's answer to it.
    pub async fn authenticate(
        &self,
        conversation: &mut Conversation<'_>,
        speculated: Option<(Token, &RawDocument)>,
    ) -> Result<Token, Cause> {
        let _ = (conversation, speculated);
        unreachable!("BUG: no value of this type is made")
    }

    /// Authenticates a connection again whose token the server no longer accepts (error 391).
    pub async fn reauthenticate(&self, conversation: &mut Conversation<'_>, token: &mut Token) -> Result<(), Cause> {
        let _ = (conversation, token);
        unreachable!("BUG: no value of this type is made")
    }
}
