//! What the client knows about a deployment: pure functions over immutable descriptions (SDAM specification).
//!
//! This layer does no I/O, reads no clock and holds no lock. A monitor turns the reply to a hello, or the failure of a
//! check, into a [`ServerDescription`]; [`TopologyDescription::after_check`] says what the deployment looks like then and
//! what has to happen outside. [`TopologyDescription::after_error`] does the same for an error that an application met.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | server description | one server, as its last check or error shows it; never changed, only replaced |
//! | topology description | all servers of a deployment, and the deployment's type; never changed, only replaced |
//! | transition | a topology description that replaces another one, and the effects of the replacement |
//! | effect | what a transition asks of the caller: a monitor to start or stop, a pool to mark ready or clear |
//!
//! # Invariants
//!
//! - TOP-1: A topology of type [`Single`](TopologyType::Single) or [`LoadBalanced`](TopologyType::LoadBalanced) has
//!   exactly one server.
//! - TOP-2: At most one server is an [`RsPrimary`](ServerType::RsPrimary), and there is one exactly when the topology is
//!   [`ReplicaSetWithPrimary`](TopologyType::ReplicaSetWithPrimary) or it is [`Single`](TopologyType::Single).
//! - TOP-3: A transition that clears a pool and changes the server's description is one value. The caller applies both
//!   under one lock, as the specification demands ("Connection Pool Management").
//!
//! # What is deliberately absent
//!
//! No monitor, no events and no selection: they are layers above. A caller derives the specification's events from the two
//! descriptions of a transition.

mod description;
mod error;
mod replica_set;
mod round_trips;
mod server;
mod transition;
mod version;

pub use description::{InvalidTopology, TopologyDescription, TopologyType};
pub use error::{ApplicationError, ErrorKind, Progress};
pub use round_trips::RoundTrips;
pub use server::{ServerDescription, ServerType};
pub use transition::{Effect, Transition};
pub use version::TopologyVersion;
