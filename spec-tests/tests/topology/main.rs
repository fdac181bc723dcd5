//! Server discovery and server selection: the specifications' own cases, and more of the kind.
//!
//! The cases are those of the suites `discovery_and_monitoring` (all but its `unified` folder and the case that needs a
//! monitor), `server_selection` and `max_staleness`. Everything that a case says is asserted.
#![cfg(not(any(loom, shuttle)))]

mod discovery;
mod selecting;
mod suite;
