//! A simulated cloud service that speaks HTTP/1.1 and serves one request per connection.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A request as received.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The method, and the path with its query.
    pub line: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

/// How the service reacts to a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Answers with a status and a body.
    Says(u16, String),
    /// Sends these bytes and closes the connection.
    Sends(Vec<u8>),
    /// Sends these bytes and then nothing more.
    Stalls(Vec<u8>),
}

impl Answer {
    pub fn ok(body: impl Into<String>) -> Self {
        Self::Says(200, body.into())
    }
}

/// A running service. Dropping it stops the service and closes its connections.
#[derive(Debug)]
pub struct HttpServer {
    pub url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    _tasks: JoinSet<()>,
}

impl HttpServer {
    pub async fn start(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, Arc::clone(&log), Arc::clone(&answer)));
            }
        });
        Self { url, seen, _tasks: tasks }
    }

    /// Returns all requests received so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    log: Arc<Mutex<Vec<Seen>>>,
    answer: Arc<impl Fn(&Seen) -> Answer + Send + Sync + 'static>,
) {
    let Some(seen) = receive(&mut stream).await else { return };
    log.lock().unwrap().push(seen.clone());
    match answer(&seen) {
        Answer::Says(status, body) => {
            let head = format!("HTTP/1.1 {status} Any\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
        Answer::Sends(bytes) => {
            let _ = stream.write_all(&bytes).await;
        }
        Answer::Stalls(bytes) => {
            let _ = stream.write_all(&bytes).await;
            // Keep the connection open until the client disconnects or the server stops.
            let _ = stream.read(&mut [0; 1]).await;
        }
    }
}

async fn receive(stream: &mut TcpStream) -> Option<Seen> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        (stream.read_buf(&mut bytes).await.ok()? > 0).then_some(())?;
    };
    let text = String::from_utf8(bytes[..head].to_vec()).unwrap();
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap().strip_suffix(" HTTP/1.1").unwrap().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    let headers: Vec<_> = lines.map(header).collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    while bytes.len() < head + 4 + length {
        (stream.read_buf(&mut bytes).await.ok()? > 0).then_some(())?;
    }
    Some(Seen { line, headers, body: String::from_utf8(bytes[head + 4..].to_vec()).unwrap() })
}
