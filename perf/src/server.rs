//! The server to measure against.

use std::io::Read;

use wharf_testbed::mongod::{Mongod, MongodOptions};

use crate::Failure;
use crate::affinity::{self, Placement};
use crate::arguments::{Machine, Serve};

/// A server and the placement of server and clients. Dropping it stops the server if it was started here.
pub struct Server {
    pub address: String,
    /// The placement of both sides, except during [`Server::sharing`].
    pub placement: Option<Placement>,
    started: Option<Mongod>,
}

impl Server {
    /// Starts a server, or uses the given one, which stays on its cores. The calling thread moves to the clients'
    /// cores.
    pub fn provide(machine: &Machine) -> Result<Self, Failure> {
        let placement = Placement::choose(machine)?;
        let started = match machine.uri {
            Some(_) => None,
            None => Some(Mongod::start(MongodOptions::default())?),
        };
        let address = match (&machine.uri, &started) {
            (Some(address), _) => address.clone(),
            (None, Some(mongod)) => mongod.address().to_string(),
            (None, None) => unreachable!("BUG: neither a server's address nor a server"),
        };
        let server = Self { address, placement, started };
        server.placement.iter().try_for_each(|placement| server.place(placement))?;
        Ok(server)
    }

    fn place(&self, placement: &Placement) -> Result<(), Failure> {
        if let Some(mongod) = &self.started {
            placement.place_server(mongod.pid())?;
        }
        Ok(placement.place_client()?)
    }

    /// Lets server and clients share all of their cores while `measure` runs. `measure` receives the number of workers.
    pub fn sharing<R>(&self, measure: impl FnOnce(usize) -> Result<R, Failure>) -> Result<R, Failure> {
        let Some(apart) = &self.placement else { return measure(self.workers()) };
        let shared = apart.shared();
        self.place(&shared)?;
        let outcome = measure(shared.client.len());
        self.place(apart)?;
        outcome
    }

    /// Returns the number of workers of a client's runtime.
    pub fn workers(&self) -> usize {
        affinity::workers(self.placement.as_ref())
    }

    /// Describes where everything runs, for the report.
    pub fn describe(&self) -> String {
        let server = match (&self.started, &self.placement) {
            (None, _) => format!("mongod at {}, on unknown cores", self.address),
            (Some(_), Some(placement)) => format!("mongod on cores {:?}", placement.server),
            (Some(_), None) => "mongod on any core".to_owned(),
        };
        match &self.placement {
            Some(placement) => format!("{server}; clients on cores {:?}, {} workers", placement.client, self.workers()),
            None => format!("{server}; clients on any core, {} workers", self.workers()),
        }
    }
}

/// Serves until `until` ends.
pub fn serve(arguments: &Serve, mut until: impl Read) -> Result<(), Failure> {
    let server = Server::provide(&arguments.machine)?;
    println!("{}", server.address);
    eprintln!("{}; it stops when standard input ends", server.describe());
    let mut ignored = [0; 64];
    while until.read(&mut ignored)? > 0 {}
    Ok(())
}
