//! The blocking client with pools, on plain threads.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use bson::{Document, doc};
use wharf::blocking::{Client, Collection};
use wharf::client::CommandEvent;
use wharf::{ClientError, Options, PoolOptions};
use wharf_testbed::mongod;

const THREADS: usize = 8;

/// Each thread has its own connection: the first command of each thread is sent once all threads have begun.
#[test]
fn threads_use_one_client_at_the_same_time() {
    let server = mongod::shared().unwrap();
    let pool = PoolOptions::default().max_pool_size(THREADS as u32);
    let options = Options::new([&*server.address().to_string()]).unwrap().pool(pool);
    let all = Arc::new(Barrier::new(THREADS));
    let waits = all.clone();
    let builder = wharf::Client::builder(options).command_subscriber(move |event: &CommandEvent| {
        if let CommandEvent::Started(started) = event
            && started.source.command_name == "count"
        {
            waits.wait();
        }
    });
    let client = builder.build_blocking().unwrap();
    let orders: Collection<Document> = client.database("blocking").collection("orders");
    orders.drop().run().unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let orders = &orders;
            scope.spawn(move || {
                orders.estimated_document_count().run().unwrap();
                for number in 0..50 {
                    orders.insert_one(doc! { "thread": thread as i32, "number": number }).run().unwrap();
                }
                let own = orders.find(doc! { "thread": thread as i32 }).batch_size(20).run().unwrap();
                assert_eq!(own.map(Result::unwrap).count(), 50);
            });
        }
    });
    assert_eq!(orders.count_documents(doc! {}).run().unwrap(), 50 * THREADS as u64);
    assert_eq!(client.status().servers[0].pool.as_ref().unwrap().total, THREADS as u32);
    orders.drop().run().unwrap();
    assert!(client.shutdown(Duration::from_secs(5)).unwrap());
}

#[tokio::test]
async fn call_inside_of_a_runtime_is_refused() {
    let client = Client::from_uri("mongodb://localhost:1").unwrap();
    assert!(matches!(client.warm_up(1), Err(ClientError::OnRuntime)));
}
