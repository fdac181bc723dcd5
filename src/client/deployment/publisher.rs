//! Monitoring events: their subscribers, their order, and their log messages.

use std::sync::Arc;

use bson::oid::ObjectId;

use super::log;
use crate::client::object_id::object_id;
use crate::client::topology::TopologyEvent;
use crate::pool::delivery::{Delivery, Share};
use crate::pool::sync::contain;
use crate::text::shortened::MostLogged;

/// Receives a client's monitoring events.
///
/// A subscriber receives one event at a time, in order. It is called by a monitor, or by the task that used or closed
/// the client, and never under a lock. One call delivers at most 32 events before another call takes over. A slow
/// subscriber delays the monitors. If its work may take a while, it should pass the event on, for example through an
/// unbounded channel. A panic is caught, and the event counts as delivered. Every `Fn(&TopologyEvent)` is a subscriber.
pub trait TopologySubscriber: Send + Sync + 'static {
    /// Receives an event.
    fn on_event(&self, event: &TopologyEvent);
}

impl<F: Fn(&TopologyEvent) + Send + Sync + 'static> TopologySubscriber for F {
    fn on_event(&self, event: &TopologyEvent) {
        self(event);
    }
}

/// How callers share the delivery. [`TopologySubscriber`] documents how many events one call delivers.
const SHARE: Share = Share { turn: 32, room: 32 };

/// The events of one deployment, its subscribers, and the log.
pub(crate) struct Publisher {
    topology_id: ObjectId,
    subscribers: Vec<Arc<dyn TopologySubscriber>>,
    delivery: Delivery<TopologyEvent>,
    /// Limits the length of replies in log messages.
    most_logged: MostLogged,
}

impl Publisher {
    pub(crate) fn new(subscribers: Vec<Arc<dyn TopologySubscriber>>, most_logged: MostLogged) -> Self {
        Self { topology_id: object_id(), subscribers, delivery: Delivery::new(SHARE), most_logged }
    }

    /// Returns a publisher for the deployment of a forked child, which is a separate topology.
    pub(super) fn successor(&self) -> Self {
        Self::new(self.subscribers.clone(), self.most_logged)
    }

    /// Returns whether a subscriber or the log receives events. Otherwise no event is built.
    pub(super) fn is_listened_to(&self) -> bool {
        !self.subscribers.is_empty() || log::is_enabled()
    }

    /// Queues events, in the order of the calls to this method, and does not call foreign code. The caller must then
    /// call [`deliver`](Self::deliver) outside all locks.
    pub(super) fn emit<I: IntoIterator<Item = TopologyEvent>>(&self, events: impl FnOnce(ObjectId) -> I) {
        events(self.topology_id).into_iter().for_each(|event| self.delivery.emit(event));
    }

    /// Delivers the queued events.
    pub(super) fn deliver(&self) {
        self.delivery.deliver(|event| {
            contain(|| log::log(event, self.most_logged));
            for subscriber in &self.subscribers {
                // If a subscriber panics, the others still receive the event.
                contain(|| subscriber.on_event(event));
            }
        });
    }
}
