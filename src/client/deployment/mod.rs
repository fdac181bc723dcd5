//! A deployment as a client sees it: its servers with their pools and monitors, and the client's knowledge of them.
//!
//! The modules `topology` and `selection` hold the rules. This module carries them out: it monitors the servers, applies
//! each transition, and finds the server for an operation.
//!
//! # Terms
//!
//! | term | meaning |
//! | --- | --- |
//! | deployment | the servers that a client uses, with their pools and monitors |
//! | server | one address of the deployment, with its pool, its monitor and its round-trip times |
//! | snapshot | the topology description and the servers that belong to it, at one moment; never changed, only replaced |
//! | check | one exchange of hello by which a monitor learns the state of a server |
//! | selected server | a server that an operation uses; it counts the operations in progress |
//! | home | the runtime on which the monitors run |
//!
//! # Invariants
//!
//! - DEP-1: Each transition is applied under the lock `state`, together with its effects on pools. A pool becomes ready
//!   before a snapshot is published in which its server is known. A pool is cleared only once a snapshot has been
//!   published in which its server is unknown (SDAM, "Connection Pool Management").
//! - DEP-2: No foreign code runs under the lock: subscribers and wakers are called after it has been released.
//! - DEP-3: Selection takes no lock. It reads only the snapshot and the operation counts of at most two servers.
//! - DEP-4: If a monitor is dropped while its server still belongs to the deployment, its runtime must have shut down.
//!   The next operation starts all monitors again, on its own runtime.
//! - DEP-5: A forked child does not touch anything in its parent's deployment that a lock protects. The child starts
//!   with a new deployment (`fork.rs`).
//!
//! # What runs
//!
//! | task | starts | ends |
//! | --- | --- | --- |
//! | a monitor for each server (`monitor`), with the measuring of round trips | with its server | when its server leaves, and at the close |
//! | the lookups of an SRV name (`rescan`) | with the first operation | at the close, or once the deployment is of a type that is not looked up again |
//!
//! A client on a single thread has none of these tasks. Its operations scan the servers (`scanning.rs`, `checker.rs`),
//! and the work that other clients would spawn is kept until the end of a call (`background.rs`).
//!
//! # What writes what
//!
//! | value | written by |
//! | --- | --- |
//! | snapshot | `applying.rs` and `state.rs`, under the lock |
//! | round-trip times | the server's monitor |
//! | operations in progress | each operation, in a cache line that its thread shares with few others |

mod admitting;
mod applying;
mod background;
mod check;
mod checker;
mod fork;
mod heartbeat;
mod log;
mod monitor;
mod publisher;
mod replacing;
mod rescan;
mod scanning;
mod selecting;
mod selection_log;
mod server;
mod settled;
mod snapshot;
mod state;

pub(crate) use background::{Background, Work};
pub(crate) use fork::Present;
pub(crate) use publisher::Publisher;
pub use publisher::TopologySubscriber;
pub(crate) use selecting::Demand;
pub use selecting::{ServerSelectionError, TopologySummary};
pub(crate) use selection_log::{LoggedOperation, WaitLogged, is_enabled as logs_selections};
pub(crate) use server::{Member, Selected, Server};
pub(crate) use snapshot::Snapshot;
pub(crate) use state::{Checks, Deployment};
