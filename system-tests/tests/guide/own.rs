use std::error::Error;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wharf::{CheckResult, Condition, Establish, EstablishError, Establishing, InvalidOption, Pool, PoolOptions, Stage};

/// Opens connections to a server that answers each byte with a byte.
pub struct Server(String);

pub struct Session {
    stream: TcpStream,
    /// Whether a question has no answer yet. Its answer must not go to the next caller.
    is_waiting: bool,
}

impl Session {
    async fn ask(&mut self, question: u8) -> io::Result<u8> {
        self.is_waiting = true;
        self.stream.write_u8(question).await?;
        let answer = self.stream.read_u8().await?;
        self.is_waiting = false;
        Ok(answer)
    }
}

impl Establish for Server {
    type Connection = Session;
    const HAS_CHECK: bool = true;

    async fn establish(&self, _: Establishing) -> Result<Session, EstablishError> {
        // The pool itself does not limit how long this takes.
        let connected = timeout(Duration::from_secs(10), TcpStream::connect(&self.0)).await;
        match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => Ok(Session { stream, is_waiting: false }),
            Err(error) => Err(EstablishError::overloaded(Stage::Connect, error)),
        }
    }

    async fn check(&self, session: &mut Session) -> CheckResult {
        timeout(Duration::from_secs(2), session.ask(0)).await??;
        Ok(())
    }

    fn condition(&self, session: &mut Session) -> Condition {
        if session.is_waiting { Condition::Broken } else { Condition::Reusable }
    }
}

pub fn open(address: &str) -> Result<Pool<Server>, InvalidOption> {
    let options = PoolOptions::default().max_pool_size(20);
    let pool = Pool::builder(address, Server(address.to_owned())).options(options);
    let pool = pool.timeout(Some(Duration::from_secs(1))).build()?;
    pool.ready();
    Ok(pool)
}

pub async fn ask(pool: &Pool<Server>, question: u8) -> Result<u8, Box<dyn Error + Send + Sync>> {
    let mut session = pool.check_out().await?; // dropping it checks it in
    Ok(session.ask(question).await?)
}
