//! The client's side of SCRAM-SHA-1 and SCRAM-SHA-256 (RFC 5802, RFC 7677; Authentication specification).
//!
//! Each message of the conversation is a step that consumes one state and returns the next, so that no step can be
//! skipped or repeated:
//!
//! 1. [`ClientFirst`] holds the client's first message. Reading the server's first message returns a [`Challenge`].
//! 2. [`Challenge`] holds the salt and the number of iterations from which the [`Keys`] are derived. Answering it
//!    returns the client's final message and a [`Verification`].
//! 3. [`Verification`] checks the server's final message.
//!
//! Both sides prove that they know the password: the last step rejects a server that fails to do so.
//!
//! ```
//! use wharf::unstable::wire::auth::scram::{ClientFirst, Hash, Keys, prepare_password};
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
//! # Ok::<(), wharf::unstable::wire::auth::scram::ScramError>(())
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

use crate::endpoint::options::Mechanism;

#[cfg(test)]
mod tests;

/// The minimum number of iterations. The specification requires it: without a minimum, an attacker between the two
/// sides could ask for so few iterations that the password could easily be guessed from the proof.
pub const MIN_ITERATIONS: u32 = 4_096;

/// The maximum number of iterations. It is more than sixty times the servers' default, and takes common processors less
/// than a second. Without a maximum, a hostile server could keep a processor busy for many minutes with one message.
pub const MAX_ITERATIONS: u32 = 1_000_000;

/// The hash function, which distinguishes the two mechanisms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hash {
    /// The hash function of SCRAM-SHA-1.
    Sha1,
    /// The hash function of SCRAM-SHA-256.
    Sha256,
}

impl Hash {
    /// Returns the mechanism with this hash function.
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
    // HMAC accepts keys of any length.
    let mut hmac = <Hmac<D> as KeyInit>::new_from_slice(key).expect("BUG: an HMAC refused its key");
    hmac.update(text);
    let mut code = hmac.finalize().into_bytes();
    let owned = code.to_vec();
    code.as_mut_slice().zeroize();
    owned
}

/// The number of bytes of stack that are overwritten after a computation with secrets. The deepest computation uses
/// less, even without optimisation.
const STACK: usize = 16 * 1024;

/// Runs `compute`, and overwrites the part of the stack that it used.
///
/// The libraries wipe the states that they drop, but not the copies that a move leaves behind.
fn wiping_stack<T>(compute: impl FnOnce() -> T) -> T {
    #[inline(never)]
    fn run<T>(compute: impl FnOnce() -> T) -> T {
        compute()
    }

    #[inline(never)]
    fn overwrite() {
        let mut used = [0_u8; STACK];
        used.zeroize();
        std::hint::black_box(&mut used);
    }

    let value = run(compute);
    overwrite();
    value
}

/// Prepares a password for key derivation.
///
/// For SHA-256, the result is the password prepared with SASLprep (RFC 4013). For SHA-1, it is MongoDB's traditional
/// MD5 digest of the unprepared user name and password, in hexadecimal.
///
/// # Errors
///
/// Returns [`ScramError::Password`] if SASLprep prohibits a character in the password, which happens only with SHA-256.
pub fn prepare_password(hash: Hash, username: &str, password: &str) -> Result<Zeroizing<String>, ScramError> {
    wiping_stack(|| prepare(hash, username, password))
}

fn prepare(hash: Hash, username: &str, password: &str) -> Result<Zeroizing<String>, ScramError> {
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

/// The keys derived from a password, a salt and a number of iterations. They prove knowledge of the password just as
/// the password itself does. They are therefore wiped from memory on drop, and hidden in debug output.
pub struct Keys {
    hash: Hash,
    client_key: Zeroizing<Vec<u8>>,
    server_key: Zeroizing<Vec<u8>>,
}

impl Keys {
    /// Derives the keys. This takes milliseconds, in proportion to `iterations`.
    ///
    /// `password` must be prepared ([`prepare_password`]).
    #[must_use]
    pub fn derive(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> Self {
        wiping_stack(|| Self::compute(hash, password, salt, iterations))
    }

    fn compute(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> Self {
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

/// The state of a conversation before the server's first message. In both mechanisms, the client begins with the same
/// message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct ClientFirst {
    nonce: String,
    /// The message without its header.
    bare: String,
}

impl ClientFirst {
    /// The beginning of the message, which requests neither channel binding nor a separate authorization identity.
    const HEADER: &'static str = "n,,";

    /// Creates the first message for `username`. The name is not prepared with SASLprep. Only its special characters
    /// are escaped.
    ///
    /// `nonce` must be unpredictable, and consist of printable ASCII characters without a comma.
    pub fn new(username: &str, nonce: &str) -> Self {
        let escaped = username.replace('=', "=3D").replace(',', "=2C");
        Self { nonce: nonce.to_owned(), bare: format!("n={escaped},r={nonce}") }
    }

    /// Returns the message.
    #[must_use]
    pub fn message(&self) -> String {
        format!("{}{}", Self::HEADER, self.bare)
    }

    /// Reads the server's first message.
    ///
    /// # Errors
    ///
    /// Returns a [`ScramError`] if the message is invalid, belongs to another conversation, or requires too few or too
    /// many iterations.
    pub fn read(self, message: &[u8]) -> Result<Challenge, ScramError> {
        let text = text(message)?;
        let mut attributes = text.split(',');
        let nonce = attribute(&mut attributes, 'r')?;
        // The server's addition makes the conversation unique: without it, an earlier conversation could be replayed.
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

/// The state of a conversation after the server's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Challenge {
    salt: Vec<u8>,
    iterations: u32,
    /// The client's final message without its last attribute.
    without_proof: String,
    /// The text that both sides sign.
    auth_message: String,
}

impl Challenge {
    /// Returns the salt of the user's password.
    #[must_use]
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Returns the number of iterations, [`MIN_ITERATIONS`] to [`MAX_ITERATIONS`].
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Returns the client's final message, and the check for the server's final message.
    ///
    /// `keys` must be derived with this challenge's salt and iterations.
    pub fn answer(self, keys: &Keys) -> (String, Verification) {
        wiping_stack(|| self.answer_with(keys))
    }

    fn answer_with(self, keys: &Keys) -> (String, Verification) {
        let proof = Zeroizing::new(BASE64.encode(&*keys.proof(&self.auth_message)));
        let signature = Zeroizing::new(keys.hash.hmac(&keys.server_key, self.auth_message.as_bytes()));
        (format!("{},p={}", self.without_proof, *proof), Verification { signature })
    }
}

/// The state of a conversation that awaits only the server's proof.
#[must_use]
pub struct Verification {
    signature: Zeroizing<Vec<u8>>,
}

impl Verification {
    /// Checks the server's final message. The time that this takes does not reveal how much of the signature is
    /// correct.
    ///
    /// # Errors
    ///
    /// Returns a [`ScramError`] if the server reports an error or does not know the password, or if the message is
    /// invalid.
    pub fn check(&self, message: &[u8]) -> Result<(), ScramError> {
        let text = text(message)?;
        let mut attributes = text.split(',');
        if let Some(error) = text.strip_prefix("e=") {
            let name = error.split(',').next().unwrap_or_default();
            // The errors of RFC 5802 contain no other characters. Any other text might repeat the client's proof.
            let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
            let error = if is_name { name.chars().take(MAX_ERROR).collect() } else { "(not shown)".to_owned() };
            return Err(ScramError::Refused { error });
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

/// The maximum number of characters to keep from a server's error. The longest error in RFC 5802 has 36 characters.
const MAX_ERROR: usize = 64;

fn text(message: &[u8]) -> Result<&str, ScramError> {
    std::str::from_utf8(message).map_err(|_| ScramError::NotText)
}

/// Returns the value of the next attribute, which must have this name.
fn attribute<'a>(attributes: &mut impl Iterator<Item = &'a str>, name: char) -> Result<&'a str, ScramError> {
    let next = attributes.next().ok_or(ScramError::Missing { attribute: name })?;
    match next.split_once('=') {
        Some((found, value)) if found.len() == 1 && found.starts_with(name) => Ok(value),
        // A mandatory extension comes before all other attributes.
        Some(("m", _)) => Err(ScramError::Extension),
        _ => Err(ScramError::Missing { attribute: name }),
    }
}

/// Checks the attributes after the required ones. They are optional extensions, and only their syntax is checked.
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
    // A number that does not fit exceeds every limit.
    match value.parse().unwrap_or(u32::MAX) {
        iterations @ MIN_ITERATIONS..=MAX_ITERATIONS => Ok(iterations),
        iterations => Err(ScramError::Iterations { iterations }),
    }
}

/// Why a SCRAM conversation failed.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScramError {
    /// The password has a character that SASLprep prohibits, so no server can have stored it.
    #[error("the password has a character that SASLprep (RFC 4013) prohibits")]
    Password,
    /// A message is not UTF-8, or not a list of attributes.
    #[error("the server's message is not a list of SCRAM attributes")]
    NotText,
    /// An attribute is missing or out of order.
    #[error("the server's message does not have the attribute {attribute} where it is required")]
    Missing {
        /// The expected attribute.
        attribute: char,
    },
    /// An attribute has an invalid value.
    #[error("the attribute {attribute} of the server's message must be {allowed}")]
    Malformed {
        /// The attribute.
        attribute: char,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The server requires an extension, but none is defined.
    #[error("the server requires an extension of SCRAM, but none is defined")]
    Extension,
    /// The server's nonce does not extend the client's nonce, so it belongs to another conversation.
    #[error("the server's nonce does not extend the client's")]
    Nonce,
    /// The server requires too few iterations to be safe, or unreasonably many.
    #[error("the server requires {iterations} iterations, but the number must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")]
    Iterations {
        /// The required number of iterations. 4,294,967,295 means any number that is at least as large.
        iterations: u32,
    },
    /// The server's final message reports an error.
    #[error("the server refused the proof: {error:?}")]
    Refused {
        /// The error, truncated to 64 characters.
        error: String,
    },
    /// The server could not prove that it knows the password.
    #[error("the server's signature is wrong: it does not know the password")]
    ServerSignature,
    /// The server ended the conversation before it proved that it knows the password.
    #[error("the server ended the conversation before it proved that it knows the password")]
    EndedEarly,
}

crate::pool::error::debug_as_sentence!(ScramError);
