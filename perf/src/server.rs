//! The server to measure against.

use std::io::Read;

use wharf_testbed::mongod::{Mongod, MongodOptions};

use crate::Failure;
use crate::affinity::{self, Placement};
use crate::arguments::{Machine, Serve};
use crate::frugal::Frugal;

/// A server, and the placement of the server and the clients. Dropping it stops the server if it was started here.
pub struct Server {
    pub address: String,
    /// The placement of both sides, except during [`Server::sharing`].
    pub placement: Option<Placement>,
    started: Started,
}

/// The server that this process has started, if any.
enum Started {
    Nothing,
    Mongod(Mongod),
    Frugal(Frugal),
}

impl Started {
    fn pid(&self) -> Option<u32> {
        match self {
            Self::Nothing => None,
            Self::Mongod(mongod) => Some(mongod.pid()),
            Self::Frugal(frugal) => Some(frugal.pid()),
        }
    }
}

impl Server {
    /// Starts a server, or uses the given server, which stays on its cores. The calling thread moves to the clients'
    /// cores.
    pub fn provide(machine: &Machine) -> Result<Self, Failure> {
        let placement = Placement::choose(machine)?;
        let (address, started) = match &machine.uri {
            Some(address) => (address.clone(), Started::Nothing),
            None => {
                let mongod = Mongod::start(MongodOptions::default())?;
                (mongod.address().to_string(), Started::Mongod(mongod))
            }
        };
        Self { address, placement, started }.placed()
    }

    /// Starts a server that costs less than its clients.
    pub fn frugal(machine: &Machine) -> Result<Self, Failure> {
        let placement = Placement::choose(machine)?;
        let frugal = Frugal::start()?;
        Self { address: frugal.address.clone(), placement, started: Started::Frugal(frugal) }.placed()
    }

    /// Places both sides on their cores.
    fn placed(self) -> Result<Self, Failure> {
        let server = self;
        server.placement.iter().try_for_each(|placement| server.place(placement))?;
        Ok(server)
    }

    fn place(&self, placement: &Placement) -> Result<(), Failure> {
        if let Some(process) = self.started.pid() {
            placement.place_server(process)?;
        }
        Ok(placement.place_client()?)
    }

    /// Lets the server and the clients share all of their cores while `measure` runs. `measure` receives the number of
    /// workers.
    pub fn sharing<R>(&self, measure: impl FnOnce(usize) -> Result<R, Failure>) -> Result<R, Failure> {
        let Some(apart) = &self.placement else { return measure(self.workers()) };
        let shared = apart.shared();
        self.place(&shared)?;
        let outcome = measure(shared.client.len());
        self.place(apart)?;
        outcome
    }

    /// Returns the number of workers in a client's runtime.
    pub fn workers(&self) -> usize {
        affinity::workers(self.placement.as_ref())
    }

    /// Describes where everything runs, for the report.
    pub fn describe(&self) -> String {
        let name = match &self.started {
            Started::Nothing | Started::Mongod(_) => "mongod",
            Started::Frugal(_) => "a server that costs less than its clients",
        };
        let server = match (&self.started, &self.placement) {
            (Started::Nothing, _) => format!("{name} at {}, on unknown cores", self.address),
            (_, Some(placement)) => format!("{name} on cores {:?}", placement.server),
            (_, None) => format!("{name} on any core"),
        };
        match &self.placement {
            Some(placement) => format!("{server}; clients on cores {:?}, {} workers", placement.client, self.workers()),
            None => format!("{server}; clients on any core, {} workers", self.workers()),
        }
    }
}

/// Serves until `until` reaches end of file.
pub fn serve(arguments: &Serve, mut until: impl Read) -> Result<(), Failure> {
    let server = Server::provide(&arguments.machine)?;
    println!("{}", server.address);
    eprintln!("{}; it stops when standard input ends", server.describe());
    let mut ignored = [0; 64];
    while until.read(&mut ignored)? > 0 {}
    Ok(())
}
