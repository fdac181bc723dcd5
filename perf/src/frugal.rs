//! A server that costs less than any client: one thread, and for each command one `read`, one `write`, and a share of an
//! `epoll_wait`.
//!
//! It answers hello and `ping`, queries for one [item](crate::item) by `_id`, inserts and updates, and reports its cost
//! in `serverStatus`. It keeps no documents: each query finds an item, and each write succeeds. Each of its connections
//! has at most one command in flight.

#[cfg(target_os = "linux")]
mod epoll;

#[cfg(target_os = "linux")]
pub use epoll::serve;

use std::io;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bson::raw::{CStr, cstr};

use crate::Failure;

/// The `serverStatus` fields for the server's CPU time in nanoseconds, and for the number of its commands.
pub const CPU_NANOS: &CStr = cstr!("cpuNanos");
pub const COMMANDS: &CStr = cstr!("commands");

/// A frugal server in a separate process.
pub struct Frugal {
    child: Child,
    pub address: String,
}

impl Frugal {
    /// Starts this program again, as a server.
    pub fn start() -> Result<Self, Failure> {
        Self::start_with(&[])
    }

    /// Starts a server that takes this long for each `ping`.
    pub fn start_delayed(delay: Duration) -> Result<Self, Failure> {
        Self::start_with(&["--delay", &delay.as_secs_f64().to_string()])
    }

    fn start_with(arguments: &[&str]) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("frugal")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut address = String::new();
        if let Some(output) = child.stdout.take() {
            io::BufRead::read_line(&mut io::BufReader::new(output), &mut address)?;
        }
        let server = Self { child, address: address.trim_end().to_owned() };
        if server.address.is_empty() { Err("the frugal server did not start".into()) } else { Ok(server) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Frugal {
    fn drop(&mut self) {
        // The process exits when its standard input is closed. If waiting for the process fails, nothing more can be
        // done.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Refuses to serve.
#[cfg(not(target_os = "linux"))]
pub fn serve(_: Option<Duration>) -> Result<(), Failure> {
    Err("the server that costs less than its clients needs Linux".into())
}
