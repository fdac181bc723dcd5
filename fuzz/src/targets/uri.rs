//! User input: connection strings.

use wharf::Options;

use super::as_it_is;
use crate::Target;

const PASSWORD: &str = "hunter2secret";
const BEGINNING: &str = "mongodb://user:hunter2secret@";

pub const URI: Target = Target {
    name: "uri",
    run: uri,
    seeds: || {
        [
            "mongodb://localhost",
            "mongodb://user:hunter2secret@db.example.com:27018/admin?tls=true&appName=shop",
            "mongodb://user:hunter2secret@a,b:1,[::1]:27017/?replicaSet=rs0&compressors=zstd,snappy&zlibCompressionLevel=3",
            "mongodb://%2Ftmp%2Fmongodb-27017.sock/?connectTimeoutMS=100&maxPoolSize=5&readPreference=secondary",
            "mongodb+srv://user:hunter2secret@db.example.com/?srvMaxHosts=2&srvServiceName=mongo&authSource=admin",
            "mongodb://k:hunter2secret@h/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:a%2Cb",
            "mongodb://u@h/?authMechanism=MONGODB-X509&tlsCertificateKeyFile=a.pem&tlsInsecure=true",
            "mongodb://h/?proxyHost=p&proxyPort=1080&proxyUsername=u&proxyPassword=hunter2secret&w=majority&wTimeoutMS=5",
            "mongodb://h/?readPreferenceTags=dc:ny,rack:1&readPreferenceTags=&maxStalenessSeconds=90&directConnection=true",
        ]
        .map(|uri| uri.as_bytes().to_vec())
        .into()
    },
    mend: as_it_is,
    words: &[
        b"@",
        b":",
        b",",
        b"/",
        b"?",
        b"&",
        b"=",
        b"%",
        b"%00",
        b"%40",
        b"[",
        b"]",
        b"mongodb://",
        b"mongodb+srv://",
        b"user:hunter2secret@",
        b"loadBalanced=true",
        b"tls=false",
        b"authMechanism=",
        b"PLAIN",
        b"MONGODB-OIDC",
        b"true",
        b"-1",
        b"99999999999999999999",
        b"authMechanismProperties=ENVIRONMENT:gcp,TOKEN_RESOURCE:a",
        b"\xc3\xa9",
    ],
};

fn uri(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    // Whether the password is in its usual place and nowhere else.
    let only_a_password = text.strip_prefix(BEGINNING).is_some_and(|rest| !has_password(rest));
    let options = match Options::parse(text) {
        Ok(options) => options,
        Err(error) => {
            let shown = format!("{error} {error:?}");
            // The error must not show the password even if it is in the wrong place, as can happen without
            // percent-encoding.
            let elsewhere = has_password(&text.replace(":hunter2secret@", ""));
            assert!(elsewhere || !shown.contains(PASSWORD), "{text:?}: {shown}");
            return false;
        }
    };
    options.validate().unwrap_or_else(|error| panic!("{text:?} was accepted, but {error}"));
    assert!(options.hosts.is_empty() == options.srv.is_some(), "{text:?}: {options:?}");
    let shown = format!("{options:?} {:?}", options.warnings());
    assert!(!(only_a_password && shown.contains(PASSWORD)), "{text:?}: {shown}");
    true
}

/// Returns whether the password is in the text in any form in which it may be shown: decoded, or as a host in lower case.
fn has_password(text: &str) -> bool {
    let (mut plain, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        let digits = after.first_chunk::<2>().filter(|_| *first == b'%');
        let escaped = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&plain).to_lowercase().contains(PASSWORD)
}
