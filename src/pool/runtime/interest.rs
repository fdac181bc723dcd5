//! Determines whether a `tracing` subscriber or a logger reads the events of pools.

use tracing::Level;
use tracing::callsite::DefaultCallsite;
use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};
use tracing::metadata::{Kind, Metadata};

use super::traced::TARGET;
use crate::text::logged::may_reach_logger;

/// A call site that never emits a message. `tracing` remembers whether any subscriber may be interested in it.
static CALLSITE: DefaultCallsite = DefaultCallsite::new(&METADATA);

static METADATA: Metadata<'static> = tracing::metadata! {
    name: "events of a pool",
    target: TARGET,
    level: Level::DEBUG,
    fields: &[],
    callsite: &CALLSITE,
    kind: Kind::EVENT,
};

/// Makes `tracing` ask its subscribers whether they are interested. Called before [`is_there`], outside all locks.
pub(crate) fn watch() {
    CALLSITE.interest();
}

/// Returns whether a logger or any subscriber in the process, on any thread, may want the events of pools.
///
/// Does not call any subscriber, so it may be called under a lock. `tracing` caches the answers of the subscribers, and
/// updates them when a subscriber is added or the filters are reloaded.
#[inline]
pub(super) fn is_there() -> bool {
    (Level::DEBUG <= STATIC_MAX_LEVEL && Level::DEBUG <= LevelFilter::current() && !CALLSITE.interest().is_never())
        || may_reach_logger(Level::DEBUG)
}
