use proptest::prelude::*;

use super::*;

/// A complete conversation with known messages.
struct Example {
    hash: Hash,
    nonce: &'static str,
    server_first: &'static str,
    client_final: &'static str,
    server_final: &'static str,
}

/// The SHA-1 example is MongoDB's, in which the password is digested. The SHA-256 example is from RFC 7677. In both,
/// the user name is `user`, and the password is `pencil`.
const EXAMPLES: [Example; 2] = [
    Example {
        hash: Hash::Sha1,
        nonce: "fyko+d2lbbFgONRv9qkxdawL",
        server_first: "r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,s=rQ9ZY3MntBeuP3E1TDVC4w==,i=10000",
        client_final: "c=biws,r=fyko+d2lbbFgONRv9qkxdawLHo+Vgk7qvUOKUwuWLIWg4l/9SraGMHEE,p=MC2T8BvbmWRckDw8oWl5IVghwCY=",
        server_final: "v=UMWeI25JD1yNYZRMpZ4VHvhZ9e0=",
    },
    Example {
        hash: Hash::Sha256,
        nonce: "rOprNGfwEbeRWgbNEkqO",
        server_first: "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        client_final: "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        server_final: "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    },
];

impl Example {
    fn client_first(&self) -> ClientFirst {
        ClientFirst::new("user", self.nonce)
    }

    fn challenge(&self) -> Challenge {
        self.client_first().read(self.server_first.as_bytes()).unwrap()
    }

    fn answer(&self) -> (String, Verification) {
        let challenge = self.challenge();
        let password = prepare_password(self.hash, "user", "pencil").unwrap();
        let keys = Keys::derive(self.hash, &password, challenge.salt(), challenge.iterations());
        challenge.answer(&keys)
    }
}

#[test]
fn examples_of_the_specification_and_the_rfc_are_reproduced() {
    for example in EXAMPLES {
        assert_eq!(example.client_first().message(), format!("n,,n=user,r={}", example.nonce));
        let (client_final, verification) = example.answer();
        assert_eq!(client_final, example.client_final);
        assert_eq!(verification.check(example.server_final.as_bytes()), Ok(()));
    }
}

/// The example from RFC 5802, which uses SHA-1 with a password that is not digested.
#[test]
fn example_of_rfc_5802_is_reproduced() {
    let client_first = ClientFirst::new("user", "fyko+d2lbbFgONRv9qkxdawL");
    let server_first = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096";
    let challenge = client_first.read(server_first).unwrap();
    let keys = Keys::derive(Hash::Sha1, "pencil", challenge.salt(), challenge.iterations());
    let (client_final, verification) = challenge.answer(&keys);
    assert_eq!(client_final, "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=");
    assert_eq!(verification.check(b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="), Ok(()));
}

#[test]
fn name_is_escaped_but_not_prepared() {
    assert_eq!(ClientFirst::new("a=b,c=2C", "x").message(), "n,,n=a=3Db=2Cc=3D2C,r=x");
    assert_eq!(ClientFirst::new("\u{2168}", "x").message(), "n,,n=\u{2168},r=x");
}

#[test]
fn password_is_prepared_for_sha_256_only() {
    let prepared = |hash, password| prepare_password(hash, "user", password).map(|prepared| (*prepared).clone());
    for (password, expected) in [("I\u{ad}X", "IX"), ("\u{2163}", "IV"), ("pencil", "pencil"), ("a\u{a0}b", "a b")] {
        assert_eq!(prepared(Hash::Sha256, password).as_deref(), Ok(expected));
    }
    for prohibited in ["a\u{7}b", "\u{627}1", "\u{e000}"] {
        assert_eq!(prepared(Hash::Sha256, prohibited), Err(ScramError::Password));
        assert!(prepared(Hash::Sha1, prohibited).is_ok());
    }
    assert_eq!(prepared(Hash::Sha1, "pencil").as_deref(), Ok("1c33006ec1ffd90f9cadcbcc0e118200"));
    assert_ne!(prepared(Hash::Sha1, "I\u{ad}X"), prepared(Hash::Sha1, "IX"));
}

fn first(message: &str) -> Result<Challenge, ScramError> {
    ClientFirst::new("user", "abc").read(message.as_bytes())
}

#[test]
fn too_few_or_too_many_iterations_are_refused() {
    for iterations in [MIN_ITERATIONS, MAX_ITERATIONS] {
        assert_eq!(first(&format!("r=abcd,s=AAAA,i={iterations}")).unwrap().iterations(), iterations);
    }
    for iterations in [1, MIN_ITERATIONS - 1, MAX_ITERATIONS + 1, u32::MAX] {
        let refused = Err(ScramError::Iterations { iterations });
        assert_eq!(first(&format!("r=abcd,s=AAAA,i={iterations}")), refused);
    }
    let refused = Err(ScramError::Iterations { iterations: u32::MAX });
    assert_eq!(first("r=abcd,s=AAAA,i=99999999999999999999"), refused);
    for malformed in ["", "0", "04096", "+4096", "-4096", "4096 ", "5e3", "٤٠٩٦"] {
        let error = first(&format!("r=abcd,s=AAAA,i={malformed}")).unwrap_err();
        assert!(matches!(error, ScramError::Malformed { attribute: 'i', .. }), "{malformed:?}: {error}");
    }
}

#[test]
fn nonce_that_does_not_extend_the_one_of_the_client_is_refused() {
    for nonce in ["abc", "ab", "", "xabc", "Abcd", "abdc", "abc d", "abc\u{7f}", "abcé"] {
        assert_eq!(first(&format!("r={nonce},s=AAAA,i=4096")), Err(ScramError::Nonce), "{nonce:?}");
    }
}

#[test]
fn first_message_must_have_its_attributes_in_order() {
    let missing = |attribute| Err(ScramError::Missing { attribute });
    assert_eq!(first(""), missing('r'));
    assert_eq!(first("r"), missing('r'));
    assert_eq!(first("rr=abcd,s=AAAA,i=4096"), missing('r'));
    assert_eq!(first("s=AAAA,r=abcd,i=4096"), missing('r'));
    assert_eq!(first("r=abcd,i=4096"), missing('s'));
    assert_eq!(first("r=abcd,s=AAAA"), missing('i'));
    assert_eq!(first("r=abcd,s=AAAA,"), missing('i'));
    assert_eq!(first("m=x,r=abcd,s=AAAA,i=4096"), Err(ScramError::Extension));
    assert_eq!(first("r=abcd,s=AAAA,i=4096,m=x"), Err(ScramError::Extension));
    assert_eq!(first("r=abcd,s=AAAA,i=4096,nonsense"), Err(ScramError::NotText));
    assert!(first("r=abcd,s=AAAA,i=4096,x=1,y=2").is_ok());
    for salt in ["", "A", "AAA", "AAAA=", "AA==AA==", "????"] {
        let error = first(&format!("r=abcd,s={salt},i=4096")).unwrap_err();
        assert!(matches!(error, ScramError::Malformed { attribute: 's', .. }), "{salt:?}: {error}");
    }
    assert_eq!(ClientFirst::new("user", "abc").read(b"\xff"), Err(ScramError::NotText));
}

#[test]
fn wrong_signature_of_the_server_is_refused() {
    let (_, verification) = EXAMPLES[1].answer();
    for wrong in
        ["v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G8=", "v=", "v=6rriTRBi", "v=UMWeI25JD1yNYZRMpZ4VHvhZ9e0="]
    {
        assert_eq!(verification.check(wrong.as_bytes()), Err(ScramError::ServerSignature), "{wrong}");
    }
    let refused = ScramError::Refused { error: "invalid-proof".into() };
    assert_eq!(verification.check(b"e=invalid-proof"), Err(refused.clone()));
    assert_eq!(verification.check(b"e=invalid-proof,x=1"), Err(refused));
    assert_eq!(verification.check(b""), Err(ScramError::Missing { attribute: 'v' }));
    let extended = format!("{},x=1", EXAMPLES[1].server_final);
    assert_eq!(verification.check(extended.as_bytes()), Ok(()));
    let mandatory = format!("m=1,{}", EXAMPLES[1].server_final);
    assert_eq!(verification.check(mandatory.as_bytes()), Err(ScramError::Extension));
}

#[test]
fn secrets_are_not_printed() {
    let password = prepare_password(Hash::Sha256, "user", "pencil").unwrap();
    let keys = Keys::derive(Hash::Sha256, &password, b"salt", 4096);
    assert_eq!(format!("{keys:?}"), "Keys(Sha256, ***)");
    assert_eq!(format!("{:?}", EXAMPLES[1].answer().1), "Verification(***)");
}

/// Returns the message with one byte replaced, inserted or removed.
fn mutated(message: &str, position: usize, byte: u8, kind: u8) -> Vec<u8> {
    let mut bytes = message.as_bytes().to_vec();
    let position = position % bytes.len();
    match kind % 3 {
        0 => bytes[position] = byte,
        1 => bytes.insert(position, byte),
        _ => drop(bytes.remove(position)),
    }
    bytes
}

proptest! {
    #[test]
    fn random_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(EXAMPLES[1].client_first().read(&bytes).is_err());
        let verification = Verification { signature: Zeroizing::new(vec![7; 32]) };
        prop_assert!(verification.check(&bytes).is_err());
    }

    /// If the server's first message is changed, it either is refused immediately or leads to a different proof,
    /// because both sides sign the whole message.
    #[test]
    fn changed_first_message_never_yields_the_same_proof(
        position in any::<usize>(), byte in any::<u8>(), kind in any::<u8>(), which in 0..2_usize,
    ) {
        let example = &EXAMPLES[which];
        let message = mutated(example.server_first, position, byte, kind);
        prop_assume!(message != example.server_first.as_bytes());
        if let Ok(challenge) = example.client_first().read(&message) {
            prop_assert!((MIN_ITERATIONS..=MAX_ITERATIONS).contains(&challenge.iterations()));
            prop_assert_ne!(&challenge.auth_message, &example.challenge().auth_message);
        }
    }

    #[test]
    fn changed_final_message_is_never_accepted(position in any::<usize>(), byte in any::<u8>(), kind in any::<u8>()) {
        let (server_final, signature) = (EXAMPLES[1].server_final, BASE64.decode(&EXAMPLES[1].server_final[2..]).unwrap());
        let verification = Verification { signature: Zeroizing::new(signature) };
        let message = mutated(server_final, position, byte, kind);
        prop_assume!(message != server_final.as_bytes());
        prop_assert!(verification.check(&message).is_err());
    }
}
