//! The embedded server itself, in cases that no other test covers.

use super::*;

#[tokio::test]
async fn malformed_input_closes_only_its_connection() {
    let server = start().await;
    let mut good = connect(&server).await;
    let not_a_command: &[u8] = b"\x1a\0\0\0\x01\0\0\0\0\0\0\0\xdd\x07\0\0\0\0\0\0\0\x05\0\0\0\0";
    for bytes in [b"GET / HTTP/1.1\r\n\r\n", &[0xff; 64][..], &[0; 16], not_a_command] {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // The operating system reports the close as the end of the stream or as a reset, depending on what was left
        // unread.
        let _ = tokio::time::timeout(AGES, stream.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.is_empty());
    }
    assert!(good.run_command("admin", &rawdoc! { "ping": 1 }).await.is_ok());
}

#[tokio::test]
async fn stopped_server_leaves_no_port_and_no_connections() {
    let server = start().await;
    let (address, mut connection) = (server.address(), connect(&server).await);
    server.stop().await;
    assert_eq!(TcpStream::connect(&address).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    let failure = connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap_err();
    // The runtime may or may not have noticed the close before the command is sent.
    let is_lost = matches!(failure, CommandError::Network { .. } | CommandError::Lost { .. });
    assert!(is_lost && failure.is_network_error(), "{failure}");
}

#[tokio::test]
async fn request_with_more_to_come_is_executed_without_a_reply() {
    let server = start().await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let mut bytes = Vec::new();
    for (request_id, flags) in [(1, Flags::MORE_TO_COME), (2, Flags::NONE)] {
        let body = &*rawdoc! { "ping": 1 };
        let message = Outgoing { request_id, response_to: 0, flags, body, database: Some("admin"), sequences: &[] };
        op_msg::encode(&message, 1_000, &mut bytes).unwrap();
    }
    stream.write_all(&bytes).await.unwrap();
    let mut header = [0; 16];
    stream.read_exact(&mut header).await.unwrap();
    assert_eq!(Header::read(&header, 1_000).unwrap().unwrap().response_to, 2);
    assert_eq!(server.counters().commands("ping"), 2);
}

#[tokio::test]
async fn unsupported_commands_are_refused() {
    let server = start().await;
    let mut connection = connect(&server).await;
    let refusals = [
        ("test", rawdoc! { "find": COLLECTION, "filter": { "name": "a" } }, 2),
        ("test", rawdoc! { "find": COLLECTION, "sort": { "_id": 1 } }, 2),
        ("test", rawdoc! { "find": COLLECTION, "limit": -1 }, 2),
        ("test", rawdoc! { "find": 1 }, 14),
        ("test", rawdoc! { "getMore": 77_i64, "collection": COLLECTION }, 43),
        ("test", rawdoc! { "configureFailPoint": "failCommand", "mode": "off" }, 13),
        ("admin", rawdoc! { "configureFailPoint": "other", "mode": "off" }, 2),
        ("admin", rawdoc! { "configureFailPoint": "failCommand", "mode": "sometimes" }, 2),
        ("admin", rawdoc! { "insert": COLLECTION }, 59),
    ];
    for (database, command, code) in refusals {
        let failure = connection.run_command(database, &command).await.unwrap_err();
        assert_eq!(failure.server_error().map(|error| error.code), Some(code), "{failure}");
    }
}
