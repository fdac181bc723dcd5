//! The mechanism MONGODB-AWS.

use super::{Cause, Conversation};
use crate::options::{Credential, InvalidOption};

/// What all connections share for MONGODB-AWS.
#[derive(Debug)]
pub(super) struct Aws {}

impl Aws {
    pub fn new(credential: &Credential) -> Result<Self, InvalidOption> {
        let _ = credential;
        Err(super::unavailable(crate::options::Mechanism::MongoDbAws))
    }

    /// Holds the conversation of MONGODB-AWS. It is never speculative.
    pub async fn authenticate(&self, conversation: &mut Conversation<'_>) -> Result<(), Cause> {
        let _ = conversation;
        unreachable!("BUG: no value of this type is made")
    }
}
