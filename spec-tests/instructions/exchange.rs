//! What a whole command costs: check-out, request, reply, check-in, over a socket.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use bson::rawdoc;
use wharf::wire::op_msg::encode;
use wharf::wire::{Flags, Outgoing, header};
use wharf::{Endpoint, Pool};

use crate::callgrind::cost_of_a_round;

/// A command on a connection of a pool, without what tokio and the system do for it. Measured: 1237, with rustc 1.95; the
/// bound leaves 15 % to other compilers.
const COMMAND_INSTRUCTIONS: u64 = 1_423;

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn a_command() {
    let cost = cost_of_a_round("exchange::a_command", |rounds| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || answer(listener.accept().unwrap().0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(client(address, rounds));
    });
    let own = cost.instructions_in(&["wharf::", "bson::", "exchange::client"]);
    println!("{own} instructions of a command");
    for (function, instructions) in &cost.inside {
        println!("  {instructions} of {function}");
    }
    assert!(own <= COMMAND_INSTRUCTIONS, "more than {COMMAND_INSTRUCTIONS} instructions: {own} of {cost}");
    // The reply is the one allocation. Each costs some tens of instructions.
    let allocating = cost.outside.iter().filter(|(function, _)| function.starts_with("malloc"));
    let allocating: u64 = allocating.map(|(_, instructions)| instructions).sum();
    assert!((1..60).contains(&allocating), "{cost}");
}

async fn client(address: SocketAddr, rounds: u64) {
    let pool: Pool<Endpoint> = Endpoint::new(&address.to_string()).unwrap().pool().build().unwrap();
    pool.ready();
    let ping = rawdoc! { "ping": 1 };
    for _ in 0..rounds {
        let mut connection = pool.check_out().await.unwrap();
        black_box(connection.run_command("admin", &ping).await.unwrap());
    }
}

/// Answers every message with what hello wants to know and any command is content with.
fn answer(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let body = rawdoc! {
        "ok": 1.0,
        "isWritablePrimary": true,
        "maxBsonObjectSize": 16 * 1024 * 1024,
        "maxMessageSizeBytes": 48_000_000,
        "maxWriteBatchSize": 100_000,
        "minWireVersion": 0,
        "maxWireVersion": 21,
    };
    let mut reply = Vec::new();
    let message =
        Outgoing { request_id: 1, response_to: 0, flags: Flags::NONE, body: &body, database: None, sequences: &[] };
    encode(&message, 48_000_000, &mut reply).unwrap();
    let mut request = [0; 4096];
    // Requests come one at a time, and in one piece. What they are does not matter, and reading them would count.
    while let Ok(header::LENGTH..) = stream.read(&mut request) {
        let (request_id, response_to) = (&request[4..8], &mut reply[8..12]);
        response_to.copy_from_slice(request_id);
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}
