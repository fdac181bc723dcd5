//! The stages of establishments, in the metrics of pools.

use std::collections::HashMap;

use wharf::PoolEvent;
use wharf::metrics::{ByStage, Histogram};
use wharf_testbed::refusing::Refusing;

use super::*;

/// Makes a pool open a connection, which may fail. Returns how many times each stage was timed, and how many
/// establishments failed in each stage.
async fn stages(options: Options) -> (ByStage<u64>, ByStage<u64>) {
    let begun = std::time::Instant::now();
    let (sender, mut ready) = tokio::sync::mpsc::unbounded_channel();
    let subscriber = move |event: &PoolEvent| {
        if let PoolEvent::ConnectionReady { duration, stages, .. } = event {
            sender.send((*duration, stages.clone())).unwrap();
        }
    };
    let pool = options.endpoint().unwrap().pool().subscriber(subscriber).build().unwrap();
    pool.ready();
    let opened = tokio::time::timeout(AGES, pool.check_out()).await.unwrap().is_ok();
    let (connections, elapsed) = (pool.metrics().connections, begun.elapsed());
    let sum: Duration = connections.stage_times.iter().map(|(_, times)| times.sum()).sum();
    assert!(Duration::ZERO < sum && sum < elapsed, "{sum:?} {elapsed:?}");
    assert_eq!(connections.establish_time.count(), u64::from(opened));
    if opened {
        let (duration, stages) = tokio::time::timeout(AGES, ready.recv()).await.unwrap().unwrap();
        let times: Vec<_> = stages.iter().filter_map(|(stage, took)| Some((stage, (*took)?))).collect();
        let timed = |(stage, times): (_, &Histogram)| (times.count() > 0).then_some((stage, times.sum()));
        assert_eq!(times, connections.stage_times.iter().filter_map(timed).collect::<Vec<_>>());
        let sum: Duration = times.iter().map(|(_, took)| *took).sum();
        assert!(sum <= duration, "{times:?} {duration:?}");
        let total = connections.establish_time.sum();
        assert!(sum <= total && total < elapsed, "{sum:?} {total:?} {elapsed:?}");
    }
    let mut counts = ByStage::default();
    for (stage, times) in connections.stage_times.iter() {
        *of(&mut counts, stage) = times.count();
    }
    (counts, connections.failed)
}

fn of<T>(by_stage: &mut ByStage<T>, stage: Stage) -> &mut T {
    match stage {
        Stage::Resolve => &mut by_stage.resolve,
        Stage::Proxy => &mut by_stage.proxy,
        Stage::Connect => &mut by_stage.connect,
        Stage::Tls => &mut by_stage.tls,
        Stage::Hello => &mut by_stage.hello,
        _ => &mut by_stage.authenticate,
    }
}

/// Returns a count of one for each of these stages.
fn once(stages: &[Stage]) -> ByStage<u64> {
    let mut counts = ByStage::default();
    stages.iter().for_each(|stage| *of(&mut counts, *stage) = 1);
    counts
}

#[tokio::test]
async fn stages_of_a_connection_with_tls_are_timed() {
    let certificates = Certificates::create().unwrap();
    let (_server, front) = front(&certificates, Pem::Server).await;
    let all = once(&[Stage::Resolve, Stage::Connect, Stage::Tls, Stage::Hello]);
    let secured = localhost(front.address().port()).tls(trust(&certificates));
    assert_eq!(stages(secured).await, (all, once(&[])));
    // The server's certificate is not trusted.
    let distrusted = localhost(front.address().port()).tls(TlsOptions::default());
    assert_eq!(stages(distrusted).await, (once(&[Stage::Resolve, Stage::Connect]), once(&[Stage::Tls])));
}

#[tokio::test]
async fn stages_of_a_plain_connection_are_timed() {
    let server = embedded().await;
    let all = once(&[Stage::Resolve, Stage::Connect, Stage::Hello]);
    assert_eq!(stages(options(server.address())).await, (all, once(&[])));
    let refusing = Refusing::new().unwrap();
    assert_eq!(
        stages(options(refusing.address().to_string())).await,
        (once(&[Stage::Resolve]), once(&[Stage::Connect]))
    );
}

#[tokio::test]
async fn connecting_through_a_proxy_is_one_stage() {
    let server = embedded().await;
    let names = HashMap::from([("db.invalid".to_owned(), socket_address(&server))]);
    let proxy = SocksProxy::start(SocksOptions { names, ..SocksOptions::default() }).await.unwrap();
    let proxied = options("db.invalid:4711").proxy(ProxyOptions::new("localhost").port(proxy.port()));
    assert_eq!(stages(proxied).await, (once(&[Stage::Proxy, Stage::Hello]), once(&[])));
}
