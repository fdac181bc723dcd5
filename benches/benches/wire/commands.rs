//! Measures the cost of a whole command, not only of its messages, on a connection to a server in this process.

use std::rc::Rc;

use bson::rawdoc;
use tokio::runtime::{Builder, Runtime};
use wharf::{Endpoint, Pool};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};

use super::Case;

/// The number of bytes in a ping and its reply. Each message has a header, flags, the kind of its section and a
/// document.
const BYTES: usize = 51 + 38;

/// The client and the server for the commands. The server has its own thread, so that its allocations are not counted.
struct Place {
    client: Runtime,
    pool: Pool<Endpoint>,
    _server: (Runtime, EmbeddedServer),
}

/// Returns two cases: `run_command` on the pool, and `reply_to` on a checked-out connection, which returns a borrowed
/// reply. The time includes two system calls and a wake-up on each side.
pub fn cases() -> [Case; 2] {
    let server_runtime =
        Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("the runtime cannot be built");
    let server = server_runtime.block_on(server_runtime.spawn(EmbeddedServer::start(EmbeddedOptions::default())));
    let server = server.expect("the server panicked").expect("no free port");
    let client = Builder::new_current_thread().enable_all().build().expect("the runtime cannot be built");
    let pool = {
        let _on = client.enter();
        Endpoint::new(&server.address())
            .expect("the server's address is invalid")
            .pool()
            .build()
            .expect("the default options are invalid")
    };
    pool.ready();
    let place = Rc::new(Place { client, pool, _server: (server_runtime, server) });
    let ping = rawdoc! { "ping": 1 };

    let run = {
        let (place, ping) = (place.clone(), ping.clone());
        move || {
            let command = place.pool.run_command("admin", &ping);
            place.client.block_on(command).expect("the ping failed");
        }
    };
    let mut connection = place.client.block_on(place.pool.check_out()).expect("the check-out failed");
    let borrow = move || {
        let reply = async { connection.reply_to("admin", &ping).await.map(|reply| reply.as_bytes().len()) };
        place.client.block_on(reply).expect("the ping failed");
    };
    [
        Case { name: "run_command/ping".to_owned(), bytes: BYTES, left: None, run: Box::new(run) },
        Case { name: "reply_to/ping".to_owned(), bytes: BYTES, left: None, run: Box::new(borrow) },
    ]
}
