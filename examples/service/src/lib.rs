//! A service on a wharf pool, with metrics for Prometheus, and a live view of pools: the examples `service` and `top`.

pub mod exposition;
pub mod http;
pub mod pools;
pub mod service;
pub mod table;
pub mod top;
