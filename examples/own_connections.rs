//! A pool of connections to something other than MongoDB: `cargo run --example own_connections`.
//!
//! A pool only needs an [`Establish`]: how to open a connection, when not to reuse it, and how to close it.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use wharf::{Condition, Establish, EstablishError, Establishing, Pool, PoolEvent, PoolOptions, Stage};

/// Opens connections to a server that sends every line back.
struct Echo {
    server: SocketAddr,
}

/// A connection to the echo server.
struct EchoConnection {
    stream: BufReader<TcpStream>,
    /// Whether an exchange was started but not completed. The next bytes on the stream are then unknown.
    is_broken: bool,
}

impl Establish for Echo {
    type Connection = EchoConnection;

    async fn establish(&self, _: Establishing) -> Result<EchoConnection, EstablishError> {
        // The pool itself does not limit how long this takes.
        let connected = tokio::time::timeout(Duration::from_secs(10), TcpStream::connect(self.server)).await;
        match connected.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => Ok(EchoConnection { stream: BufReader::new(stream), is_broken: false }),
            Err(error) => Err(EstablishError::overloaded(Stage::Connect, error)),
        }
    }

    fn condition(&self, connection: &mut EchoConnection) -> Condition {
        if connection.is_broken { Condition::Broken } else { Condition::Reusable }
    }
}

impl EchoConnection {
    async fn echo(&mut self, line: &str) -> io::Result<String> {
        let mut reply = String::new();
        self.is_broken = true;
        self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).await?;
        if self.stream.read_line(&mut reply).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.is_broken = false;
        Ok(reply.trim_end().to_owned())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });

    let pool = Pool::builder(&server.to_string(), Echo { server })
        .options(PoolOptions::default().max_pool_size(2))
        .subscriber(|event: &PoolEvent| println!("{:<26}{:?}", event.name(), event.connection_id()))
        .build()?;
    pool.ready();

    let tasks = ["one", "two", "three", "four"].map(|word| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let mut connection = pool.check_out().await?;
            let reply = connection.echo(word).await?;
            assert_eq!(reply, word);
            Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        })
    });
    for task in tasks {
        task.await?.map_err(|error| error as Box<dyn std::error::Error>)?;
    }

    pool.close();
    pool.closed().await;
    Ok(())
}
