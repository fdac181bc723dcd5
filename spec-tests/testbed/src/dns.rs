//! A small name server, over UDP and TCP on 127.0.0.1.
//!
//! It knows only what its [`Zone`] contains, answers authoritatively, and does not forward questions. An answer that
//! does not fit into a datagram is marked as truncated, so a resolver retries over TCP.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

/// How long an answer may be cached, in seconds.
const TTL: u32 = 86_400;

/// The records of a name server.
#[derive(Debug, Default, Clone)]
pub struct Zone {
    records: Vec<Record>,
    /// The names that fail: questions about them are answered with this error, or not at all if it is `None`.
    failures: BTreeMap<String, Option<ResponseCode>>,
}

impl Zone {
    /// Adds an SRV record. Both names are written without a trailing dot.
    pub fn srv(mut self, name: &str, port: u16, target: &str) -> Zone {
        // The weight and the priority are different in each record, because clients must ignore both.
        let rank = u16::try_from(self.records.len()).expect("a zone has fewer than 65,536 records");
        self.records.push(Record::from_rdata(fqdn(name), TTL, RData::SRV(SRV::new(rank, rank, port, fqdn(target)))));
        self
    }

    /// Adds an SRV record whose target has these labels, with arbitrary bytes.
    pub fn srv_to_labels(mut self, name: &str, port: u16, target: &[&str]) -> Zone {
        let target = Name::from_labels(target.iter().map(|label| label.as_bytes())).expect("the labels are short");
        self.records.push(Record::from_rdata(fqdn(name), TTL, RData::SRV(SRV::new(0, 0, port, target))));
        self
    }

    /// Adds a TXT record with these strings.
    pub fn txt(mut self, name: &str, strings: &[&str]) -> Zone {
        let strings = strings.iter().map(|text| text.as_bytes()).collect();
        self.records.push(Record::from_rdata(fqdn(name), TTL, RData::TXT(TXT::from_bytes(strings))));
        self
    }

    /// Sets how long the records added so far may be cached, in seconds. The default is a day.
    pub fn lasting(mut self, seconds: u32) -> Zone {
        self.records.iter_mut().for_each(|record| record.ttl = seconds);
        self
    }

    /// Answers every question for this name with `SERVFAIL`.
    pub fn failing(mut self, name: &str) -> Zone {
        self.failures.insert(fqdn(name).to_lowercase().to_utf8(), Some(ResponseCode::ServFail));
        self
    }

    /// Never answers a question for this name.
    pub fn silent(mut self, name: &str) -> Zone {
        self.failures.insert(fqdn(name).to_lowercase().to_utf8(), None);
        self
    }

    /// Returns the answer to a request, or `None` to leave it unanswered.
    fn answer(&self, request: &Message) -> Option<Message> {
        let mut response = Message::new(request.metadata.id, MessageType::Response, OpCode::Query);
        response.metadata.authoritative = true;
        response.metadata.recursion_desired = request.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        for query in &request.queries {
            response.add_query(query.clone());
            let name = query.name().to_lowercase();
            match self.failures.get(&name.to_utf8()) {
                Some(None) => return None,
                Some(Some(code)) => response.metadata.response_code = *code,
                None => {
                    let of_name: Vec<_> =
                        self.records.iter().filter(|record| record.name.to_lowercase() == name).collect();
                    if of_name.is_empty() {
                        response.metadata.response_code = ResponseCode::NXDomain;
                    }
                    for record in of_name.into_iter().filter(|record| record.record_type() == query.query_type()) {
                        response.add_answer(record.clone());
                    }
                }
            }
        }
        Some(response)
    }
}

/// A question that a client asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The name, in lower case and with a trailing dot.
    pub name: String,
    /// The type of record.
    pub record: RecordType,
    /// Whether the client asked over TCP.
    pub over_tcp: bool,
}

/// The records, which [`DnsServer::replace`] can replace.
type Shared = Arc<Mutex<Zone>>;

/// A running name server. Dropping it closes its port and all connections.
#[derive(Debug)]
pub struct DnsServer {
    address: SocketAddr,
    zone: Shared,
    questions: Arc<Mutex<Vec<Question>>>,
    _tasks: JoinSet<()>,
}

impl DnsServer {
    /// Starts a name server for `zone`, on a free port. UDP and TCP use the same port.
    ///
    /// # Errors
    ///
    /// Returns the operating system's error if no port can be bound.
    pub async fn start(zone: Zone) -> io::Result<DnsServer> {
        let (udp, tcp) = bind().await?;
        let address = udp.local_addr()?;
        let (zone, questions) = (Arc::new(Mutex::new(zone)), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(udp, zone.clone(), questions.clone()));
        tasks.spawn(serve_tcp(tcp, zone.clone(), questions.clone()));
        Ok(DnsServer { address, zone, questions, _tasks: tasks })
    }

    /// Replaces the zone that the server answers questions from.
    pub fn replace(&self, zone: Zone) {
        *self.zone.lock().expect("no thread panics under the lock") = zone;
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the questions so far, in order.
    pub fn questions(&self) -> Vec<Question> {
        self.questions.lock().expect("no thread panics under the lock").clone()
    }
}

fn fqdn(name: &str) -> Name {
    let name = format!("{}.", name.trim_end_matches('.'));
    // The rules for internationalized names refuse underscores.
    let parsed = if name.is_ascii() { Name::from_ascii(&name) } else { Name::from_utf8(&name) };
    parsed.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Binds one port for both protocols. Retries, because another process may already have taken the UDP port.
async fn bind() -> io::Result<(UdpSocket, TcpListener)> {
    let mut tries = 0;
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        match UdpSocket::bind(tcp.local_addr()?).await {
            Ok(udp) => return Ok((udp, tcp)),
            Err(error) if tries == 20 => return Err(error),
            Err(_) => tries += 1,
        }
    }
}

fn note(questions: &Mutex<Vec<Question>>, request: &Message, over_tcp: bool) {
    let asked = request.queries.iter().map(|query| Question {
        name: query.name().to_lowercase().to_utf8(),
        record: query.query_type(),
        over_tcp,
    });
    questions.lock().expect("no thread panics under the lock").extend(asked);
}

fn answer(zone: &Shared, request: &Message) -> Option<Message> {
    zone.lock().expect("no thread panics under the lock").answer(request)
}

async fn serve_udp(socket: UdpSocket, zone: Shared, questions: Arc<Mutex<Vec<Question>>>) {
    let mut buffer = [0; 4096];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
        let Ok(request) = Message::from_vec(&buffer[..length]) else { continue };
        note(&questions, &request, false);
        let Some(response) = answer(&zone, &request) else { continue };
        let Ok(mut bytes) = response.to_vec() else { continue };
        if bytes.len() > usize::from(request.max_payload()) {
            let Ok(truncated) = response.truncate().to_vec() else { continue };
            bytes = truncated;
        }
        // The client may already be gone.
        let _ = socket.send_to(&bytes, peer).await;
    }
}

async fn serve_tcp(listener: TcpListener, zone: Shared, questions: Arc<Mutex<Vec<Question>>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (zone, questions) = (zone.clone(), questions.clone());
        connections.spawn(async move {
            // The first error closes the connection. The client sees that, so there is nothing to report.
            let _ = serve_stream(stream, &zone, &questions).await;
        });
    }
}

/// Serves one TCP connection. Over TCP, each message is preceded by its length (RFC 1035, section 4.2.2).
async fn serve_stream(mut stream: TcpStream, zone: &Shared, questions: &Mutex<Vec<Question>>) -> io::Result<()> {
    loop {
        let mut bytes = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut bytes).await?;
        let request = Message::from_vec(&bytes).map_err(io::Error::other)?;
        note(questions, &request, true);
        if let Some(response) = answer(zone, &request) {
            let bytes = response.to_vec().map_err(io::Error::other)?;
            stream.write_u16(u16::try_from(bytes.len()).map_err(io::Error::other)?).await?;
            stream.write_all(&bytes).await?;
        }
    }
}
