//! The certificates, proxies and scripted servers that wharf's tests run against, and the servers from `wharf-servers`.

pub mod balancer;
pub mod certificates;
pub mod counting;
pub mod dice;
pub mod dns;
pub mod edition;
pub mod executor;
pub mod folder;
pub mod log;
pub mod ocsp;
pub mod refusing;
pub mod relay;
pub mod scripted;
pub mod socks;
pub mod table;
pub mod tls_front;

pub use wharf_servers::{embedded, mongod, provision, replica_set};
