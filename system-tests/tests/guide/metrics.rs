use std::time::Duration;
use wharf::{Endpoint, Pool};

pub async fn report(pool: Pool<Endpoint>) {
    let (mut succeeded, mut timeouts) = (0, 0);
    loop {
        tokio::time::sleep(Duration::from_secs(10)).await;
        let metrics = pool.metrics();
        let (status, check_outs) = (&metrics.status, &metrics.check_outs);
        println!(
            "{}: {} check-outs, {} timeouts; {} in use of {}, {} waiting; p99 of all waits {:?}, of all uses {:?}",
            metrics.address,
            check_outs.succeeded() - succeeded,
            check_outs.failed.timeout - timeouts,
            status.in_use,
            status.max_pool_size,
            status.waiting,
            check_outs.wait_time().quantile(0.99),
            metrics.use_time.quantile(0.99),
        );
        (succeeded, timeouts) = (check_outs.succeeded(), check_outs.failed.timeout);
    }
}
