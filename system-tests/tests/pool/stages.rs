//! The times of an establishment's stages, in its `ConnectionReady` event.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use wharf::metrics::ByStage;
use wharf::{Establish, EstablishError, Establishing, Pool, PoolEvent, Stage};

use super::mock::{Mock, settle};

const MS: Duration = Duration::from_millis(1);

/// An establisher that reports two stages, one of them twice.
struct Reporting;

impl Establish for Reporting {
    type Connection = ();

    async fn establish(&self, connecting: Establishing) -> Result<(), EstablishError> {
        connecting.stage_took(Stage::Connect, 100 * MS);
        tokio::time::sleep(3 * MS).await;
        connecting.stage_took(Stage::Connect, 3 * MS);
        tokio::time::sleep(5 * MS).await;
        connecting.stage_took(Stage::Hello, 5 * MS);
        tokio::time::sleep(MS).await;
        Ok(())
    }
}

/// Opens one connection. Returns the time in its event, and the times of these stages.
async fn opened<E: Establish>(establish: E) -> (Duration, Arc<ByStage<Option<Duration>>>) {
    let (sender, ready) = mpsc::channel();
    let subscriber = move |event: &PoolEvent| {
        if let PoolEvent::ConnectionReady { duration, stages, .. } = event {
            sender.send((*duration, stages.clone())).unwrap();
        }
    };
    let pool = Pool::builder("here:1", establish).tokio_clock(true).subscriber(subscriber).build().unwrap();
    pool.ready();
    drop(pool.check_out().await.unwrap());
    // The task that opened the connection may deliver its event after the check-out has completed.
    settle().await;
    ready.try_recv().unwrap()
}

#[tokio::test(start_paused = true)]
async fn event_has_the_stages_that_were_reported_and_no_others() {
    let (duration, stages) = opened(Reporting).await;
    let mut expected = ByStage::default();
    (expected.connect, expected.hello) = (Some(3 * MS), Some(5 * MS));
    assert_eq!((duration, *stages), (9 * MS, expected));
}

#[tokio::test(start_paused = true)]
async fn event_has_no_stages_if_the_establisher_reports_none() {
    assert_eq!(opened(Mock::new([])).await, (Duration::ZERO, Arc::default()));
}
