//! The server's side of SCRAM, with valid and invalid behaviour. It is written from RFC 5802 independently of the
//! client's side, so that the two do not share mistakes.

use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use wharf_testbed::scripted::{Answer, Script, ScriptedServer, name};

use super::*;

pub const PASSWORD: &str = "pencil";
const SALT: &[u8] = b"sixteen byte salt";

/// How a scripted server departs from the protocol, or follows it in an unusual way.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    /// Whether the server replies to the first message if it is sent along with hello.
    pub speculates: bool,
    /// Whether the reply with the server's proof leaves `done` unset, in which case the client has to send an empty
    /// message. Servers before 4.4 behave like this.
    pub wants_empty_exchange: bool,
    /// The iteration count that the server requires. The default is 4096.
    pub iterations: Option<u64>,
    /// The nonce to send, instead of one that extends the client's nonce.
    pub nonce: Option<&'static str>,
    /// The message to send instead of the final message.
    pub server_final: Option<&'static str>,
    /// Whether the server sets `done` in its first message.
    pub done_at_once: bool,
    /// Whether the server never sets `done`.
    pub never_done: bool,
    /// The fields to replace in every reply to a SASL command.
    pub replaced: Document,
    /// The user's mechanisms in the hello reply.
    pub mechanisms: Option<Bson>,
}

/// The server's side of one connection.
struct Server {
    behaviour: Behaviour,
    /// The text that both sides sign: the client's first message without its header, and the server's first message.
    signed: String,
    proven: bool,
}

/// Returns a hello reply with the additional `fields`.
pub fn hello(fields: Document) -> Document {
    let mut reply = doc! { "ok": 1.0, "maxWireVersion": 17, "minWireVersion": 0, "helloOk": true };
    reply.extend(fields);
    reply
}

fn binary(bytes: &[u8]) -> Bson {
    Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() })
}

pub fn sasl(payload: &[u8], done: bool) -> Document {
    doc! { "conversationId": 1, "payload": binary(payload), "done": done, "ok": 1.0 }
}

pub fn payload(command: &Document) -> Vec<u8> {
    command.get_binary_generic("payload").unwrap().clone()
}

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    hmac.update(text);
    hmac.finalize().into_bytes().to_vec()
}

/// Returns the salted password for the default number of iterations. It is computed only once, because it is slow
/// without optimisation. With a different number of iterations, the server does not send a proof.
fn salted_password() -> &'static [u8; 32] {
    static SALTED: OnceLock<[u8; 32]> = OnceLock::new();
    SALTED.get_or_init(|| pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(PASSWORD.as_bytes(), SALT, 4096))
}

impl Server {
    fn first(&mut self, start: &Document) -> Document {
        let message = String::from_utf8(payload(start)).unwrap();
        let bare = message.strip_prefix("n,,").expect("the client's first message has no channel binding");
        let nonce = bare.rsplit_once(",r=").unwrap().1;
        let nonce = self.behaviour.nonce.map_or(format!("{nonce}server"), str::to_owned);
        let iterations = self.behaviour.iterations.unwrap_or(4096);
        let first = format!("r={nonce},s={},i={iterations}", BASE64.encode(SALT));
        self.signed = format!("{bare},{first}");
        sasl(first.as_bytes(), self.behaviour.done_at_once)
    }

    /// Checks the client's proof, and returns the server's proof.
    fn last(&mut self, advance: &Document) -> Document {
        let message = String::from_utf8(payload(advance)).unwrap();
        if self.proven {
            assert_eq!(message, "", "the client continues after the end");
            return sasl(b"", !self.behaviour.never_done);
        }
        let (without_proof, proof) = message.rsplit_once(",p=").unwrap();
        let signed = format!("{},{without_proof}", self.signed);
        let salted = salted_password();
        let client_key = hmac(salted, b"Client Key");
        let stored_key = Sha256::digest(&client_key);
        let recovered: Vec<u8> = BASE64
            .decode(proof)
            .unwrap()
            .iter()
            .zip(hmac(&stored_key, signed.as_bytes()))
            .map(|(a, b)| a ^ b)
            .collect();
        if recovered != client_key {
            return doc! { "ok": 0.0, "code": 18, "codeName": "AuthenticationFailed", "errmsg": "Authentication failed." };
        }
        self.proven = true;
        let signature = hmac(&hmac(salted, b"Server Key"), signed.as_bytes());
        let message = format!("v={}", BASE64.encode(signature));
        let message = self.behaviour.server_final.map_or(message, str::to_owned);
        sasl(message.as_bytes(), !(self.behaviour.wants_empty_exchange || self.behaviour.never_done))
    }

    fn reply(&mut self, command: &Document) -> Document {
        let mut reply = match &*name(command) {
            "saslStart" => self.first(command),
            "saslContinue" => self.last(command),
            "isMaster" | "hello" => {
                let mut fields = Document::new();
                if let Some(mechanisms) = &self.behaviour.mechanisms {
                    fields.insert("saslSupportedMechs", mechanisms.clone());
                }
                if let Ok(first) = command.get_document("speculativeAuthenticate")
                    && self.behaviour.speculates
                {
                    let mut reply = self.first(first);
                    reply.remove("ok");
                    reply.extend(self.behaviour.replaced.clone());
                    fields.insert("speculativeAuthenticate", reply);
                }
                return hello(fields);
            }
            _ => return doc! { "ok": 1.0 },
        };
        reply.extend(self.behaviour.replaced.clone());
        reply
    }
}

/// Returns a function that computes the replies of a server with this behaviour, for scripts that change the replies
/// before they are sent.
pub fn replies(behaviour: Behaviour) -> impl FnMut(&Document) -> Document + Send {
    let mut server = Server { behaviour, signed: String::new(), proven: false };
    move |command| server.reply(command)
}

pub async fn start(behaviour: Behaviour) -> ScriptedServer {
    let script = move || -> Script {
        let mut reply = replies(behaviour.clone());
        Box::new(move |command| Answer::Reply(reply(command)))
    };
    ScriptedServer::start(script).await.unwrap()
}

pub fn credential() -> Credential {
    Credential::new("user", PASSWORD).mechanism(Mechanism::ScramSha256)
}
