//! A live view of pools: the example `top`, and what the example `service` has for it.

pub mod http;
pub mod pools;
pub mod table;
pub mod top;
