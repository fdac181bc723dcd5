//! A simulated machine of many cores, on which the pool's own code runs.
//!
//! With `--cfg simulated`, the pool's atomics, locks and cells ask the machine before each access
//! (`wharf::unstable::simulated`). [`machine`] runs each core as a coroutine and keeps its clock, [`mod@line`] says in which
//! state each core has each cache line, and [`runtime`] places tasks on cores as tokio does. [`cases`] has what is
//! measured, on wharf and on reference designs ([`designs`]), whose words are [`shared`] with the machine, too.
//! [`profiles`] are real machines, against which `check` holds the simulated ones.

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
