//! Races in virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::time::{Instant, sleep};

use super::*;
use crate::endpoint::transport::unconnected;
use crate::pool::error::Labels;

const AGES: Duration = Duration::from_secs(3_600);

/// The outcome of an attempt, and the time that it takes.
type Outcome = (Duration, Result<(), io::ErrorKind>);

const ACCEPTS: Outcome = (Duration::ZERO, Ok(()));
const REFUSES: Outcome = (Duration::ZERO, Err(io::ErrorKind::ConnectionRefused));
const SILENT: Outcome = (AGES, Ok(()));

/// Counts the futures that are alive.
struct Alive(Rc<RefCell<Vec<SocketAddr>>>, SocketAddr);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.borrow_mut().retain(|address| *address != self.1);
    }
}

/// The outcome of a race, and when each attempt began, in milliseconds.
struct Ran {
    outcome: Result<SocketAddr, ConnectError>,
    began: Vec<(SocketAddr, u128)>,
    took: u128,
}

async fn race(attempts: &[(&str, Outcome)], deadline: Deadline) -> Ran {
    let addresses: Vec<SocketAddr> = attempts.iter().map(|(address, _)| address.parse().unwrap()).collect();
    let outcome_of = |peer| attempts[addresses.iter().position(|address| *address == peer).unwrap()].1;
    let start = Instant::now();
    let alive = Rc::new(RefCell::new(Vec::new()));
    let mut began = Vec::new();
    let connect = |peer| {
        began.push((peer, start.elapsed().as_millis()));
        alive.borrow_mut().push(peer);
        let alive = Alive(Rc::clone(&alive), peer);
        let (after, outcome) = outcome_of(peer);
        async move {
            let _alive = alive;
            sleep(after).await;
            outcome.map(|()| peer).map_err(io::Error::from)
        }
    };
    let outcome = connect_first(addresses.clone(), connect, deadline).await;
    assert!(alive.borrow().is_empty(), "attempts outlive their race: {alive:?}");
    Ran { outcome, began, took: start.elapsed().as_millis() }
}

fn ages() -> Deadline {
    Deadline::after(AGES)
}

fn began(ran: &Ran) -> Vec<(String, u128)> {
    ran.began.iter().map(|(address, at)| (address.to_string(), *at)).collect()
}

#[test]
fn address_families_alternate_and_keep_their_order() {
    let interleaved = |addresses: &[&str]| -> Vec<String> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        interleave(addresses).iter().map(ToString::to_string).collect()
    };
    let mixed = ["[::1]:1", "[::2]:1", "[::3]:1", "1.0.0.1:1", "1.0.0.2:1"];
    assert_eq!(interleaved(&mixed), ["[::1]:1", "1.0.0.1:1", "[::2]:1", "1.0.0.2:1", "[::3]:1"]);
    assert_eq!(interleaved(&["1.0.0.1:1", "1.0.0.2:1", "[::1]:1"]), ["1.0.0.1:1", "[::1]:1", "1.0.0.2:1"]);
    assert_eq!(interleaved(&[]), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn server_that_answers_is_tried_at_one_address() {
    let ran = race(&[("[::1]:1", ACCEPTS), ("1.0.0.1:1", ACCEPTS)], ages()).await;
    assert_eq!(ran.outcome.as_ref().unwrap().to_string(), "[::1]:1");
    assert_eq!((began(&ran), ran.took), (vec![("[::1]:1".to_owned(), 0)], 0));
}

#[tokio::test(start_paused = true)]
async fn next_attempt_begins_at_once_after_a_refusal() {
    let ran = race(&[("[::1]:1", REFUSES), ("1.0.0.1:1", ACCEPTS)], ages()).await;
    assert_eq!(ran.outcome.as_ref().unwrap().to_string(), "1.0.0.1:1");
    assert_eq!(began(&ran), [("[::1]:1".to_owned(), 0), ("1.0.0.1:1".to_owned(), 0)]);
}

#[tokio::test(start_paused = true)]
async fn next_attempt_begins_250_ms_after_an_unanswered_attempt() {
    let ran = race(&[("[::1]:1", SILENT), ("[::2]:1", SILENT), ("1.0.0.1:1", SILENT), ("1.0.0.2:1", ACCEPTS)], ages());
    let ran = ran.await;
    assert_eq!(ran.outcome.as_ref().unwrap().to_string(), "1.0.0.2:1");
    let times = [("[::1]:1", 0), ("1.0.0.1:1", 250), ("[::2]:1", 500), ("1.0.0.2:1", 750)];
    assert_eq!(began(&ran), times.map(|(address, at)| (address.to_owned(), at)));
}

#[tokio::test(start_paused = true)]
async fn earlier_attempt_can_still_win() {
    let slow = (Duration::from_millis(300), Ok(()));
    let ran = race(&[("[::1]:1", slow), ("1.0.0.1:1", (Duration::from_millis(100), Ok(())))], ages()).await;
    assert_eq!(ran.outcome.as_ref().unwrap().to_string(), "[::1]:1");
    assert_eq!(ran.took, 300);
    let ran = race(&[("[::1]:1", slow), ("1.0.0.1:1", REFUSES)], ages()).await;
    assert_eq!((ran.outcome.unwrap().to_string(), ran.took), ("[::1]:1".to_owned(), 300));
}

#[tokio::test(start_paused = true)]
async fn total_failure_lists_every_address_with_its_error() {
    let unreachable = (Duration::from_millis(400), Err(io::ErrorKind::HostUnreachable));
    let failed = race(&[("[::1]:1", unreachable), ("1.0.0.1:1", REFUSES)], ages()).await.outcome.unwrap_err();
    let attempts: Vec<_> = failed.attempts.iter().map(|attempt| (&*attempt.peer, attempt.source.kind())).collect();
    let refused = ("1.0.0.1:1", io::ErrorKind::ConnectionRefused);
    assert_eq!(attempts, [refused, ("[::1]:1", io::ErrorKind::HostUnreachable)]);
    assert_eq!(failed.timeout, None);
    assert_eq!(
        failed.to_string(),
        "the server did not accept a connection (1.0.0.1:1: connection refused; [::1]:1: host unreachable)"
    );
}

#[tokio::test(start_paused = true)]
async fn deadline_ends_all_attempts_and_lists_those_without_an_answer() {
    let limit = Duration::from_millis(300);
    let attempts = [("[::1]:1", REFUSES), ("1.0.0.1:1", SILENT), ("[::2]:1", SILENT), ("[::3]:1", SILENT)];
    let ran = race(&attempts, Deadline::after(limit)).await;
    let failed = ran.outcome.unwrap_err();
    assert_eq!((failed.timeout, ran.took), (Some(ConnectTimeoutError { limit, option: "connectTimeoutMS" }), 300));
    assert_eq!(
        failed.to_string(),
        "the server did not accept a connection ([::1]:1: connection refused; 1.0.0.1:1: no answer in time; \
         [::2]:1: no answer in time; [::3]:1: not tried in time): \
         it did not finish within connectTimeoutMS (300 ms)"
    );
}

#[tokio::test(start_paused = true)]
async fn failure_is_local_only_if_every_attempt_failed_locally() {
    let failed = async |codes: &[Option<i32>]| {
        let mut codes = codes.iter();
        let addresses = (0..codes.len()).map(|port| SocketAddr::from(([127, 0, 0, 1], port as u16))).collect();
        let connect = |_| {
            let code = codes.next().unwrap();
            async move { Err::<(), _>(code.map_or(io::ErrorKind::ConnectionRefused.into(), io::Error::from_raw_os_error)) }
        };
        connect_first(addresses, connect, Deadline::after(AGES)).await.unwrap_err()
    };
    #[cfg(unix)]
    for code in
        [libc::EMFILE, libc::ENFILE, libc::EADDRNOTAVAIL, libc::EINVAL, libc::ENOBUFS, libc::EACCES, libc::EPERM]
    {
        let error = failed(&[Some(code), Some(libc::EMFILE)]).await;
        assert!(error.is_local() && error.to_string().starts_with("this machine could not open a connection ("));
        assert_eq!(unconnected(error).labels(), Labels::NONE);
        let error = failed(&[Some(code), None]).await;
        assert!(!error.is_local() && error.to_string().starts_with("the server did not accept a connection ("));
        assert_eq!(unconnected(error).labels(), Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE));
    }
    for code in [libc::ECONNREFUSED, libc::ECONNRESET, libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH] {
        assert!(!failed(&[Some(code)]).await.is_local(), "{code}");
    }
}
