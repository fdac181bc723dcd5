//! The client's knowledge of a deployment: pure functions over immutable descriptions (SDAM specification).
//!
//! This layer does no I/O, reads no clock and holds no lock. A monitor converts the reply to a hello, or the failure of
//! a check, into a [`ServerDescription`]. [`TopologyDescription::after_check`] then returns the new topology and the
//! caller's tasks. [`TopologyDescription::after_error`] does the same for an operation's error.
//!
//! # Terms
//!
//! | term | meaning |
//! | --- | --- |
//! | server description | one server as of its last check or error; never changed, only replaced |
//! | topology description | all servers of a deployment, and the deployment's type; never changed, only replaced |
//! | transition | a topology description that replaces another one, with its preparations and consequences |
//! | preparation | what the caller does before the replacement: start or stop a monitor, mark a pool ready |
//! | consequence | what the caller does after the replacement: clear a pool, request or cancel a check |
//!
//! # Invariants
//!
//! - TOP-1: A topology of type [`Single`](TopologyType::Single) or [`LoadBalanced`](TopologyType::LoadBalanced) has
//!   exactly one server.
//! - TOP-2: At most one server is an [`RsPrimary`](ServerType::RsPrimary). A topology that is not
//!   [`Single`](TopologyType::Single) has a primary if and only if it is
//!   [`ReplicaSetWithPrimary`](TopologyType::ReplicaSetWithPrimary).
//! - TOP-3: If a transition clears a pool and changes the server's description, a single value describes both. The
//!   caller applies them under one lock, as the specification requires ("Connection Pool Management").
//!
//! # What is deliberately absent
//!
//! Monitors and server selection belong to higher layers. The specification's events are derived from the descriptions
//! before and after a transition, by [`events_of_change`].

mod description;
mod error;
mod event;
mod replica_set;
mod round_trips;
mod server;
mod transition;
mod version;
mod view;

pub use description::{InvalidTopology, TopologyDescription, TopologyType};
pub use error::{ApplicationError, ErrorKind, Progress};
pub use event::{HeartbeatConnection, TopologyEvent, events_of_change, events_of_opening};
pub use round_trips::RoundTrips;
pub use server::{ServerDescription, ServerType};
pub use transition::{Consequence, Preparation, Transition};
pub use version::TopologyVersion;
pub use view::{ServerView, TopologyView};
