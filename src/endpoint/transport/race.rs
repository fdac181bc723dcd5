//! Connects to the first of several addresses that accepts (RFC 8305, "Happy Eyeballs").

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use thiserror::Error;
use tokio::time::timeout;

use super::local::obstacle;
use crate::endpoint::deadline::{ConnectTimeoutError, Deadline};

/// How long to wait for an attempt before the next one begins (RFC 8305, "Connection Attempt Delay").
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to `addresses` in the order of [`interleave`].
///
/// The next attempt begins as soon as a running attempt fails, or 250 ms after the previous attempt began. The first
/// attempt that succeeds wins, and the other attempts are dropped.
pub(in crate::endpoint) async fn connect_first<T, F>(
    addresses: Vec<SocketAddr>,
    connect: impl FnMut(SocketAddr) -> F,
    deadline: Deadline,
) -> Result<T, ConnectError>
where
    F: Future<Output = io::Result<T>>,
{
    let mut race = Race { untried: interleave(addresses), running: Vec::new(), failed: Vec::new(), connect };
    match deadline.bound(race.run()).await {
        Ok(Some(winner)) => Ok(winner),
        Ok(None) => Err(ConnectError { attempts: race.failed, timeout: None }),
        Err(timeout) => {
            let unanswered = |peer: SocketAddr, why| ConnectAttempt {
                peer: peer.to_string(),
                source: io::Error::new(io::ErrorKind::TimedOut, why),
            };
            let running = race.running.iter().map(|attempt| unanswered(attempt.peer, "no answer in time"));
            let untried = race.untried.iter().map(|peer| unanswered(*peer, "not tried in time"));
            let attempts = race.failed.into_iter().chain(running).chain(untried).collect();
            Err(ConnectError { attempts, timeout: Some(timeout) })
        }
    }
}

/// Returns the addresses with the two families alternating, starting with the family of the first address. Each family
/// keeps its order.
///
/// An unreachable family then costs one attempt rather than one attempt per address.
fn interleave(addresses: Vec<SocketAddr>) -> VecDeque<SocketAddr> {
    let first_is_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_ipv6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut taking_turns = VecDeque::new();
    loop {
        let before = taking_turns.len();
        taking_turns.extend(first.next());
        taking_turns.extend(second.next());
        if taking_turns.len() == before {
            return taking_turns;
        }
    }
}

struct Race<F, C> {
    untried: VecDeque<SocketAddr>,
    running: Vec<Attempt<F>>,
    failed: Vec<ConnectAttempt>,
    connect: C,
}

struct Attempt<F> {
    peer: SocketAddr,
    future: Pin<Box<F>>,
}

impl<T, F, C> Race<F, C>
where
    F: Future<Output = io::Result<T>>,
    C: FnMut(SocketAddr) -> F,
{
    /// Returns the first success, or `None` if every attempt has failed.
    async fn run(&mut self) -> Option<T> {
        loop {
            match self.untried.pop_front() {
                Some(peer) => self.running.push(Attempt { peer, future: Box::pin((self.connect)(peer)) }),
                None if self.running.is_empty() => return None,
                None => {}
            }
            let ended = poll_fn(|cx| poll_ended(&mut self.running, cx));
            let ended = match self.untried.is_empty() {
                true => Some(ended.await),
                false => timeout(ATTEMPT_DELAY, ended).await.ok(),
            };
            match ended {
                Some((_, Ok(winner))) => return Some(winner),
                Some((peer, Err(source))) => self.failed.push(ConnectAttempt { peer: peer.to_string(), source }),
                None => {}
            }
        }
    }
}

/// Removes the first attempt that has finished, and returns its address and outcome.
fn poll_ended<T, F>(running: &mut Vec<Attempt<F>>, cx: &mut Context<'_>) -> Poll<(SocketAddr, io::Result<T>)>
where
    F: Future<Output = io::Result<T>>,
{
    for index in 0..running.len() {
        if let Poll::Ready(outcome) = running[index].future.as_mut().poll(cx) {
            return Poll::Ready((running.remove(index).peer, outcome));
        }
    }
    Poll::Pending
}

/// None of a server's addresses accepted a connection.
#[derive(Error)]
#[non_exhaustive]
pub struct ConnectError {
    /// Every address with its failure, in the order in which the attempts failed. Never empty.
    pub attempts: Vec<ConnectAttempt>,
    /// The time limit, if it ended the attempts in progress.
    #[source]
    pub timeout: Option<ConnectTimeoutError>,
}

crate::pool::error::debug_as_sentence!(ConnectError);

/// An attempt to connect to one address.
#[derive(Error)]
#[error("{peer}: {source}{}", obstacle(source).map(|why| format!("; {why}")).unwrap_or_default())]
#[non_exhaustive]
pub struct ConnectAttempt {
    /// The IP address and port, or the path of a Unix domain socket.
    pub peer: String,
    /// The operating system's error, or [`TimedOut`](io::ErrorKind::TimedOut).
    pub source: io::Error,
}

crate::pool::error::debug_as_sentence!(ConnectAttempt);

impl ConnectError {
    /// Returns whether every attempt failed because of this process or machine: too many open files, no free port, no
    /// permission. Such a failure says nothing about the server.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.attempts.iter().all(|attempt| obstacle(&attempt.source).is_some())
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.is_local() {
            true => "this machine could not open a connection (",
            false => "the server did not accept a connection (",
        })?;
        for (index, attempt) in self.attempts.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{attempt}")?;
        }
        f.write_str(")")?;
        match &self.timeout {
            Some(timeout) => write!(f, ": {timeout}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
