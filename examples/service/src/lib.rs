//! A live view of pools: the example `top`, and the part of it that the example `service` uses.

pub mod http;
pub mod pools;
pub mod table;
pub mod top;
