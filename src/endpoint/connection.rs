//! An established connection that runs commands.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bson::{RawDocument, RawDocumentBuf};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::authentication::Authentication;
use super::channel::{Channel, ExchangeError, Reply, Request};
use super::command::{Command, Limit, MaxTime};
use super::deadline::Deadline;
use super::error::{CommandError, CommandTimeoutError, Origin};
use crate::endpoint::options::{Compressor, Options};
use crate::endpoint::wire::reply::{self, MAX_TIME_MS_EXPIRED, REAUTHENTICATION_REQUIRED, Unsuccessful};
use crate::endpoint::wire::{Flags, HelloReply, ServerError};
use crate::pool::condition::Condition;
use crate::pool::error::Cause;
use crate::pool::runtime::boxed;
use crate::pool::runtime::{Lapse, on_runtime, within};
use crate::text::milliseconds::Milliseconds;

/// The maximum memory, in bytes, that a connection keeps for the elements that a client appends to a command. A
/// session, a transaction and the cluster time need 250 bytes; only a large write concern or read preference needs
/// more.
const MOST_ROOM: usize = 1024;

/// An established connection to a MongoDB server. It is closed when it is dropped.
///
/// A pool's [`Connection`](crate::Connection) and a [`DirectConnection`](super::DirectConnection) both dereference to
/// it. Each type has its own `run`. On a pool's connection, `run` returns early if the pool is cleared with
/// `interruptInUseConnections`.
#[derive(Debug)]
pub struct EndpointConnection {
    pub(super) identity: Identity,
    options: Arc<Options>,
    pub(super) channel: Channel,
    authentication: Option<Box<Authentication>>,
    /// The runtime that the socket is registered with.
    runtime: Handle,
    /// Whether a reauthentication has begun and has not succeeded.
    reauthenticating: bool,
    /// Whether the connection is closed rather than drained after a command was cancelled or timed out.
    closes_if_cut_short: bool,
    /// Memory for the elements that a client appends to a command.
    room: Vec<u8>,
    /// Notified when a command that was cut off has finished.
    waiting: Option<Box<dyn AwaitsDrain>>,
}

/// Is notified when a cut-off command has finished on its connection. If the value is dropped without being notified,
/// the command is never reported as finished.
pub(crate) trait AwaitsDrain: fmt::Debug + Send + Sync {
    /// The connection was drained: the server executed the command, or never received it.
    fn drained(self: Box<Self>);
}

/// What the last user left unfinished, which prevents the connection from running another command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
enum LeftUndone {
    #[error("an authentication on the connection did not finish")]
    Authentication,
    #[error("a command on the connection was cancelled or timed out, or its stream of replies was abandoned")]
    Command,
}

/// Identifies a connection, its server and its pool.
#[derive(Debug)]
pub(super) struct Identity {
    address: Arc<str>,
    connection_id: u64,
    generation: u64,
    hello: HelloReply,
}

/// The parts of a newly established connection.
pub(super) struct Opened {
    /// The endpoint's address.
    pub address: Arc<str>,
    pub options: Arc<Options>,
    /// The connection's number in its pool, or 0 if it does not belong to a pool.
    pub connection_id: u64,
    /// The pool's generation when the connection was created, or 0 if it does not belong to a pool.
    pub generation: u64,
    /// The runtime that the channel's socket is registered with.
    pub runtime: Handle,
    pub channel: Channel,
    /// The negotiated compressor for all messages that may be compressed. Authentication does not use it.
    pub compressor: Option<Compressor>,
    pub hello: HelloReply,
    /// The state for authenticating again; `None` if the connection was not authenticated.
    pub authentication: Option<Box<Authentication>>,
}

impl Identity {
    /// Returns the origin of an error on this connection. It has no generation if there is a service, because only the
    /// pool knows the generation of a service.
    pub fn origin(&self) -> Box<Origin> {
        let in_pool = self.connection_id > 0;
        let service_id = self.hello.service_id;
        Box::new(Origin {
            address: Arc::clone(&self.address),
            connection_id: in_pool.then_some(self.connection_id),
            server_connection_id: self.hello.server_connection_id,
            generation: (in_pool && service_id.is_none()).then_some(self.generation),
            service_id,
        })
    }

    /// Returns the error for a command whose exchange failed.
    #[cold]
    pub fn failed(&self, error: ExchangeError) -> Box<CommandError> {
        let origin = self.origin();
        Box::new(match error {
            ExchangeError::Network(source) => CommandError::Network { origin, source: Arc::new(source) },
            ExchangeError::Wire(error) => CommandError::Wire { origin, source: Arc::new(error) },
            ExchangeError::NotReusable => CommandError::NotReusable { origin },
        })
    }

    /// Returns the error for a command that was not sent because the idle stream had failed or held unexpected bytes.
    #[cold]
    fn lost(&self, found: ExchangeError) -> Box<CommandError> {
        let source = match found {
            ExchangeError::Network(source) => source,
            ExchangeError::Wire(unasked) => io::Error::new(io::ErrorKind::InvalidData, unasked),
            ExchangeError::NotReusable => return self.failed(found),
        };
        Box::new(CommandError::Lost { origin: self.origin(), source: Arc::new(source) })
    }
}

impl EndpointConnection {
    pub(super) fn new(opened: Opened) -> Self {
        let Opened {
            address,
            options,
            connection_id,
            generation,
            runtime,
            mut channel,
            compressor,
            hello,
            authentication,
        } = opened;
        channel.set_limits(&hello);
        channel.set_compressor(compressor);
        channel.set_busy_poll(options.busy_poll);
        let identity = Identity { address, connection_id, generation, hello };
        Self {
            identity,
            options,
            channel,
            authentication,
            runtime,
            reauthenticating: false,
            closes_if_cut_short: false,
            room: Vec::new(),
            waiting: None,
        }
    }

    /// Finishes a command that was cancelled or timed out, so that the connection can be reused. Returns whether it can
    /// now run another command.
    ///
    /// Writes the rest of the command, then reads and discards its reply, within [`Options::drain_timeout`] and
    /// [`Options::drain_limit`]. Does nothing if the connection is already reusable. If the reply names a newly opened
    /// cursor, the drain closes that cursor on the server (`killCursors`), because no caller knows the cursor.
    ///
    /// A pool drains connections at check-in automatically. Call this on a connection that is held for several
    /// commands, such as the commands of a transaction.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: the next call continues.
    pub async fn drain(&mut self) -> bool {
        match self.condition() {
            Condition::Reusable => true,
            Condition::Broken => false,
            Condition::NeedsDrain => {
                // The error does not matter: the state of the channel shows whether the exchange has completed.
                let draining = self.channel.drain(self.options.drain_limit);
                // A deadline beyond the clock's range means no limit.
                let is_drained = match Instant::now().checked_add(self.options.drain_timeout) {
                    Some(at) => matches!(within(at, || Some(self.runtime.clone()), draining).await, Ok(Ok(()))),
                    None => draining.await.is_ok(),
                };
                if is_drained && let Some(waiting) = self.waiting.take() {
                    waiting.drained();
                }
                is_drained
            }
        }
    }

    /// Returns the condition of the connection: whether it can run another command.
    ///
    /// The connection [needs a drain](Condition::NeedsDrain) after a command that was cancelled or timed out.
    /// [`drain`](Self::drain) may make it reusable again. The connection is [broken](Condition::Broken) after a network
    /// or protocol error.
    #[must_use]
    #[inline]
    pub fn condition(&self) -> Condition {
        if self.channel.is_idle() && !self.reauthenticating {
            Condition::Reusable
        } else {
            self.condition_amid_exchange()
        }
    }

    /// Returns [`condition`](Self::condition) at check-in, and frees the buffer of a large reply that was lent out.
    #[inline]
    pub(super) fn condition_at_check_in(&mut self) -> Condition {
        if self.channel.is_idle() && !self.reauthenticating {
            Condition::Reusable
        } else {
            self.condition_at_check_in_amid_exchange()
        }
    }

    #[cold]
    fn condition_at_check_in_amid_exchange(&mut self) -> Condition {
        if self.closes_if_cut_short {
            // This also applies if no part of the command was sent, because nothing refers to the transaction any
            // longer.
            return Condition::Broken;
        }
        let condition = self.condition_amid_exchange();
        if condition.is_reusable() {
            self.channel.return_to_idle();
        }
        condition
    }

    #[cold]
    fn condition_amid_exchange(&self) -> Condition {
        match self.channel.condition() {
            // The connection is in the middle of a conversation that determines the client's identity.
            _ if self.reauthenticating => Condition::Broken,
            Condition::NeedsDrain if self.closes_if_cut_short || self.options.drain_timeout.is_zero() => {
                Condition::Broken
            }
            condition => condition,
        }
    }

    /// Returns why the connection cannot run another command, for the event that reports its closing.
    pub(super) fn broken_by(&self) -> Cause {
        match self.channel.broken_by() {
            Some(error) => Arc::clone(error),
            None if self.reauthenticating => Arc::new(LeftUndone::Authentication),
            None => Arc::new(LeftUndone::Command),
        }
    }

    /// Returns an error if the connection was lost while it was idle.
    #[inline]
    pub(crate) fn check_idle(&mut self) -> Result<(), Box<CommandError>> {
        self.channel.check_idle().map_err(|error| self.identity.lost(error))
    }

    /// Encodes the command. Nothing is sent yet.
    pub(super) fn begin(&mut self, command: &Command<'_>, max_time: MaxTime) -> Result<(), Box<CommandError>> {
        if !self.condition().is_reusable() {
            return Err(self.identity.failed(ExchangeError::NotReusable));
        }
        self.check_idle()?;
        let Command { database, body, sequences, flags, appended, .. } = *command;
        let request = Request { database, body, sequences, flags, appended: [appended, max_time.bytes()] };
        self.channel.begin(&request).map_err(|error| self.identity.failed(error))
    }

    /// Returns whether a command with this limit needs to read the clock.
    #[inline]
    pub(super) fn is_timed(&self, limit: Limit) -> bool {
        match limit {
            Limit::Unset => !self.options.socket_timeout.is_zero(),
            Limit::Infinite => false,
            Limit::For(_) | Limit::Until { .. } => true,
        }
    }

    /// Sends the command and reads its reply into the channel. The limit has already started.
    pub(super) async fn complete(&mut self, command: &Command<'_>, limit: Limit) -> Result<(), Box<CommandError>> {
        if self.is_timed(limit) {
            // This is boxed so that a command without a limit carries no timer.
            return boxed(|| self.complete_in_time(command, limit)).await;
        }
        self.begin(command, MaxTime::NONE)?;
        poll_fn(|context| self.poll_finish(context)).await
    }

    /// Sends a command to which the server sends no reply.
    pub(super) async fn send_unanswered(&mut self, command: Command<'_>) -> Result<(), Box<CommandError>> {
        let command = command.with_flags(Flags::MORE_TO_COME);
        self.complete(&command, command.limit(&self.options)).await?;
        self.channel.trim();
        Ok(())
    }

    /// Like [`complete`](Self::complete), but for a command that [`is_timed`](Self::is_timed).
    pub(super) async fn complete_in_time(
        &mut self,
        command: &Command<'_>,
        limit: Limit,
    ) -> Result<(), Box<CommandError>> {
        let max_time = self.max_time(command, limit)?;
        self.begin(command, max_time)?;
        self.finish_in_time(limit).await
    }

    /// Continues the exchange until its next reply is complete.
    ///
    /// This is not inlined, so that the code of a command is in one place, next to `begin` and `outcome`. A CPU core
    /// that has slept since the last command must fetch every page and cache line of this code again.
    #[inline(never)]
    pub(super) fn poll_finish(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Box<CommandError>>> {
        let finished = ready!(self.channel.poll_finish(context));
        Poll::Ready(finished.map_err(|error| self.identity.failed(error)))
    }

    /// Returns whether [`poll_finish`](Self::poll_finish) may still send something.
    #[inline]
    pub(super) fn is_sending(&self) -> bool {
        !self.channel.is_sent()
    }

    /// Returns the time limit to send to the server.
    pub(super) fn max_time(&self, command: &Command<'_>, limit: Limit) -> Result<MaxTime, Box<CommandError>> {
        let Limit::Until { at, limit } = limit else { return Ok(MaxTime::NONE) };
        let left = at.saturating_duration_since(Instant::now());
        command.max_time(left).ok_or_else(|| self.timed_out(limit, CommandTimeoutError::Unsent))
    }

    /// Continues the exchange until its next reply is complete, within the limit.
    pub(super) async fn finish_in_time(&mut self, limit: Limit) -> Result<(), Box<CommandError>> {
        match limit {
            Limit::Until { at, limit } => {
                match within(at, || Some(self.runtime.clone()), self.channel.finish()).await {
                    Ok(finished) => finished.map_err(|error| self.identity.failed(error)),
                    Err(Lapse::NoRuntime) => Err(self.runtime_ended()),
                    Err(_) if self.channel.is_unsent() => Err(self.timed_out(limit, CommandTimeoutError::Unsent)),
                    Err(_) if self.channel.is_sent() => Err(self.timed_out(limit, CommandTimeoutError::Receiving)),
                    Err(_) => Err(self.timed_out(limit, CommandTimeoutError::Sending)),
                }
            }
            Limit::Unset if !self.options.socket_timeout.is_zero() => loop {
                let limit = self.options.socket_timeout;
                // A deadline beyond the clock's range means no limit.
                let advanced = match Instant::now().checked_add(limit) {
                    Some(at) => within(at, || Some(self.runtime.clone()), self.channel.advance()).await,
                    None => Ok(self.channel.advance().await),
                };
                match advanced {
                    Ok(Ok(true)) => return Ok(()),
                    Ok(Ok(false)) => {}
                    Ok(Err(error)) => return Err(self.identity.failed(error)),
                    Err(Lapse::NoRuntime) => return Err(self.runtime_ended()),
                    Err(Lapse::TimeUp) => {
                        let message = format!("no progress within socketTimeoutMS ({})", Milliseconds(limit));
                        let source = Arc::new(io::Error::new(io::ErrorKind::TimedOut, message));
                        return Err(Box::new(CommandError::Network { origin: self.identity.origin(), source }));
                    }
                }
            },
            Limit::Unset | Limit::Infinite | Limit::For(_) => poll_fn(|context| self.poll_finish(context)).await,
        }
    }

    /// Takes the received reply out of the connection's buffer. Returns an error unless the reply reports success.
    pub(super) fn outcome(&mut self, limit: Limit) -> Result<RawDocumentBuf, Box<CommandError>> {
        let reply = self.channel.take_body().map_err(|error| self.identity.failed(error))?;
        let examined = examine(reply.document, limit, &self.identity).map(|()| reply.document.to_owned());
        if let Err(failure) = &examined {
            self.break_after(failure);
        }
        self.channel.trim();
        examined
    }

    /// Like [`outcome`](Self::outcome), but leaves the reply in the buffer.
    pub(super) fn take(&mut self, limit: Limit) -> Result<Reply, Box<CommandError>> {
        let reply = self.channel.take_reply().map_err(|error| self.identity.failed(error))?;
        if let Err(failure) = examine(self.channel.body(&reply), limit, &self.identity) {
            self.break_after(&failure);
            self.channel.return_to_idle();
            return Err(failure);
        }
        Ok(reply)
    }

    /// Marks the channel as broken if the content of the reply violates the protocol, so that no more replies are read.
    #[cold]
    fn break_after(&mut self, failure: &CommandError) {
        if let CommandError::Wire { .. } = failure {
            self.channel.mark_broken();
        }
    }

    /// Returns true if the command failed because the server asked the connection to authenticate again, and the
    /// connection has a credential.
    pub(super) fn must_authenticate(&self, failure: &CommandError) -> bool {
        let code = failure.server_error().map(|error| error.code);
        code == Some(REAUTHENTICATION_REQUIRED) && self.authentication.is_some()
    }

    /// Authenticates again at the server's request, then runs the command once more.
    pub(super) async fn run_again(&mut self, command: Command<'_>) -> Result<RawDocumentBuf, Box<CommandError>> {
        self.authenticate_again(command.limit).await?;
        let limit = command.limit(&self.options);
        self.complete(&command, limit).await?;
        self.outcome(limit)
    }

    /// Authenticates again at the server's request, within the command's limit.
    pub(super) async fn authenticate_again(&mut self, limit: Limit) -> Result<(), Box<CommandError>> {
        let deadline = match limit {
            Limit::Until { at, limit } => match at.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => Deadline::of_operation(left),
                _ => return Err(self.timed_out(limit, CommandTimeoutError::Unsent)),
            },
            _ => Deadline::after(self.options.connect_timeout),
        };
        if let Some(authentication) = &mut self.authentication {
            self.reauthenticating = true;
            let repeating = authentication.repeat(&mut self.channel, deadline);
            let Ok(repeated) = on_runtime(&self.runtime, repeating).await else {
                return Err(self.runtime_ended());
            };
            if let Err(error) = repeated {
                let (origin, source) = (self.identity.origin(), Arc::new(error));
                return Err(Box::new(CommandError::Reauthentication { origin, source }));
            }
            self.reauthenticating = false;
        }
        Ok(())
    }

    /// Returns the error for a command that no longer has a timer: it is polled outside tokio, and the runtime that the
    /// connection is registered with has shut down.
    #[cold]
    fn runtime_ended(&self) -> Box<CommandError> {
        let source = Arc::new(io::Error::other("the tokio runtime that opened the connection has ended"));
        let origin = self.identity.origin();
        Box::new(match self.channel.is_unsent() {
            true => CommandError::Lost { origin, source },
            false => CommandError::Network { origin, source },
        })
    }

    #[cold]
    fn timed_out(&self, limit: Duration, source: CommandTimeoutError) -> Box<CommandError> {
        Box::new(CommandError::Timeout { origin: self.identity.origin(), limit, source })
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the address of the endpoint that opened the connection.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.identity.address
    }

    /// Returns the server's reply to this connection's handshake. The reply holds the connection's limits.
    #[must_use]
    pub fn hello(&self) -> &HelloReply {
        &self.identity.hello
    }

    /// Takes the buffer for the elements that are appended to a command: an empty vector with the capacity that earlier
    /// commands needed. Giving the buffer back saves the next command an allocation.
    pub(crate) fn take_room(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.room)
    }

    /// Gives back the buffer from [`take_room`](Self::take_room), unless it has grown unusually large.
    pub(crate) fn give_room_back(&mut self, mut room: Vec<u8>) {
        if room.capacity() <= MOST_ROOM {
            room.clear();
            self.room = room;
        }
    }

    /// Sets the value to notify when the connection has been drained.
    pub(crate) fn await_drain(&mut self, waiting: Box<dyn AwaitsDrain>) {
        self.waiting = Some(waiting);
    }

    /// Returns whether no part of the last command was sent.
    pub(crate) fn has_sent_nothing(&self) -> bool {
        !self.reauthenticating && (self.channel.is_idle() || self.channel.is_unsent())
    }

    /// Sets whether the connection is closed rather than drained if a later command is cancelled or times out. Behind a
    /// load balancer, the server aborts a connection's transaction when the connection is closed (Load Balancers,
    /// "Downstream Visible Behavioral Changes"). Draining the connection would leave the transaction open, although
    /// nothing refers to the transaction any longer.
    pub(crate) fn close_if_cut_short(&mut self, closes: bool) {
        self.closes_if_cut_short = closes;
    }

    /// Marks the connection to be closed, rather than reused, when it is returned to its pool.
    pub(crate) fn close_after_use(&mut self) {
        self.channel.mark_broken();
    }

    /// Returns whether the connection has been authenticated.
    ///
    /// Without a credential, this is always false. With a credential, it is true unless the connection belongs to no
    /// pool and the server calls itself an arbiter.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.authentication.is_some()
    }

    /// Returns the local IP address and port, or `None` if the connection uses a Unix domain socket.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.channel.transport().local()
    }

    /// Returns the IP address and port of the peer, which is the server or, if there is a proxy, the proxy.
    ///
    /// Returns `None` if the connection uses a Unix domain socket, whose path is the [`address`](Self::address).
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.channel.transport().peer()
    }

    pub(super) fn abandon_after_fork(mut self) {
        // This value belongs to the parent process. Dropping it would take locks that threads of the parent may hold.
        mem::forget(self.waiting.take());
        self.channel.into_transport().abandon_after_fork();
    }
}

/// Returns an error unless the reply reports success. If there is a time limit, a timeout on the server is
/// distinguished from the server's other errors.
#[inline]
fn examine(reply: &RawDocument, limit: Limit, identity: &Identity) -> Result<(), Box<CommandError>> {
    if reply::begins_with_success(reply) {
        return Ok(());
    }
    examine_further(reply, limit, identity)
}

/// Like [`examine`], but for a reply that does not begin with success.
#[inline(never)]
fn examine_further(reply: &RawDocument, limit: Limit, identity: &Identity) -> Result<(), Box<CommandError>> {
    let expired = |source: Box<ServerError>| {
        let length = if let Limit::Until { limit, .. } = limit { limit } else { Duration::ZERO };
        Box::new(CommandError::Timeout {
            origin: identity.origin(),
            limit: length,
            source: CommandTimeoutError::Server(source),
        })
    };
    match reply::check(reply) {
        Ok(()) => Ok(()),
        Err(Unsuccessful::Command(error)) if limit != Limit::Unset && error.code == MAX_TIME_MS_EXPIRED => {
            Err(expired(error))
        }
        Err(Unsuccessful::Command(source)) => Err(Box::new(CommandError::Server { origin: identity.origin(), source })),
        Err(Unsuccessful::Wire(error)) => {
            Err(Box::new(CommandError::Wire { origin: identity.origin(), source: Arc::new(error) }))
        }
    }
}
