//! A record of monitoring events, which tests can wait for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use wharf::client::{TopologyEvent, TopologySubscriber};

/// The longest time that a test waits for an event, on tokio's clock. Servers are looked up again after a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// Records all events.
#[derive(Clone, Default)]
pub struct Events(Arc<watch::Sender<Vec<TopologyEvent>>>);

impl TopologySubscriber for Events {
    fn on_event(&self, event: &TopologyEvent) {
        self.0.send_modify(|events| events.push(event.clone()));
    }
}

impl Events {
    /// Returns all events so far.
    pub fn all(&self) -> Vec<TopologyEvent> {
        self.0.borrow().clone()
    }

    /// Returns the number of events so far, for [`Events::after`].
    pub fn mark(&self) -> usize {
        self.0.borrow().len()
    }

    /// Waits until an event after the mark matches, and returns it.
    pub async fn after(&self, mark: usize, is_it: impl Fn(&TopologyEvent) -> bool) -> TopologyEvent {
        let mut changes = self.0.subscribe();
        let is_there = |events: &Vec<TopologyEvent>| events[mark..].iter().any(&is_it);
        let found = tokio::time::timeout(PATIENCE, changes.wait_for(is_there)).await;
        match found {
            Ok(events) => events.unwrap()[mark..].iter().find(|event| is_it(event)).unwrap().clone(),
            Err(_) => panic!("the event did not come; the events: {:#?}", self.all()),
        }
    }

    /// Returns how many events have this name.
    pub fn count(&self, name: &str) -> usize {
        self.0.borrow().iter().filter(|event| event.name() == name).count()
    }
}
