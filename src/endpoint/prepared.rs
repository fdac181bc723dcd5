//! Prepares a command: determines its time limit and its additions right before it is sent.

use std::sync::Arc;

use super::Endpoint;
use super::channel::ExchangeError;
use super::command::{Command, Limit};
use super::pooled::OperationError;
use crate::pool::runtime::Connection;

/// A command's time limit and additions, as determined right before it is sent.
pub(crate) struct Prepared {
    limit: Limit,
    /// The caller's additions, and `maxTimeMS`.
    appended: Vec<u8>,
}

impl Prepared {
    /// Returns the command with the results of [`Connection::prepare`].
    pub(crate) fn command<'a>(&'a self, command: Command<'a>) -> Command<'a> {
        command.within(self.limit).appended(&self.appended).without_max_time()
    }

    /// Returns the command with its limit, which has already started.
    pub(crate) fn started<'a>(&self, command: Command<'a>) -> Command<'a> {
        command.within(self.limit)
    }
}

impl Connection<Endpoint> {
    /// Determines the additions to a command now, because its `maxTimeMS` depends on the time that is left.
    ///
    /// # Errors
    ///
    /// [`OperationError::Command`] if the command cannot be sent: no time is left, or the connection is lost or in use.
    pub(crate) fn prepare(&mut self, command: &Command<'_>) -> Result<Prepared, OperationError> {
        let limit = command.limit(self.options());
        let prepared = self.max_time(command, limit).and_then(|max_time| {
            if !self.condition().is_reusable() {
                return Err(self.identity.failed(ExchangeError::NotReusable));
            }
            self.check_idle()?;
            Ok(Prepared { limit, appended: [command.added(), max_time.bytes()].concat() })
        });
        prepared.map_err(|failure| self.placed(*failure))
    }

    /// Returns the elements of the declared server API, which every command carries.
    pub(crate) fn declared_api(&self) -> Arc<[u8]> {
        Arc::clone(self.channel.appended())
    }
}
