//! A simulated machine with many cores, on which the pool's own code runs.
//!
//! With `--cfg simulated`, the pool's atomics, locks and cells call the machine before each access
//! (`wharf::unstable::simulated`). [`machine`] runs each core as a coroutine and keeps its clock, [`mod@line`] holds
//! the state of each cache line in each core, and [`runtime`] places tasks on cores as tokio does. [`cases`] contains
//! the workloads, for wharf and for reference designs ([`designs`]) that use the machine's memory ([`shared`]).
//! [`profiles`] describes real machines, and `check` compares the simulated machines with them.

pub mod cases;
#[cfg(simulated)]
pub mod check;
pub mod costs;
pub mod designs;
pub mod law;
pub mod line;
pub mod machine;
pub mod profiles;
pub mod report;
pub mod runtime;
pub mod shared;
pub mod words;
