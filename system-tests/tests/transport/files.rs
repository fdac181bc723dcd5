//! Files that prevent an endpoint from being built.

use std::fs;
use std::path::Path;

use super::*;

const KEY_FILE: &str = "a readable PEM file with the client's certificate and its private key";
const CA_FILE: &str = "a readable PEM file with the certificates of the authorities to trust";

/// The form of encrypted keys that OpenSSL used before PKCS#8.
const LEGACY: &str = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                      DEK-Info: AES-256-CBC,6A50757F930958218598E63965C111C5\n\nAQID\n-----END RSA PRIVATE KEY-----\n";

fn invalid(tls: TlsOptions) -> InvalidOption {
    options("localhost").tls(tls).endpoint().expect_err("the endpoint was built with an unusable file")
}

#[track_caller]
fn assert_invalid(tls: TlsOptions, option: &str, path: &Path, problem: &str, allowed: &str) {
    let error = invalid(tls);
    assert_eq!(error.to_string(), format!("{option} must be {allowed}, got {path:?} ({problem})"));
}

#[test]
fn invalid_authority_file_is_refused_with_its_problem() {
    let certificates = Certificates::create().unwrap();
    let write = |name: &str, text: &str| {
        let path = certificates.folder().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let authority = fs::read_to_string(certificates.file(Pem::Authority)).unwrap();
    let no_certificate = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
    let cases = [
        (certificates.folder().join("missing"), "No such file or directory (os error 2)"),
        (write("empty", ""), "it holds no certificate"),
        (write("der", "\u{30}\u{1}\0"), "it holds no certificate"),
        (write("cut", &authority[..authority.len() / 2]), "line 1: this section has no end"),
        (
            write("second", &format!("{authority}\n{no_certificate}")),
            &*format!("line {}: invalid peer certificate: BadEncoding", authority.lines().count() + 2),
        ),
    ];
    for (path, problem) in cases {
        assert_invalid(TlsOptions::default().ca_file(&path), "tlsCAFile", &path, problem, CA_FILE);
        // The file is read even when it is not used, so that a wrong path is reported at once rather than by the first
        // strict client.
        let lax = TlsOptions::default().allow_invalid_certificates(true).ca_file(&path);
        assert_eq!(invalid(lax).option, "tlsCAFile");
    }
}

/// Reading a device may never end, and a pipe may never have a writer.
#[cfg(unix)]
#[test]
fn devices_and_pipes_are_refused_unread() {
    let certificates = Certificates::create().unwrap();
    let pipe = certificates.folder().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [Path::new("/dev/zero"), &pipe] {
        let problem = "it is not a regular file";
        assert_invalid(TlsOptions::default().ca_file(path), "tlsCAFile", path, problem, CA_FILE);
        let key = TlsOptions::default().certificate_key_file(path);
        assert_invalid(key, "tlsCertificateKeyFile", path, problem, KEY_FILE);
    }
}

#[test]
fn invalid_certificate_key_file_is_refused_with_its_problem() {
    let certificates = Certificates::create().unwrap();
    let write = |name: &str, text: &str| {
        let path = certificates.folder().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let client = fs::read_to_string(certificates.file(Pem::Client)).unwrap();
    let key = &client[client.find("-----BEGIN PRIVATE").unwrap()..];
    let certificate = client.strip_suffix(key).unwrap();
    let lines = certificate.lines().count();
    let dsa = key.replace("PRIVATE KEY", "DSA PRIVATE KEY");
    let malformed = "-----BEGIN EC PRIVATE KEY-----\nAQID\n-----END EC PRIVATE KEY-----\n";
    let legacy = format!(
        "line {}: the key is encrypted in the legacy PEM format, which is weak and not supported; convert it to PKCS#8, \
         for example with `openssl pkcs8 -topk8 -v2 aes-256-cbc`",
        lines + 1
    );
    let cases = [
        (certificates.folder().join("missing"), "No such file or directory (os error 2)".to_owned()),
        (write("empty", ""), "it holds no certificate".to_owned()),
        (write("key", key), "it holds no certificate".to_owned()),
        (write("certificate", certificate), "it holds no private key".to_owned()),
        (
            write("keys", &format!("{client}{key}")),
            format!("line {}: a second private key", client.lines().count() + 1),
        ),
        (
            write("dsa", &format!("{certificate}{dsa}")),
            format!("line {}: a key of the kind DSA PRIVATE KEY is not supported", lines + 1),
        ),
        (write("legacy", &format!("{certificate}{LEGACY}")), legacy),
    ];
    for (path, problem) in cases {
        let tls = TlsOptions::default().certificate_key_file(&path).certificate_key_file_password(KEY_PASSWORD);
        assert_invalid(tls, "tlsCertificateKeyFile", &path, &problem, KEY_FILE);
    }
    for (path, problem) in [
        (write("malformed", &format!("{certificate}{malformed}")), "failed to parse private key"),
        (certificates.file(Pem::ClientWithOtherKey), "KeyMismatch"),
        (certificates.file(Pem::ClientRsaEncryptedDes3), "only AES under PBKDF2 or scrypt (PBES2) is supported"),
        (certificates.file(Pem::ClientRsaLegacyEncrypted), "the legacy PEM format"),
    ] {
        let tls = TlsOptions::default().certificate_key_file(&path).certificate_key_file_password(KEY_PASSWORD);
        let error = invalid(tls);
        let start = format!("tlsCertificateKeyFile must be {KEY_FILE}, got {path:?} (");
        assert!(error.to_string().starts_with(&start) && error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn wrong_key_password_is_not_repeated() {
    let certificates = Certificates::create().unwrap();
    let path = certificates.file(Pem::ClientRsaEncrypted);
    let tls = TlsOptions::default().certificate_key_file(&path);
    let missing = format!("tlsCertificateKeyFilePassword is required for the private key in {path:?}");
    assert_eq!(invalid(tls.clone()).to_string(), missing);
    for number in 0..3 {
        let wrong = tls.clone().certificate_key_file_password(format!("wrong {number}"));
        let refused = format!("tlsCertificateKeyFilePassword is not the password of the private key in {path:?}");
        assert_eq!(invalid(wrong).to_string(), refused);
    }
}

#[test]
fn tls_host_must_be_valid_in_a_certificate() {
    let error = options("-host").tls(TlsOptions::default()).endpoint().unwrap_err();
    assert_eq!((error.option, error.value.as_deref()), ("hosts", Some("\"-host\"")));
    assert!(options("-host").endpoint().is_ok());
    let error = options("bücher.example").tls(TlsOptions::default()).endpoint().unwrap_err();
    assert_eq!((error.option, error.value.as_deref()), ("hosts", Some("\"bücher.example\"")));
    for host in ["localhost", "db.example.", "a_b.example", "127.0.0.1", "[::1]"] {
        assert!(options(host).tls(TlsOptions::default()).endpoint().is_ok(), "{host}");
    }
}
