//! A pool without a client: `MONGODB_URI=mongodb://... cargo run --example ping`. The default is a server at
//! localhost:27017.

use bson::rawdoc;
use wharf::Options;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let uri = std::env::var("MONGODB_URI").unwrap_or_else(|_| "mongodb://localhost".to_owned());
    let options = Options::from_uri(&uri).await?;
    let pool = options.endpoint()?.pool().build()?;
    pool.ready();
    let reply = pool.run_command("admin", &rawdoc! { "ping": 1 }).await?;
    println!("ok: {}", reply.get_f64("ok")?);
    Ok(()) // dropping the pool closes it
}
