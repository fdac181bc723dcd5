//! SCRAM-SHA-1 and SCRAM-SHA-256, the client's side (RFC 5802, RFC 7677; Authentication specification).
//!
//! Each message of the conversation is a step that takes the state before it and yields the one after it, so that no
//! step can be left out or made twice:
//!
//! 1. [`ClientFirst`] has the client's first message, and reads the server's first, which yields
//! 2. a [`Challenge`], with the salt and the iterations that the [`Keys`] are to be derived with; answered, it yields
//! 3. the client's final message, and the [`Verification`] that the server's final message must pass.
//!
//! Both sides prove that they know the password: a server that does not is refused by the last step.
//!
//! ```
//! use wharf::wire::auth::scram::{ClientFirst, Hash, Keys, prepare_password};
//!
//! let client_first = ClientFirst::new("user", "rOprNGfwEbeRWgbNEkqO");
//! assert_eq!(client_first.message(), "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
//!
//! let server_first = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
//! let challenge = client_first.read(server_first)?;
//! let password = prepare_password(Hash::Sha256, "user", "pencil")?;
//! let keys = Keys::derive(Hash::Sha256, &password, challenge.salt(), challenge.iterations());
//! let (client_final, verification) = challenge.answer(&keys);
//! assert!(client_final.ends_with(",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="));
//!
//! verification.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")?;
//! # Ok::<(), wharf::wire::auth::scram::ScramError>(())
//! ```

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::digest::Digest;
use hmac::{EagerHash, Hmac, KeyInit, Mac};
use md5::Md5;
use sha1::Sha1;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::{Zeroize, Zeroizing};

use crate::options::Mechanism;

#[cfg(test)]
mod tests;

/// The fewest iterations that a server may ask for. The specification wants this minimum, so that nobody between the two
/// ends can ask for so few that the password is easily guessed from the proof.
pub const MIN_ITERATIONS: u32 = 4_096;

/// The most iterations that a server may ask for: more than sixty times what servers ask for by default, and less than
/// a second's work on common processors. Without a limit a hostile server could keep a processor busy for many minutes
/// with one message.
pub const MAX_ITERATIONS: u32 = 1_000_000;

/// The hash function, in which the two mechanisms differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hash {
    /// SCRAM-SHA-1's.
    Sha1,
    /// SCRAM-SHA-256's.
    Sha256,
}

impl Hash {
    /// The mechanism with this hash function.
    #[must_use]
    pub fn mechanism(self) -> Mechanism {
        match self {
            Self::Sha1 => Mechanism::ScramSha1,
            Self::Sha256 => Mechanism::ScramSha256,
        }
    }

    fn hmac(self, key: &[u8], text: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => hmac::<Sha1>(key, text),
            Self::Sha256 => hmac::<Sha256>(key, text),
        }
    }
}

fn hmac<D: EagerHash>(key: &[u8], text: &[u8]) -> Vec<u8>
where
    Hmac<D>: Mac + KeyInit,
{
    // An HMAC takes a key of any length, so this never refuses.
    let mut hmac = <Hmac<D> as KeyInit>::new_from_slice(key).expect("BUG: an HMAC refused its key");
    hmac.update(text);
    hmac.finalize().into_bytes().to_vec()
}

/// The form of a password that keys are derived from.
///
/// For SHA-256 that is the password prepared with SASLprep (RFC 4013); for SHA-1 the hexadecimal MD5 digest that
/// MongoDB has always used, of the user's name and the password just as they are.
///
/// # Errors
///
/// [`ScramError::Password`] if the password has a character that SASLprep prohibits; only with SHA-256.
pub fn prepare_password(hash: Hash, username: &str, password: &str) -> Result<Zeroizing<String>, ScramError> {
    match hash {
        Hash::Sha256 => match stringprep::saslprep(password) {
            Ok(prepared) => Ok(Zeroizing::new(prepared.into_owned())),
            // The error's text names the character, which is part of the password.
            Err(_) => Err(ScramError::Password),
        },
        Hash::Sha1 => {
            let mut digest = Md5::new();
            for part in [username, ":mongo:", password] {
                digest.update(part.as_bytes());
            }
            let mut digest = digest.finalize();
            let mut hex = Zeroizing::new(String::with_capacity(2 * digest.len()));
            for byte in &digest {
                for nibble in [byte >> 4, byte & 0xf] {
                    hex.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
                }
            }
            digest.as_mut_slice().zeroize();
            Ok(hex)
        }
    }
}

/// What is derived from a password, a salt and a number of iterations. It proves who knows the password as well as the
/// password itself does, so it is wiped from memory when it is dropped, and prints as stars.
pub struct Keys {
    hash: Hash,
    client_key: Zeroizing<Vec<u8>>,
    server_key: Zeroizing<Vec<u8>>,
}

impl Keys {
    /// Derives the keys, which takes as long as `iterations` want it to: milliseconds.
    ///
    /// `password` is the prepared one ([`prepare_password`]).
    #[must_use]
    pub fn derive(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> Self {
        let mut salted = Zeroizing::new(match hash {
            Hash::Sha1 => vec![0; 20],
            Hash::Sha256 => vec![0; 32],
        });
        match hash {
            Hash::Sha1 => pbkdf2::pbkdf2_hmac::<Sha1>(password.as_bytes(), salt, iterations, &mut salted),
            Hash::Sha256 => pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), salt, iterations, &mut salted),
        }
        let key = |name: &[u8]| Zeroizing::new(hash.hmac(&salted, name));
        Self { hash, client_key: key(b"Client Key"), server_key: key(b"Server Key") }
    }

    fn proof(&self, auth_message: &str) -> Zeroizing<Vec<u8>> {
        let stored_key = Zeroizing::new(match self.hash {
            Hash::Sha1 => Sha1::digest(&*self.client_key).to_vec(),
            Hash::Sha256 => Sha256::digest(&*self.client_key).to_vec(),
        });
        let mut proof = Zeroizing::new(self.hash.hmac(&stored_key, auth_message.as_bytes()));
        for (byte, key) in proof.iter_mut().zip(self.client_key.iter()) {
            *byte ^= key;
        }
        proof
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({:?}, ***)", self.hash)
    }
}

/// A conversation whose first message has been made. Both mechanisms begin with the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct ClientFirst {
    nonce: String,
    /// The message without its header.
    bare: String,
}

impl ClientFirst {
    /// What the message begins with: there is no channel binding, and no other identity to act as.
    const HEADER: &'static str = "n,,";

    /// The first message of `username`, whose name goes as it is but for the characters that must be escaped.
    ///
    /// `nonce` must be unpredictable, and of printable ASCII characters without a comma.
    pub fn new(username: &str, nonce: &str) -> Self {
        let escaped = username.replace('=', "=3D").replace(',', "=2C");
        Self { nonce: nonce.to_owned(), bare: format!("n={escaped},r={nonce}") }
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> String {
        format!("{}{}", Self::HEADER, self.bare)
    }

    /// Reads the server's first message.
    ///
    /// # Errors
    ///
    /// [`ScramError`] if it is not one, answers another conversation, or asks for too few or too many iterations.
    pub fn read(self, message: &[u8]) -> Result<Challenge, ScramError> {
        let text = text(message)?;
        let mut attributes = text.split(',');
        let nonce = attribute(&mut attributes, 'r')?;
        // What the server appends makes the conversation its own: without it, it could repeat an earlier one.
        let appended = nonce.strip_prefix(&*self.nonce).ok_or(ScramError::Nonce)?;
        if appended.is_empty() || !appended.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ScramError::Nonce);
        }
        let salt = decode('s', attribute(&mut attributes, 's')?)?;
        if salt.is_empty() {
            return Err(ScramError::Malformed { attribute: 's', allowed: "at least one byte in base64" });
        }
        let iterations = iterations(attribute(&mut attributes, 'i')?)?;
        extensions(attributes)?;
        let without_proof = format!("c={},r={nonce}", BASE64.encode(Self::HEADER));
        let auth_message = format!("{},{text},{without_proof}", self.bare);
        Ok(Challenge { salt, iterations, without_proof, auth_message })
    }
}

/// A conversation in which the server has said how the keys are to be derived.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Challenge {
    salt: Vec<u8>,
    iterations: u32,
    /// The client's final message without its last attribute.
    without_proof: String,
    /// What both sides sign.
    auth_message: String,
}

impl Challenge {
    /// The salt of the user's password.
    #[must_use]
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// The iterations, [`MIN_ITERATIONS`] to [`MAX_ITERATIONS`].
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// The client's final message, and what the server's must pass.
    ///
    /// `keys` must have been derived with this challenge's salt and iterations.
    pub fn answer(self, keys: &Keys) -> (String, Verification) {
        let proof = Zeroizing::new(BASE64.encode(&*keys.proof(&self.auth_message)));
        let signature = Zeroizing::new(keys.hash.hmac(&keys.server_key, self.auth_message.as_bytes()));
        (format!("{},p={}", self.without_proof, *proof), Verification { signature })
    }
}

/// A conversation in which only the server's proof is still missing.
#[must_use]
pub struct Verification {
    signature: Zeroizing<Vec<u8>>,
}

impl Verification {
    /// Checks the server's final message, in a time that does not tell how much of its signature is right.
    ///
    /// # Errors
    ///
    /// [`ScramError`] if the server reports an error or does not know the password, or if the message is none.
    pub fn check(&self, message: &[u8]) -> Result<(), ScramError> {
        let text = text(message)?;
        let mut attributes = text.split(',');
        if let Some(error) = text.strip_prefix("e=") {
            let name = error.split(',').next().unwrap_or_default();
            return Err(ScramError::Refused { error: name.chars().take(MAX_ERROR).collect() });
        }
        let signature = decode('v', attribute(&mut attributes, 'v')?)?;
        extensions(attributes)?;
        if bool::from(signature.ct_eq(&self.signature)) { Ok(()) } else { Err(ScramError::ServerSignature) }
    }
}

impl fmt::Debug for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verification(***)")
    }
}

/// How much of a server's error is kept, in characters. The longest that RFC 5802 defines has 36.
const MAX_ERROR: usize = 64;

fn text(message: &[u8]) -> Result<&str, ScramError> {
    std::str::from_utf8(message).map_err(|_| ScramError::NotText)
}

/// The value of the next attribute, which must be of this name.
fn attribute<'a>(attributes: &mut impl Iterator<Item = &'a str>, name: char) -> Result<&'a str, ScramError> {
    let next = attributes.next().ok_or(ScramError::Missing { attribute: name })?;
    match next.split_once('=') {
        Some((found, value)) if found.len() == 1 && found.starts_with(name) => Ok(value),
        // An extension that the client has to understand stands before all else.
        Some(("m", _)) => Err(ScramError::Extension),
        _ => Err(ScramError::Missing { attribute: name }),
    }
}

/// Whatever follows the attributes that are needed are optional extensions, which only have to look like such.
fn extensions<'a>(attributes: impl Iterator<Item = &'a str>) -> Result<(), ScramError> {
    for extension in attributes {
        match extension.as_bytes() {
            [b'm', b'=', ..] => return Err(ScramError::Extension),
            [name, b'=', _, ..] if name.is_ascii_alphabetic() => {}
            _ => return Err(ScramError::NotText),
        }
    }
    Ok(())
}

fn decode(attribute: char, value: &str) -> Result<Vec<u8>, ScramError> {
    BASE64.decode(value).map_err(|_| ScramError::Malformed { attribute, allowed: "base64" })
}

fn iterations(value: &str) -> Result<u32, ScramError> {
    let refuse = ScramError::Malformed { attribute: 'i', allowed: "a positive decimal number" };
    if !value.bytes().all(|byte| byte.is_ascii_digit()) || value.is_empty() || value.starts_with('0') {
        return Err(refuse);
    }
    // Digits that do not fit are a number above every limit.
    match value.parse().unwrap_or(u32::MAX) {
        iterations @ MIN_ITERATIONS..=MAX_ITERATIONS => Ok(iterations),
        iterations => Err(ScramError::Iterations { iterations }),
    }
}

/// A SCRAM conversation that cannot go on.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScramError {
    /// The password has a character that SASLprep prohibits, so no server can have it.
    #[error("the password has a character that SASLprep (RFC 4013) prohibits")]
    Password,
    /// A message is not UTF-8, or not a list of attributes.
    #[error("the server's message is not a list of SCRAM attributes")]
    NotText,
    /// An attribute does not stand where it must.
    #[error("the server's message does not have the attribute {attribute} in its place")]
    Missing {
        /// The attribute that was expected.
        attribute: char,
    },
    /// An attribute is not what it must be.
    #[error("the attribute {attribute} of the server's message must be {allowed}")]
    Malformed {
        /// The attribute.
        attribute: char,
        /// What it must be.
        allowed: &'static str,
    },
    /// The server insists on an extension that nobody has defined.
    #[error("the server wants a mandatory extension of SCRAM, and there is none")]
    Extension,
    /// The server's nonce does not begin with the client's and go on: it answers another conversation.
    #[error("the server's nonce is not the client's with something appended")]
    Nonce,
    /// The server asks for too few iterations to be safe, or for too many to be meant seriously.
    #[error("the server wants {iterations} iterations, but they must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")]
    Iterations {
        /// How many it wants; 4,294,967,295 stands for that and all more.
        iterations: u32,
    },
    /// The server's final message says that it refuses the proof.
    #[error("the server refused the proof: {error:?}")]
    Refused {
        /// What it says, cut at 64 characters.
        error: String,
    },
    /// The server could not prove that it knows the password.
    #[error("the server's signature is wrong: it does not know the password")]
    ServerSignature,
    /// The server says that the conversation has ended before it has proven anything.
    #[error("the server ended the conversation before it proved that it knows the password")]
    EndedEarly,
}

crate::error::debug_as_sentence!(ScramError);
