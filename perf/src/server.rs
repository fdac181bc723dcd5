//! The server that is measured against.

use std::io::Read;

use wharf_testbed::mongod::{Mongod, MongodOptions};

use crate::Failure;
use crate::affinity::{self, Placement};
use crate::arguments::{Machine, Serve};

/// A server in its place, and the place of the clients. Dropping it ends the server, if it was started for this.
pub struct Server {
    pub address: String,
    pub placement: Option<Placement>,
    started: Option<Mongod>,
}

impl Server {
    /// Starts a server, or uses the one that was named, which stays where it is. The calling thread moves to the
    /// clients' cores.
    pub fn provide(machine: &Machine) -> Result<Self, Failure> {
        let placement = Placement::choose(machine)?;
        let started = match machine.uri {
            Some(_) => None,
            None => Some(Mongod::start(MongodOptions::default())?),
        };
        if let Some(placement) = &placement {
            if let Some(mongod) = &started {
                placement.place_server(mongod.pid())?;
            }
            placement.place_client()?;
        }
        let address = match (&machine.uri, &started) {
            (Some(address), _) => address.clone(),
            (None, Some(mongod)) => mongod.address().to_string(),
            (None, None) => unreachable!("BUG: neither a server's address nor a server"),
        };
        Ok(Self { address, placement, started })
    }

    /// How many workers a client's runtime has.
    pub fn workers(&self) -> usize {
        affinity::workers(self.placement.as_ref())
    }

    /// Where everything runs, for the report.
    pub fn describe(&self) -> String {
        let server = match (&self.started, &self.placement) {
            (None, _) => format!("mongod at {}, wherever it was placed", self.address),
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
    eprintln!("{}. It ends with the standard input.", server.describe());
    let mut ignored = [0; 64];
    while until.read(&mut ignored)? > 0 {}
    Ok(())
}
