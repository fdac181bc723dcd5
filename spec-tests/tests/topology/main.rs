//! Server discovery and server selection: the specifications' cases, and additional cases.
//!
//! The cases come from the suites `sdam_monitoring`, `discovery_and_monitoring` (except its `unified` folder and the case
//! that needs a monitor), `server_selection` and `max_staleness`. The tests assert every outcome that a case states.
#![cfg(not(any(loom, shuttle)))]

mod discovery;
mod monitoring;
mod selecting;
mod suite;
