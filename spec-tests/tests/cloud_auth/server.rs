//! A MongoDB server that knows keys and tokens, and checks the clients' proofs.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, RawDocument, RawDocumentBuf, doc};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use wharf::unstable::wire::{Flags, Header, Limits, Message, Outgoing, op_msg};

const LIMITS: Limits = Limits { max_message_size: 48_000_000, max_document_size: 16_777_216 };

/// The state of a server. Changes take effect with the next command.
#[derive(Debug)]
pub struct State {
    /// Secret keys and session tokens, by access key.
    pub keys: HashMap<String, (String, Option<String>)>,
    /// The tokens that the server accepts.
    pub tokens: HashSet<String>,
    /// Commands that fail once each: the name and the error code. For code 0, the server closes the connection.
    pub failures: VecDeque<(&'static str, i32)>,
    /// The command that the server does not answer.
    pub silent_at: Option<&'static str>,
    /// The host name of the Security Token Service.
    pub host: String,
    /// The answer to a client without a token; `None` if no identity provider is known.
    pub idp: Option<Document>,
    /// Replies that replace the normal reply to a command.
    pub replies: HashMap<&'static str, Document>,
    /// The names of the commands so far.
    pub commands: Vec<String>,
    /// The user names in the clients' requests for an identity provider.
    pub principals: Vec<Option<String>>,
    /// The `speculativeAuthenticate` field of each hello.
    pub speculations: Vec<Option<Document>>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            keys: HashMap::new(),
            tokens: HashSet::new(),
            failures: VecDeque::new(),
            silent_at: None,
            host: "sts.eu-central-1.amazonaws.com".to_owned(),
            idp: Some(doc! { "issuer": "https://issuer", "clientId": "client", "requestScopes": ["a", "b"] }),
            replies: HashMap::new(),
            commands: Vec::new(),
            principals: Vec::new(),
            speculations: Vec::new(),
        }
    }
}

impl State {
    /// Returns how many times the server received a command.
    pub fn count(&self, command: &str) -> usize {
        self.commands.iter().filter(|name| *name == command).count()
    }
}

/// A running server. Dropping it stops the server and closes its connections.
#[derive(Debug)]
pub struct Server {
    address: String,
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub async fn start(state: State) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let client = Client { shared: Arc::clone(&shared), authenticated: false, nonce: None, asked: false };
                connections.spawn(client.serve(stream));
            }
        });
        Self { address, state, _tasks: tasks }
    }

    /// Starts a server that accepts these tokens.
    pub async fn of_tokens(tokens: &[&str]) -> Self {
        let tokens = tokens.iter().map(|token| (*token).to_owned()).collect();
        Self::start(State { tokens, ..State::default() }).await
    }

    /// Starts a server that knows this access key.
    pub async fn of_key(id: &str, secret: &str, token: Option<&str>) -> Self {
        let keys = HashMap::from([(id.to_owned(), (secret.to_owned(), token.map(str::to_owned)))]);
        Self::start(State { keys, ..State::default() }).await
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

struct Client {
    shared: Arc<Mutex<State>>,
    authenticated: bool,
    /// The nonce of the current MONGODB-AWS conversation.
    nonce: Option<Vec<u8>>,
    /// Whether a MONGODB-OIDC conversation is waiting for its token.
    asked: bool,
}

enum Course {
    Reply(Document),
    Silence,
    Close,
}

impl Client {
    async fn serve(mut self, mut stream: TcpStream) {
        let mut bytes = Vec::new();
        loop {
            let header = loop {
                match Header::read(&bytes, LIMITS.max_message_size).unwrap() {
                    Some(header) if bytes.len() >= header.message_length as usize => break header,
                    _ => {}
                }
                match stream.read_buf(&mut bytes).await {
                    Ok(read) if read > 0 => {}
                    _ => return,
                }
            };
            let message: Vec<_> = bytes.drain(..header.message_length as usize).collect();
            let body = Message::decode(&message, LIMITS).unwrap().body;
            let reply = match self.answer(&Document::try_from(body).unwrap()) {
                Course::Reply(reply) => RawDocumentBuf::try_from(reply).unwrap(),
                Course::Close => return,
                Course::Silence => {
                    let _ = stream.read_buf(&mut bytes).await;
                    return;
                }
            };
            let message = Outgoing {
                request_id: 1,
                response_to: header.request_id,
                flags: Flags::NONE,
                body: &reply,
                database: None,
                sequences: &[],
            };
            let mut outgoing = Vec::new();
            op_msg::encode(&message, LIMITS.max_message_size, &mut outgoing).unwrap();
            if stream.write_all(&outgoing).await.is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, command: &Document) -> Course {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock().unwrap();
        let name = command.keys().next().unwrap().as_str();
        let name = if name.eq_ignore_ascii_case("ismaster") { "hello" } else { name };
        state.commands.push(name.to_owned());
        if state.silent_at == Some(name) {
            return Course::Silence;
        }
        let failure = state.failures.iter().position(|(failing, _)| *failing == name);
        if let Some((_, code)) = failure.and_then(|index| state.failures.remove(index)) {
            return if code == 0 { Course::Close } else { Course::Reply(failed(code)) };
        }
        if let Some(reply) = state.replies.get(name) {
            return Course::Reply(reply.clone());
        }
        let reply = match name {
            "hello" => self.greet(&mut state, command),
            "saslStart" | "saslContinue" => {
                assert_eq!(command.get_str("$db").unwrap(), "$external");
                self.authenticated = false;
                self.converse(&mut state, command).unwrap_or_else(|| failed(18))
            }
            _ if !self.authenticated => failed(13),
            _ => doc! { "ok": 1 },
        };
        Course::Reply(reply)
    }

    fn greet(&mut self, state: &mut State, command: &Document) -> Document {
        let mut reply = doc! {
            "isWritablePrimary": true, "helloOk": true, "minWireVersion": 0, "maxWireVersion": 21,
            "logicalSessionTimeoutMinutes": 30,
        };
        let speculation = command.get_document("speculativeAuthenticate").ok();
        state.speculations.push(speculation.cloned());
        // If the authentication in hello failed, the reply omits it, as a real server's reply does.
        if let Some(answer) = speculation.and_then(|command| {
            assert_eq!(command.get_str("db").unwrap(), "$external");
            self.converse(state, command)
        }) {
            reply.insert("speculativeAuthenticate", answer);
        }
        reply.insert("ok", 1);
        reply
    }

    /// Runs one step of a conversation; returns `None` if it failed.
    fn converse(&mut self, state: &mut State, command: &Document) -> Option<Document> {
        let payload = command.get_binary_generic("payload").unwrap();
        let payload = Document::try_from(RawDocument::from_bytes(payload).unwrap()).unwrap();
        if let Ok(mechanism) = command.get_str("mechanism") {
            match mechanism {
                "MONGODB-AWS" => {
                    assert_eq!(payload.get_i32("p").unwrap(), 110);
                    let mut nonce = payload.get_binary_generic("r").unwrap().clone();
                    assert_eq!(nonce.len(), 32);
                    nonce.extend([9; 32]);
                    let binary = Binary { subtype: BinarySubtype::Generic, bytes: nonce.clone() };
                    self.nonce = Some(nonce);
                    return Some(sasl(doc! { "s": binary, "h": state.host.as_str() }, false));
                }
                "MONGODB-OIDC" => {
                    if payload.contains_key("jwt") {
                        return self.accept(state, &payload);
                    }
                    let principal = payload.get_str("n").ok().map(str::to_owned);
                    state.principals.push(principal);
                    self.asked = true;
                    return state.idp.clone().map(|idp| sasl(idp, false));
                }
                other => panic!("mechanism {other}"),
            }
        }
        assert_eq!(command.get_i32("conversationId").unwrap(), 7);
        if std::mem::take(&mut self.asked) {
            return self.accept(state, &payload);
        }
        let nonce = self.nonce.take().expect("saslContinue without saslStart");
        self.authenticated = is_signed(state, &nonce, &payload);
        self.authenticated.then(|| sasl(doc! {}, true))
    }

    fn accept(&mut self, state: &State, payload: &Document) -> Option<Document> {
        assert_eq!(payload.len(), 1);
        self.authenticated = state.tokens.contains(payload.get_str("jwt").unwrap());
        self.authenticated.then(|| sasl(doc! {}, true))
    }
}

pub fn failed(code: i32) -> Document {
    doc! { "ok": 0, "code": code, "errmsg": "failed by the test" }
}

/// Returns the reply to a successful step.
pub fn sasl(payload: Document, done: bool) -> Document {
    let bytes = RawDocumentBuf::try_from(payload).unwrap().into_bytes();
    let payload = Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes });
    doc! { "conversationId": 7, "done": done, "payload": payload, "ok": 1 }
}

/// Verifies the signature. Computes the expected signature independently of the client's code, in the fixed form that
/// the specification prescribes.
fn is_signed(state: &State, nonce: &[u8], payload: &Document) -> bool {
    let (authorization, date) = (payload.get_str("a").unwrap(), payload.get_str("d").unwrap());
    let id = authorization.split(['=', '/']).nth(1).unwrap();
    let Some((secret, token)) = state.keys.get(id) else { return false };
    assert_eq!(payload.get_str("t").ok(), token.as_deref());
    let (mut names, mut lines) = ("content-length;content-type;host;x-amz-date".to_owned(), String::new());
    lines += &format!("content-length:43\ncontent-type:application/x-www-form-urlencoded\nhost:{}\n", state.host);
    lines += &format!("x-amz-date:{date}\n");
    if let Some(token) = token {
        names += ";x-amz-security-token";
        lines += &format!("x-amz-security-token:{token}\n");
    }
    names += ";x-mongodb-gs2-cb-flag;x-mongodb-server-nonce";
    lines += &format!("x-mongodb-gs2-cb-flag:n\nx-mongodb-server-nonce:{}\n", BASE64.encode(nonce));
    let body = hex(&Sha256::digest("Action=GetCallerIdentity&Version=2011-06-15"));
    let request = hex(&Sha256::digest(format!("POST\n/\n\n{lines}\n{names}\n{body}")));
    let (day, region) = (&date[..8], state.host.split('.').nth(1).unwrap());
    let scope = format!("{day}/{region}/sts/aws4_request");
    let mut key = mac(format!("AWS4{secret}").as_bytes(), day);
    for part in [region, "sts", "aws4_request"] {
        key = mac(&key, part);
    }
    let signature = hex(&mac(&key, &format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{request}")));
    authorization == format!("AWS4-HMAC-SHA256 Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}")
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
