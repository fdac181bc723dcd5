use std::error::Error;

use bson::{RawDocument, rawdoc};
use wharf::{Command, Connection, Endpoint, Pool, Purpose};

type Failure = Box<dyn Error + Send + Sync>;

/// Calls `each` for every order, until `each` fails.
pub async fn orders(
    pool: &Pool<Endpoint>,
    mut each: impl FnMut(&RawDocument) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut connection = pool.check_out().await?;
    connection.pin_to(Purpose::Cursor);
    let mut reply = connection.run_command("shop", &rawdoc! { "find": "orders", "batchSize": 100 }).await?;
    loop {
        let cursor = reply.get_document("cursor")?;
        let id = cursor.get_i64("id")?;
        let read = read_batch(cursor, &mut each);
        if id == 0 {
            return read; // the server has closed the cursor
        }
        let more = rawdoc! { "getMore": id, "collection": "orders", "batchSize": 100 };
        let next = match read {
            // Only getMore on tailable cursors that await data takes maxTimeMS.
            Ok(()) => connection.run(Command::new("shop", &more).without_max_time()).await.map_err(Failure::from),
            Err(error) => Err(error),
        };
        reply = match next {
            Ok(reply) => reply,
            Err(error) => {
                close(pool, connection, id).await;
                return Err(error);
            }
        };
    }
}

fn read_batch(cursor: &RawDocument, each: &mut impl FnMut(&RawDocument) -> Result<(), Failure>) -> Result<(), Failure> {
    let batch = cursor.get_array("firstBatch").or_else(|_| cursor.get_array("nextBatch"))?;
    for document in batch {
        each(document?.as_document().ok_or("a batch contains something other than documents")?)?;
    }
    Ok(())
}

/// Closes a cursor before its end. Errors do not matter, because the server closes an idle cursor after ten minutes.
async fn close(pool: &Pool<Endpoint>, mut connection: Connection<Endpoint>, id: i64) {
    let kill = rawdoc! { "killCursors": "orders", "cursors": [id] };
    if connection.run_command("shop", &kill).await.is_err() {
        // The connection may have failed. Any other connection to the same server will do.
        drop(connection);
        let _ = pool.run_command("shop", &kill).await;
    }
}
