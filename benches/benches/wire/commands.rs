//! A whole command on a connection to a server in this process: what it costs besides the messages.

use std::rc::Rc;

use bson::rawdoc;
use tokio::runtime::{Builder, Runtime};
use wharf::{Endpoint, Pool};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};

use super::Case;

/// The bytes of a ping and of its reply: two headers with flags and the kind of the section, and the two documents.
const BYTES: usize = 50 + 38;

/// Where the commands run. The server has a thread of its own, so that what it allocates is not counted.
struct Place {
    client: Runtime,
    pool: Pool<Endpoint>,
    _server: (Runtime, EmbeddedServer),
}

/// `run_command` on the pool, and on a connection that is checked out with the reply borrowed. Two system calls and a
/// wake-up of each side are in the time.
pub fn cases() -> [Case; 2] {
    let server_runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let server = server_runtime.block_on(server_runtime.spawn(EmbeddedServer::start(EmbeddedOptions::default())));
    let server = server.expect("no panic").expect("a port");
    let client = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pool = {
        let _on = client.enter();
        Endpoint::new(&server.address()).expect("its own address").pool().build().expect("default options")
    };
    pool.ready();
    let place = Rc::new(Place { client, pool, _server: (server_runtime, server) });
    let ping = rawdoc! { "ping": 1 };

    let run = {
        let (place, ping) = (place.clone(), ping.clone());
        move || {
            let command = place.pool.run_command("admin", &ping);
            place.client.block_on(command).expect("it answers pings");
        }
    };
    let mut connection = place.client.block_on(place.pool.check_out()).expect("it accepts");
    let borrow = move || {
        let reply = async { connection.reply_to("admin", &ping).await.map(|reply| reply.as_bytes().len()) };
        place.client.block_on(reply).expect("it answers pings");
    };
    [
        Case { name: "run_command/ping".to_owned(), bytes: BYTES, left: None, run: Box::new(run) },
        Case { name: "reply_to/ping".to_owned(), bytes: BYTES, left: None, run: Box::new(borrow) },
    ]
}
