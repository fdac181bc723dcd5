//! The cost of a whole command over a socket: check-out, request, reply, check-in.

use std::fs;
use std::future::Future;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::mpsc;
use std::thread;

use bson::rawdoc;
use wharf::unstable::wire::op_msg::encode;
use wharf::unstable::wire::{Flags, Outgoing, header};
use wharf::{Endpoint, Pool};

use crate::callgrind::{begin_counting, cost_of_a_round};

/// A command on a pooled connection, without the work that tokio and the system do for it. Measured: 1268, with rustc
/// 1.95. The bound leaves 15 % for other compilers.
const COMMAND_INSTRUCTIONS: u64 = 1_458;

#[test]
#[ignore = "needs valgrind and objdump; CI runs it"]
fn whole_command() {
    let cost = cost_of_a_round("exchange::whole_command", |rounds| {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || answer(listener.accept().unwrap().0));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // The future is boxed as a trait object: otherwise its instructions would be attributed to the function that
        // polls it.
        let client: Pin<Box<dyn Future<Output = ()>>> = Box::pin(client(address, rounds));
        runtime.block_on(client);
    });
    let own = cost.instructions_in(&["wharf::", "bson::", "exchange::client", "poll_fn::PollFn"]);
    println!("{own} instructions per command");
    for (function, instructions) in &cost.inside {
        println!("  {instructions} of {function}");
    }
    assert!(own <= COMMAND_INSTRUCTIONS, "{own} instructions, more than {COMMAND_INSTRUCTIONS}: {cost}");
    // The reply is the only allocation. An allocation costs a few tens of instructions.
    let allocating = cost.outside.iter().filter(|(function, _)| function.starts_with("malloc"));
    let allocating: u64 = allocating.map(|(_, instructions)| instructions).sum();
    assert!((1..60).contains(&allocating), "{cost}");
}

/// The stack that a command needs, in KiB, including tokio and the system. Measured: 0 or 4, as memory is counted in
/// pages.
const STACK: u64 = 4;

/// The size of a command's future in bytes, which is part of its task's memory. Measured: 136, with rustc 1.95.
const FUTURE: usize = 152;

/// A command's stack frames have room only for what every command needs. Rare work does not enlarge them.
#[test]
#[ignore = "of optimised code; CI runs it"]
fn command_needs_little_stack() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || answer(listener.accept().unwrap().0));
    // The runtime's own thread opens the connections, and another thread runs the commands.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let pool = {
        let _within = runtime.enter();
        Endpoint::new(&address.to_string()).unwrap().pool().build().unwrap()
    };
    pool.ready();
    let opened = pool.clone();
    runtime.block_on(runtime.spawn(async move { drop(opened.check_out().await.unwrap()) })).unwrap();

    let (handle, (at, reports), (go_on, gone_on)) = (runtime.handle().clone(), mpsc::channel(), mpsc::channel());
    // The future is boxed as a trait object, so that its frame begins where it is awaited.
    let commands: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        let ping = rawdoc! { "ping": 1 };
        for _ in 0..10 {
            let mut connection = pool.check_out().await.unwrap();
            let command = connection.run_command("admin", &ping);
            assert!(size_of_val(&command) <= FUTURE, "a command's future takes {} bytes", size_of_val(&command));
            black_box(command.await.unwrap());
        }
    });
    let thread = thread::Builder::new().stack_size(256 * 1024).spawn(move || {
        let here = 0_u8;
        handle.block_on(async {
            // Waiting itself needs some stack, which must not be counted.
            for _ in 0..2 {
                at.send((&raw const here).addr()).unwrap();
                gone_on.recv().unwrap();
            }
            commands.await;
            at.send((&raw const here).addr()).unwrap();
            gone_on.recv().unwrap();
        });
    });
    let [_, before, after] = [(); 3].map(|()| {
        let touched = resident_around(reports.recv().unwrap());
        go_on.send(()).unwrap();
        touched
    });
    thread.unwrap().join().unwrap();
    let needed = after.saturating_sub(before);
    assert!(needed <= STACK, "a command needs {needed} KiB of stack");
}

/// Returns how many KiB of the mapping around an address are in memory.
fn resident_around(address: usize) -> u64 {
    let mappings = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_it = false;
    for line in mappings.lines() {
        let (first, rest) = line.split_once(char::is_whitespace).unwrap();
        if let Some((start, end)) = first.split_once('-') {
            let [start, end] = [start, end].map(|bound| usize::from_str_radix(bound, 16).unwrap());
            is_it = (start..end).contains(&address);
        } else if is_it && first == "Rss:" {
            return rest.trim().trim_end_matches(" kB").parse().unwrap();
        }
    }
    panic!("no mapping around {address:x}");
}

async fn client(address: SocketAddr, rounds: u64) {
    let pool: Pool<Endpoint> = Endpoint::new(&address.to_string()).unwrap().pool().build().unwrap();
    pool.ready();
    let ping = rawdoc! { "ping": 1 };
    begin_counting();
    for _ in 0..rounds {
        let mut connection = pool.check_out().await.unwrap();
        black_box(connection.run_command("admin", &ping).await.unwrap());
    }
}

/// Answers every message with one reply that satisfies both hello and any command.
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
    // Each request arrives whole and on its own. The message's content does not matter, and decoding it would add to
    // the measured cost.
    while let Ok(header::LENGTH..) = stream.read(&mut request) {
        let (request_id, response_to) = (&request[4..8], &mut reply[8..12]);
        response_to.copy_from_slice(request_id);
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}
