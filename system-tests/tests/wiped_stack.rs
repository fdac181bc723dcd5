//! The memory of the process holds no key of SCRAM after the keys are dropped: not even the stack of a thread that derived
//! them and lives on.
#![cfg(all(not(loom), target_os = "linux"))]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::mpsc;
use std::thread;

use wharf::unstable::wire::auth::scram::{ClientFirst, Hash, Keys, prepare_password};

/// The first 16 bytes of each secret that leads to a key, of the user `user` with the password `pencil`, the salt `salt` and
/// 4,096 iterations. Each byte is XORed with [`MASK`], so that this table itself is not found.
const SECRETS: [(Hash, &str, &[u8; 16]); 16] = [
    (Hash::Sha256, "salted password", &[172, 50, 243, 234, 140, 140, 134, 130, 182, 183, 204, 37, 146, 19, 21, 5]),
    (
        Hash::Sha256,
        "salted password of the inner hash",
        &[154, 4, 197, 220, 186, 186, 176, 180, 128, 129, 250, 19, 164, 37, 35, 51],
    ),
    (
        Hash::Sha256,
        "salted password of the outer hash",
        &[240, 110, 175, 182, 208, 208, 218, 222, 234, 235, 144, 121, 206, 79, 73, 89],
    ),
    (Hash::Sha256, "client key", &[115, 147, 166, 216, 124, 107, 114, 120, 216, 13, 188, 229, 168, 109, 9, 148]),
    (Hash::Sha256, "server key", &[223, 241, 132, 70, 161, 93, 84, 79, 251, 195, 57, 178, 162, 188, 199, 33]),
    (
        Hash::Sha256,
        "server key of the inner hash",
        &[233, 199, 178, 112, 151, 107, 98, 121, 205, 245, 15, 132, 148, 138, 241, 23],
    ),
    (
        Hash::Sha256,
        "server key of the outer hash",
        &[131, 173, 216, 26, 253, 1, 8, 19, 167, 159, 101, 238, 254, 224, 155, 125],
    ),
    (Hash::Sha1, "salted password", &[100, 228, 160, 48, 204, 86, 52, 176, 180, 221, 67, 49, 169, 88, 46, 214]),
    (
        Hash::Sha1,
        "salted password of the inner hash",
        &[82, 210, 150, 6, 250, 96, 2, 134, 130, 235, 117, 7, 159, 110, 24, 224],
    ),
    (
        Hash::Sha1,
        "salted password of the outer hash",
        &[56, 184, 252, 108, 144, 10, 104, 236, 232, 129, 31, 109, 245, 4, 114, 138],
    ),
    (Hash::Sha1, "client key", &[116, 65, 4, 41, 129, 88, 182, 113, 254, 99, 104, 178, 53, 86, 192, 215]),
    (Hash::Sha1, "server key", &[250, 29, 143, 37, 90, 43, 131, 188, 36, 223, 77, 5, 236, 4, 235, 22]),
    (
        Hash::Sha1,
        "password of the inner hash",
        &[162, 240, 160, 160, 163, 163, 165, 246, 240, 162, 245, 245, 247, 170, 163, 245],
    ),
    (
        Hash::Sha1,
        "password of the outer hash",
        &[200, 154, 202, 202, 201, 201, 207, 156, 154, 200, 159, 159, 157, 192, 201, 159],
    ),
    (
        Hash::Sha1,
        "server key of the inner hash",
        &[204, 43, 185, 19, 108, 29, 181, 138, 18, 233, 123, 51, 218, 50, 221, 32],
    ),
    (
        Hash::Sha1,
        "server key of the outer hash",
        &[166, 65, 211, 121, 6, 119, 223, 224, 120, 131, 17, 89, 176, 88, 183, 74],
    ),
];

const MASK: u8 = 0xa5;

/// Returns the secrets that are in the memory which the process can write to.
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
            for (hash, what, secret) in SECRETS {
                let first = secret[0] ^ MASK;
                let starts = block[..length].windows(16).filter(|window| window[0] == first);
                for _ in starts.filter(|window| window.iter().zip(secret).all(|(byte, masked)| byte ^ MASK == *masked))
                {
                    found.push(format!("{hash:?}: {what} in {map}"));
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
            // The search finds what is there: the keys on the heap.
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
