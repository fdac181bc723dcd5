//! User input: server addresses.

use wharf::Endpoint;

use super::as_it_is;
use crate::Target;

pub const ADDRESS: Target = Target {
    name: "address",
    run: address,
    seeds: || {
        ["localhost", "db.example.com:27018", "[::1]:27017", "[fe80::1]", "127.0.0.1:1", "%2Ftmp%2Fmongodb-27017.sock"]
            .map(|address| address.as_bytes().to_vec())
            .into()
    },
    mend: as_it_is,
    words: &[b":", b"[", b"]", b"::", b"65535", b"0", b"%2F", b".sock", b"/", b"@", b"\xc3\xa9"],
};

fn address(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let endpoint = match Endpoint::new(text) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            // The text before an @ may contain a password.
            let secret = text.rsplit_once('@').map_or("", |(secret, _)| secret);
            assert!(secret.len() < 8 || !error.to_string().contains(secret), "the error repeats {secret:?}");
            return false;
        }
    };
    let shown = endpoint.address();
    let again = Endpoint::new(shown).unwrap_or_else(|error| panic!("{text:?} is shown as {shown:?}: {error}"));
    assert_eq!(again.address(), shown);
    true
}
