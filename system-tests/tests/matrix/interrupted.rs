//! The server at the end of the chain falls silent, or closes the connection, after any number of bytes.

use super::chain::Chain;
use super::*;

/// Returns a chain with a relay in front of the server.
async fn relayed() -> (Chain, Relay) {
    let secured = Secured::shared().await;
    let relay = Relay::start(secured.mongod.address()).await.unwrap();
    let chain = Chain::new(secured, relay.address(), None).await;
    (chain, relay)
}

/// The outcome of a check-out and one command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Tls,
    Hello,
    Authenticate,
    Command,
    Success,
}

/// Checks out a connection from a new pool of `endpoint`, and runs a command. Asserts the conditions that hold for
/// every failure.
async fn attempt(endpoint: &Endpoint) -> Outcome {
    let pool = endpoint.clone().pool().build().unwrap();
    pool.ready();
    let outcome = match tokio::time::timeout(AGES, pool.check_out()).await.expect("the check-out hangs") {
        Err(CheckOutError::Establish(error)) => {
            let (outcome, labels) = match error.stage() {
                Stage::Tls => (Outcome::Tls, OVERLOADED),
                Stage::Hello => (Outcome::Hello, OVERLOADED),
                Stage::Authenticate => (Outcome::Authenticate, Labels::NONE),
                _ => panic!("unexpected stage: {error}"),
            };
            assert_eq!(error.labels(), labels, "{error}");
            outcome
        }
        Err(error) => panic!("unexpected error: {error}"),
        Ok(mut connection) => {
            let ping = rawdoc! { "ping": 1 };
            match tokio::time::timeout(AGES, connection.run_command("admin", &ping)).await.expect("the command hangs") {
                Ok(_) => Outcome::Success,
                Err(error) => {
                    // Whether the command ran is unknown, and a partial reply is useless.
                    let failure = error.command_error().unwrap();
                    assert!(matches!(failure, CommandError::Network { .. } | CommandError::Lost { .. }), "{error}");
                    assert!(error.clears_pool() && !error.has_label("RetryableError"), "{error}");
                    drop(connection);
                    Outcome::Command
                }
            }
        }
    };
    if outcome != Outcome::Success {
        // A failed connection is not kept.
        let empty = async {
            while pool.status().total > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(AGES, empty).await.unwrap();
    }
    outcome
}

/// Opens a connection without a fault, so that all later attempts transfer the same number of bytes: the server sends
/// tickets for resuming the TLS session, and each later attempt uses a ticket. An attempt that reaches authentication
/// has received a new ticket.
async fn warm(relay: &Relay, endpoint: &Endpoint) {
    relay.pass();
    // With a short time limit, a busy machine may need more than one attempt.
    let succeed = async { while attempt(endpoint).await != Outcome::Success {} };
    tokio::time::timeout(AGES, succeed).await.expect("no attempt succeeds without a fault");
}

/// The number of bytes between two cuts in the TLS handshake. Other tests cut the handshake at every byte.
const STEP: u64 = 61;

#[tokio::test]
async fn server_that_closes_at_any_byte_is_reported_by_its_stage() {
    let (chain, relay) = relayed().await;
    let endpoint = chain.options("", "").await.unwrap().endpoint().unwrap();
    for direction in [Direction::ToClient, Direction::ToServer] {
        let (mut bytes, mut outcomes) = (0, Vec::<Outcome>::new());
        loop {
            if outcomes.last().is_none_or(|last| *last < Outcome::Authenticate) {
                warm(&relay, &endpoint).await;
            }
            relay.cut_after(direction, bytes);
            let outcome = attempt(&endpoint).await;
            outcomes.push(outcome);
            bytes += match outcome {
                Outcome::Success => break,
                Outcome::Tls => STEP,
                Outcome::Hello => 13,
                Outcome::Authenticate | Outcome::Command => 1,
            };
        }
        assert!(outcomes.is_sorted(), "{direction:?}: {outcomes:?}");
        for (outcome, least) in
            [(Outcome::Tls, 3), (Outcome::Hello, 10), (Outcome::Authenticate, 60), (Outcome::Command, 30)]
        {
            let count = outcomes.iter().filter(|one| **one == outcome).count();
            assert!(count >= least, "{direction:?}: {count} of {outcome:?}");
        }
    }
    relay.until(|relayed| relayed.open == 0).await;
}

#[tokio::test]
async fn server_that_falls_silent_at_any_stage_fails_at_the_connect_timeout() {
    const LIMIT: Duration = Duration::from_millis(600);
    let (chain, relay) = relayed().await;
    let limited = chain.options("connectTimeoutMS=60000", "connectTimeoutMS=600").await.unwrap();
    let endpoint = limited.endpoint().unwrap();
    warm(&relay, &endpoint).await;
    let before = relay.until(|relayed| relayed.open == 0).await.to_client;
    drop(endpoint.connect().await.unwrap());
    let established = relay.until(|relayed| relayed.open == 0).await.to_client - before;

    let mut outcomes = Vec::new();
    for bytes in (0..established).step_by(established as usize / 12) {
        warm(&relay, &endpoint).await;
        relay.hang_after(Direction::ToClient, bytes);
        let pool = endpoint.clone().pool().build().unwrap();
        pool.ready();
        let error = tokio::time::timeout(AGES, pool.check_out()).await.expect("the check-out hangs").unwrap_err();
        let CheckOutError::Establish(error) = error else { panic!("unexpected error: {error}") };
        let (timeout, labels) = match error.stage() {
            Stage::Tls | Stage::Hello => (cause::<ConnectTimeoutError>(&error), OVERLOADED),
            Stage::Authenticate => match reason(cause(&error)) {
                wharf::unstable::endpoint::AuthenticationCause::Timeout(timeout) => (timeout, Labels::NONE),
                other => panic!("unexpected cause: {other}"),
            },
            _ => panic!("unexpected stage: {error}"),
        };
        assert_eq!((timeout.limit, error.labels()), (LIMIT, labels), "{error}");
        assert_eq!(pool.status().total, 0);
        outcomes.push(error.stage());
    }
    outcomes.dedup();
    assert_eq!(outcomes, [Stage::Tls, Stage::Hello, Stage::Authenticate]);
    relay.until(|relayed| relayed.open == 0).await;
}
