//! Cancelled commands of an authenticated user, over TLS, with and without compression: no connection is lost.

use super::*;

const CONNECTIONS: u32 = 4;

#[tokio::test]
async fn cancelled_commands_cost_no_connection_with_or_without_compression() {
    // A separate server, because the test counts the connections of all clients.
    let secured = Secured::start(false).await;
    let root = secured.root().await;
    let mut all: Vec<Vec<Compressor>> =
        [Compressor::Snappy, Compressor::Zlib { level: -1 }, Compressor::Zstd].map(|one| vec![one]).into();
    all.push(Vec::new());
    for compressors in all {
        let (pool_options, counts) = (PoolOptions::default().max_pool_size(CONNECTIONS), EventCounts::new());
        let options = secured.as_user().compressors(compressors.clone()).app_name("hasty").drain_timeout(AGES);
        let endpoint = options.pool(pool_options).endpoint().unwrap();
        let pool = endpoint.pool().subscriber(counts.clone()).build().unwrap();
        pool.ready();
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS {
            held.push(pool.check_out().await.unwrap());
        }
        drop(held);
        let block = doc! { "failCommands": ["ping", "find"], "blockConnection": true, "blockTimeMS": 10 };
        secured.fail_point().await.set(&root, "hasty", "alwaysOn", block).await;
        let before = Secured::connections_created(&root).await;

        // The largest command takes several TLS records in either direction.
        let large = rawdoc! { "ping": 1, "comment": "a".repeat(200_000) };
        let commands = [rawdoc! { "ping": 1 }, large, rawdoc! { "find": "nothing" }];
        let mut cancelled = 0;
        for round in 0..60_u32 {
            // A check-out that has to wait would close a connection that is being drained.
            while pool.status().available == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let patience = Duration::from_micros(u64::from(round % 12) * 700);
            let command = &commands[round as usize % commands.len()];
            cancelled += u32::from(tokio::time::timeout(patience, pool.run_command("test", command)).await.is_err());
        }
        assert!(cancelled > 30, "only {cancelled} commands were cancelled");
        let settled = async {
            while pool.status().available < CONNECTIONS {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(AGES, settled).await.expect("the connections are not drained in time");
        assert_eq!(Secured::connections_created(&root).await, before, "{compressors:?}");
        // On each connection, the next command receives its own reply, and still runs as the same user.
        let mut held = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut connection = pool.check_out().await.unwrap();
            let status = connection.run_command("admin", &rawdoc! { "connectionStatus": 1 }).await.unwrap();
            assert_eq!(user_of(&status).as_deref(), Some("app"));
            held.push(connection);
        }
        let counts = counts.snapshot();
        let count = |event| counts.iter().find(|(name, _)| *name == event).unwrap().1;
        assert_eq!((count("ConnectionCreated"), count("ConnectionClosed")), (u64::from(CONNECTIONS), 0));
    }
}
