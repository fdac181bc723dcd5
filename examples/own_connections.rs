//! A pool of connections to something other than MongoDB: `cargo run --example own_connections`.
//!
//! A pool only needs an implementation of [`Establish`], which says how to open a connection, how to check it before
//! use, when not to reuse it, how to reset it, and how to close it. The pool here survives a restart of its server.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use wharf::{
    CheckBeforeUse, CheckResult, Condition, Establish, EstablishError, Establishing, Pool, PoolEvent, PoolOptions,
    Stage,
};

/// Opens connections to a server that greets each session in its language.
struct Greeter {
    server: SocketAddr,
}

/// A connection to the server. Each command is a line, and so is each reply.
struct Session {
    stream: BufReader<TcpStream>,
    /// Whether an exchange was started but not completed. The next bytes on the stream are then unknown.
    is_broken: bool,
    /// Whether the session's state differs from that of a new session.
    is_changed: bool,
}

impl Establish for Greeter {
    type Connection = Session;
    const HAS_CHECK: bool = true;

    async fn establish(&self, _: Establishing) -> Result<Session, EstablishError> {
        // The pool itself does not limit how long this takes.
        let connected = timeout(Duration::from_secs(10), TcpStream::connect(self.server)).await;
        match connected.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => Ok(Session { stream: BufReader::new(stream), is_broken: false, is_changed: false }),
            Err(error) => Err(EstablishError::overloaded(Stage::Connect, error)),
        }
    }

    /// Detects whether the server has disappeared or restarted while the connection was idle.
    async fn check(&self, session: &mut Session) -> CheckResult {
        let reply = timeout(Duration::from_secs(2), session.exchange("ping")).await??;
        if reply == "pong" { Ok(()) } else { Err(format!("unexpected reply to ping: {reply}").into()) }
    }

    fn condition(&self, session: &mut Session) -> Condition {
        match session {
            Session { is_broken: true, .. } => Condition::Broken,
            Session { is_changed: true, .. } => Condition::NeedsDrain,
            _ => Condition::Reusable,
        }
    }

    /// Resets the session in the background. If this fails, the connection is broken, and the pool closes it.
    async fn drain(&self, session: &mut Session) {
        if let Ok(Ok(_)) = timeout(Duration::from_secs(2), session.exchange("reset")).await {
            session.is_changed = false;
        } else {
            session.is_broken = true;
        }
    }

    /// Ends the session.
    async fn close(&self, mut session: Session) {
        if !session.is_broken {
            // The server may be gone.
            let _ = session.exchange("quit").await;
        }
    }
}

impl Session {
    async fn speak(&mut self, language: &str) -> io::Result<()> {
        self.is_changed = true;
        self.exchange(&format!("speak {language}")).await.map(drop)
    }

    async fn greet(&mut self) -> io::Result<String> {
        self.exchange("greet").await
    }

    async fn exchange(&mut self, command: &str) -> io::Result<String> {
        let mut reply = String::new();
        self.is_broken = true;
        self.stream.get_mut().write_all(format!("{command}\n").as_bytes()).await?;
        if self.stream.read_line(&mut reply).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.is_broken = false;
        Ok(reply.trim_end().to_owned())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let (mut server, address) = start("127.0.0.1:0".parse()?).await?;
    let pool = Pool::builder(&address.to_string(), Greeter { server: address })
        // By default, connections that were idle for longer than a second are checked.
        .options(PoolOptions::default().max_pool_size(4).check_before_use(CheckBeforeUse::Always))
        .subscriber(|event: &PoolEvent| println!("{:<26}{:?}", event.name(), event.connection_id()))
        .build()?;
    pool.ready();

    use_at_the_same_time(&pool).await?;
    server.shutdown().await;
    let (server, _) = start(address).await?;
    use_at_the_same_time(&pool).await?;

    pool.close();
    pool.closed().await;
    drop(server);
    Ok(())
}

/// Uses the pool's connections in four tasks.
async fn use_at_the_same_time(pool: &Pool<Greeter>) -> Result<(), Box<dyn Error + Send + Sync>> {
    let tasks = [("fr", "bonjour"), ("en", "hello"), ("de", "hallo"), ("en", "hello")].map(|(language, greeting)| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let mut session = pool.check_out().await?;
            // The session was reset if an earlier task changed its language.
            assert_eq!(session.greet().await?, "hello");
            session.speak(language).await?;
            assert_eq!(session.greet().await?, greeting);
            Ok::<(), Box<dyn Error + Send + Sync>>(())
        })
    });
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Starts the server, which runs until its tasks are dropped.
async fn start(address: SocketAddr) -> io::Result<(JoinSet<io::Result<()>>, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut sessions = JoinSet::new();
        loop {
            sessions.spawn(serve(listener.accept().await?.0));
        }
    });
    Ok((server, address))
}

async fn serve(stream: TcpStream) -> io::Result<()> {
    let (mut stream, mut command, mut greeting) = (BufReader::new(stream), String::new(), "hello");
    while stream.read_line(&mut command).await? > 0 {
        let reply = match command.trim_end() {
            "ping" => "pong",
            "greet" => greeting,
            "quit" => return stream.get_mut().write_all(b"bye\n").await,
            "reset" | "speak en" => "hello",
            "speak fr" => "bonjour",
            "speak de" => "hallo",
            _ => "what?",
        };
        if command.starts_with("speak") || command.starts_with("reset") {
            greeting = reply;
        }
        stream.get_mut().write_all(format!("{reply}\n").as_bytes()).await?;
        command.clear();
    }
    Ok(())
}
