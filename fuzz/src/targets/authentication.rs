//! A server's replies in a SASL conversation.

use std::sync::LazyLock;

use bson::{Binary, RawDocument, rawdoc, spec::BinarySubtype};
use wharf::unstable::wire::auth::sasl::{MAX_PAYLOAD, SaslReply};
use wharf::unstable::wire::auth::scram::{ClientFirst, Hash, Keys, MAX_ITERATIONS, MIN_ITERATIONS};

use super::{as_it_is, document};
use crate::Target;

pub const SASL: Target = Target {
    name: "sasl",
    run: sasl,
    seeds: || {
        let payload = |bytes: &[u8]| Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() };
        [
            rawdoc! { "conversationId": 1, "done": false, "payload": payload(FIRST), "ok": 1.0 },
            rawdoc! { "conversationId": 7_i64, "payload": payload(FINAL), "done": true },
            rawdoc! { "payload": payload(b""), "conversationId": 1.0, "done": true },
        ]
        .map(|reply| reply.as_bytes().to_vec())
        .into()
    },
    mend: document,
    words: &[b"\x10conversationId\0\x01\0\0\0", b"\x05payload\0\0\0\0\0\0", b"\x08done\0\x01"],
};

fn sasl(bytes: &[u8]) -> bool {
    let Ok(document) = RawDocument::from_bytes(bytes) else { return false };
    let Ok(reply) = SaslReply::read(document) else { return false };
    assert!(reply.payload.len() <= MAX_PAYLOAD);
    true
}

/// The example from RFC 7677.
const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
const FIRST: &[u8] = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const FINAL: &[u8] = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
const WORDS: &[&[u8]] =
    &[b"r=rOprNGfwEbeRWgbNEkqO", b",s=", b",i=", b"4096", b"99999999999", b"v=", b"e=", b"m=", b","];

pub const SCRAM_FIRST: Target = Target {
    name: "scram_first",
    run: scram_first,
    seeds: || vec![FIRST.to_vec(), [FIRST, b",x=extension"].concat(), b"e=other-error".to_vec()],
    mend: as_it_is,
    words: WORDS,
};

fn scram_first(bytes: &[u8]) -> bool {
    let Ok(challenge) = ClientFirst::new("user", NONCE).read(bytes) else { return false };
    assert!((MIN_ITERATIONS..=MAX_ITERATIONS).contains(&challenge.iterations()));
    assert!(!challenge.salt().is_empty());
    assert!(bytes.starts_with(format!("r={NONCE}").as_bytes()));
    let (answer, _) = challenge.answer(&KEYS);
    // The answer repeats the server's nonce, and no part of it can be mistaken for another attribute.
    let text = std::str::from_utf8(bytes).expect("an accepted message is not text");
    let nonce = text.split(',').next().expect("split yields no part");
    let parts: Vec<_> = answer.split(',').collect();
    assert_eq!(parts[..2], ["c=biws", nonce]);
    assert!(parts.len() == 3 && parts[2].starts_with("p="));
    true
}

/// Derived only once, because the derivation takes thousands of iterations.
static KEYS: LazyLock<Keys> = LazyLock::new(|| {
    let challenge = ClientFirst::new("user", NONCE).read(FIRST).expect("the RFC's example was refused");
    Keys::derive(Hash::Sha256, "pencil", challenge.salt(), challenge.iterations())
});

pub const SCRAM_FINAL: Target = Target {
    name: "scram_final",
    run: scram_final,
    seeds: || vec![FINAL.to_vec(), [FINAL, b",x=extension"].concat(), b"e=invalid-proof".to_vec()],
    mend: as_it_is,
    words: WORDS,
};

fn scram_final(bytes: &[u8]) -> bool {
    let challenge = ClientFirst::new("user", NONCE).read(FIRST).expect("the RFC's example was refused");
    let (_, verification) = challenge.answer(&KEYS);
    let accepted = verification.check(bytes).is_ok();
    // A server is accepted only if it has proven that it knows the password, and only this signature proves it.
    assert!(!accepted || bytes.starts_with(FINAL), "another signature was accepted");
    accepted
}
