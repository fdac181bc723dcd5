//! Models.
#![cfg(loom)]

mod models;
