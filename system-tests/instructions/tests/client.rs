//! The cost that the client adds to a command of its pool: server selection, the session, and the rest of an operation.
//!
//! The session's share is the difference between a server with sessions and a server without. The selection's share is
//! the difference between a check-out through the client and a check-out from the pool.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::thread;
use std::time::Duration;

use bson::raw::cstr;
use bson::{Timestamp, rawdoc};
use wharf::unstable::wire::op_msg::encode;
use wharf::unstable::wire::{Flags, Outgoing, header};
use wharf::{Client, Endpoint, Options, Pool, ReadPreference};

use crate::callgrind::{Cost, begin_counting, cost_of_a_round};

/// The library's functions, and the functions that it uses for selection.
const OWN: [&str; 5] = ["wharf::", "bson::", "arc_swap::", "client::rounds", "poll_fn::PollFn"];

/// Measures rounds of a program on a server with or without sessions, prints their cost, and asserts that the library
/// executes at most `most` instructions. The bound is up to 15 % above the measurement with rustc 1.95, to allow for
/// other compilers.
fn measure<F: Future<Output = ()> + 'static>(
    test: &str,
    has_sessions: bool,
    most: u64,
    program: impl FnOnce(SocketAddr, u64) -> F,
) {
    let cost: Cost = cost_of_a_round(test, |rounds| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            // The monitor has a separate connection.
            while let Ok((stream, _)) = listener.accept() {
                thread::spawn(move || answer(stream, has_sessions));
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The future is boxed as a trait object: otherwise its instructions would be attributed to the function that
        // polls it.
        let program: Pin<Box<dyn Future<Output = ()>>> = Box::pin(program(address, rounds));
        runtime.block_on(program);
    });
    let own = cost.instructions_in(&OWN);
    println!("{own} instructions of the library, {:.0} of the process in user space", cost.instructions);
    for (function, instructions) in cost.inside.iter().filter(|(_, instructions)| **instructions > 0) {
        println!("  {instructions} of {function}");
    }
    for (function, instructions) in &cost.outside {
        println!("  outside, {instructions} of {function}");
    }
    // A thread calls this tokio function before it goes to sleep, if its runtime has a timer.
    let sleeps_with_timer = cost.inside.keys().any(|function| function.contains("park_thread_timeout"));
    assert!(
        !sleeps_with_timer,
        "the runtime has a timer, which makes each operation dearer: see src/pool/runtime/alarm.rs"
    );
    assert!(own <= most, "{own} instructions, more than {most}: {cost}");
}

fn pool(address: SocketAddr) -> Pool<Endpoint> {
    let pool = Endpoint::new(&address.to_string()).unwrap().pool().build().unwrap();
    pool.ready();
    pool
}

/// Returns a client that has found its server, and does not check it again.
async fn client(address: SocketAddr) -> Client {
    let options = Options::parse(&format!("mongodb://{address}/?directConnection=true")).unwrap();
    let client = Client::new(options.heartbeat_frequency(Duration::from_secs(3600))).unwrap();
    client.connect().await.unwrap();
    client
}

async fn rounds_of_the_pool(address: SocketAddr, rounds: u64) {
    let (pool, ping) = (pool(address), rawdoc! { "ping": 1 });
    pool.run_command("admin", &ping).await.unwrap();
    begin_counting();
    for _ in 0..rounds {
        black_box(pool.run_command("admin", &ping).await.unwrap());
    }
}

async fn rounds_of_the_client(address: SocketAddr, rounds: u64) {
    let (client, ping) = (client(address).await, rawdoc! { "ping": 1 });
    client.run_command("admin", &ping).await.unwrap();
    begin_counting();
    for _ in 0..rounds {
        black_box(client.run_command("admin", &ping).await.unwrap());
    }
}

async fn rounds_of_check_outs(address: SocketAddr, rounds: u64) {
    let pool = pool(address);
    drop(pool.check_out().await.unwrap());
    begin_counting();
    for _ in 0..rounds {
        drop(black_box(pool.check_out().await.unwrap()));
    }
}

async fn rounds_of_selections(address: SocketAddr, rounds: u64) {
    let (client, primary) = (client(address).await, ReadPreference::default());
    drop(client.check_out(&primary).await.unwrap());
    begin_counting();
    for _ in 0..rounds {
        drop(black_box(client.check_out(&primary).await.unwrap()));
    }
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn command_of_the_pool() {
    measure("client::command_of_the_pool", true, 1_980, rounds_of_the_pool);
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn command_of_the_client() {
    measure("client::command_of_the_client", true, 3_800, rounds_of_the_client);
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn command_of_the_client_without_sessions() {
    measure("client::command_of_the_client_without_sessions", false, 2_900, rounds_of_the_client);
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn check_out_of_the_pool() {
    measure("client::check_out_of_the_pool", true, 188, rounds_of_check_outs);
}

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn check_out_through_the_client() {
    measure("client::check_out_through_the_client", true, 655, rounds_of_selections);
}

/// Answers hello, and answers every other command like a member of a replica set, but without looking at the command.
fn answer(mut stream: TcpStream, has_sessions: bool) {
    stream.set_nodelay(true).unwrap();
    let mut hello = rawdoc! {
        "ok": 1.0,
        "isWritablePrimary": true,
        "setName": "rs",
        "hosts": ["127.0.0.1:1"],
        "maxBsonObjectSize": 16 * 1024 * 1024,
        "maxMessageSizeBytes": 48_000_000,
        "maxWriteBatchSize": 100_000,
        "minWireVersion": 0,
        "maxWireVersion": 21,
    };
    let mut done = rawdoc! { "ok": 1.0 };
    if has_sessions {
        let time = Timestamp { time: 1, increment: 1 };
        hello.append(cstr!("logicalSessionTimeoutMinutes"), 30);
        done.append(cstr!("$clusterTime"), rawdoc! { "clusterTime": time, "signature": { "keyId": 0_i64 } });
        done.append(cstr!("operationTime"), time);
    }
    let [mut hello, mut done] = [hello, done].map(|body| {
        let message =
            Outgoing { request_id: 1, response_to: 0, flags: Flags::NONE, body: &body, database: None, sequences: &[] };
        let mut reply = Vec::new();
        encode(&message, 48_000_000, &mut reply).unwrap();
        reply
    });
    let mut request = [0; 4096];
    // Each request arrives whole and on its own. Decoding it would add to the measured cost.
    while let Ok(header::LENGTH..) = stream.read(&mut request) {
        let reply = if request[26..].starts_with(b"ping") { &mut done } else { &mut hello };
        reply[8..12].copy_from_slice(&request[4..8]);
        if stream.write_all(reply).is_err() {
            return;
        }
    }
}
