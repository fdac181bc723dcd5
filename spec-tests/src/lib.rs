//! Code that the tests of several suites share.
#![cfg(not(any(loom, shuttle)))]

pub mod values;
