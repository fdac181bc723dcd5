//! After the keys are dropped, the process's memory contains no SCRAM keys, not even on the stack of the thread that
//! derived them and is still running.
#![cfg(all(not(loom), target_os = "linux"))]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::mpsc;
use std::thread;

use wharf::unstable::wire::auth::scram::{ClientFirst, Hash, Keys, prepare_password};

/// The first 16 bytes of each key, and of each secret that a key is derived from, for the user `user` with the password
/// `pencil`, the salt `salt` and 4,096 iterations. Each byte is XORed with [`MASK`], so that this table itself is not
/// found.
const SECRETS: [(Hash, &str, [u8; 16]); 7] = [
    (Hash::Sha256, "salted password", [172, 50, 243, 234, 140, 140, 134, 130, 182, 183, 204, 37, 146, 19, 21, 5]),
    (Hash::Sha256, "client key", [115, 147, 166, 216, 124, 107, 114, 120, 216, 13, 188, 229, 168, 109, 9, 148]),
    (Hash::Sha256, "server key", [223, 241, 132, 70, 161, 93, 84, 79, 251, 195, 57, 178, 162, 188, 199, 33]),
    (Hash::Sha1, "password", [148, 198, 150, 150, 149, 149, 147, 192, 198, 148, 195, 195, 193, 156, 149, 195]),
    (Hash::Sha1, "salted password", [100, 228, 160, 48, 204, 86, 52, 176, 180, 221, 67, 49, 169, 88, 46, 214]),
    (Hash::Sha1, "client key", [116, 65, 4, 41, 129, 88, 182, 113, 254, 99, 104, 178, 53, 86, 192, 215]),
    (Hash::Sha1, "server key", [250, 29, 143, 37, 90, 43, 131, 188, 36, 223, 77, 5, 236, 4, 235, 22]),
];

/// The forms that a secret may have in memory, each with the value that its bytes are XORed with. HMAC hashes a key in
/// two of these forms.
const FORMS: [(&str, u8); 3] = [("", 0), (" of the inner hash", 0x36), (" of the outer hash", 0x5c)];

const MASK: u8 = 0xa5;

/// Returns the secrets in the process's writable memory.
fn found() -> Vec<String> {
    let mut memory = File::open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut found = Vec::new();
    let mut block = vec![0; 1 << 20];
    for map in maps.lines().filter(|map| map.contains(" rw")) {
        let (from, to) = map.split(' ').next().unwrap().split_once('-').unwrap();
        let [mut at, to] = [from, to].map(|address| u64::from_str_radix(address, 16).unwrap());
        while at < to {
            let length = block.len().min((to - at) as usize);
            memory.seek(SeekFrom::Start(at)).unwrap();
            // The kernel's own pages cannot be read.
            if memory.read_exact(&mut block[..length]).is_err() {
                break;
            }
            for ((hash, what, secret), (form, pad)) in
                SECRETS.iter().flat_map(|secret| FORMS.map(|form| (secret, form)))
            {
                let is_secret =
                    |window: &[u8]| window.iter().zip(secret).all(|(byte, masked)| byte ^ MASK ^ pad == *masked);
                let first = secret[0] ^ MASK ^ pad;
                let starts = block[..length].windows(16).filter(|window| window[0] == first);
                for _ in starts.filter(|window| is_secret(window)) {
                    found.push(format!("{hash:?}: {what}{form} in {map}"));
                }
            }
            at += length as u64;
        }
        block.fill(0);
    }
    found
}

#[test]
fn stack_of_a_thread_that_derived_keys_holds_none_of_them() {
    let (tell, told) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let deriving = thread::spawn(move || {
        for hash in [Hash::Sha256, Hash::Sha1] {
            let challenge = ClientFirst::new("user", "abc").read(b"r=abcd,s=c2FsdA==,i=4096").unwrap();
            let password = prepare_password(hash, "user", "pencil").unwrap();
            let keys = Keys::derive(hash, &password, challenge.salt(), challenge.iterations());
            // While this thread waits, the test checks that the search finds the keys, which are on the heap.
            tell.send(()).unwrap();
            ended.recv().unwrap();
            drop(challenge.answer(&keys));
        }
        tell.send(()).unwrap();
        let _ = ended.recv();
    });
    for hash in ["Sha256", "Sha1"] {
        told.recv().unwrap();
        let found = found();
        for key in ["client key", "server key"] {
            assert!(found.iter().any(|one| one.starts_with(&format!("{hash}: {key} in"))), "{found:?}");
        }
        end.send(()).unwrap();
    }
    told.recv().unwrap();
    assert_eq!(found(), [""; 0]);
    drop(end);
    deriving.join().unwrap();
}
