//! Failures of this process or machine, and servers that do not speak TLS.

use std::fs::File;
use std::process::Command;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use wharf::unstable::endpoint::TlsError;

use super::*;

/// Runs in a separate process, because the limit on open files is per process.
#[cfg(target_os = "linux")]
#[test]
fn too_many_open_files_is_a_local_failure() {
    let run = r#"ulimit -n 64 && exec "$0" --exact local::connecting_without_a_free_file_descriptor --ignored"#;
    let child = Command::new("sh").args(["-c", run]).arg(std::env::current_exe().unwrap()).output().unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

#[tokio::test]
#[ignore = "run by the test above in a process of its own"]
async fn connecting_without_a_free_file_descriptor() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    let error = refused(options(address)).await;
    drop(files);
    assert_refused(&error, Stage::Connect, Labels::NONE);
    assert!(cause::<ConnectError>(&error).is_local());
    let text = error.to_string();
    for part in ["this machine could not open a connection", "Too many open files", "ulimit -n", "maxPoolSize"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// Starts a peer that reads something, answers with `bytes`, and closes the connection.
async fn answering(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_buf(&mut Vec::with_capacity(4096)).await.unwrap();
        stream.write_all(bytes).await.unwrap();
    });
    address
}

#[tokio::test]
async fn server_that_answers_a_tls_handshake_with_other_bytes_does_not_speak_tls() {
    let certificates = Certificates::create().unwrap();
    for bytes in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[38, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0]] {
        let error = refused(options(answering(bytes).await).tls(trust(&certificates))).await;
        assert_refused(&error, Stage::Tls, Labels::NONE);
        assert!(matches!(cause(&error), TlsError::NotSpoken { .. }));
        assert!(error.to_string().contains("the server does not speak TLS: remove tls=true"), "{error}");
    }
}

/// A mongod without TLS behaves like this: a TLS handshake is not a valid message, so the mongod closes the connection.
#[tokio::test]
async fn server_that_closes_instead_of_a_tls_handshake_may_not_speak_tls() {
    let certificates = Certificates::create().unwrap();
    let error = refused(options(answering(b"").await).tls(trust(&certificates))).await;
    // The server may also be overloaded, so the specification requires the overload labels.
    assert_refused(&error, Stage::Tls, OVERLOADED);
    cause::<io::Error>(&error);
    assert!(error.to_string().ends_with("the server may not speak TLS: remove tls=true"), "{error}");
}
