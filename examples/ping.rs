//! The ten lines of the README, but for the name of the application, against a server at localhost:27017.

use bson::rawdoc;
use wharf::Endpoint;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Endpoint::new("localhost:27017")?.pool().build()?;
    pool.ready();
    let mut connection = pool.check_out().await?;
    let reply = connection.run_command("admin", &rawdoc! { "ping": 1 }).await?;
    println!("{reply:?}");
    Ok(())
}
