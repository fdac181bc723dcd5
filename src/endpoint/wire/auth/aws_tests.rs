use super::*;

/// The example key from AWS's documentation.
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

fn decode(base64: &str) -> Vec<u8> {
    BASE64.decode(base64).unwrap()
}

#[test]
fn header_values_are_not_printed() {
    let headers = [("host", "h"), ("x-amz-security-token", "pencil")];
    let request = CanonicalRequest { method: "GET", path: "/", query: "", headers: &headers, body: b"" };
    let shown = format!("{request:?}");
    assert!(shown.contains("host;x-amz-security-token") && !shown.contains("pencil"), "{shown}");
}

#[test]
fn signature_matches_the_published_examples() {
    let headers = [
        ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
        ("host", "iam.amazonaws.com"),
        ("x-amz-date", "20150830T123600Z"),
    ];
    let query = "Action=ListUsers&Version=2010-05-08";
    let request = CanonicalRequest { method: "GET", path: "/", query, headers: &headers, body: b"" };
    assert_eq!(request.hash(), "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59");
    let scope = Scope { date: "20150830T123600Z", region: "us-east-1", service: "iam" };
    assert_eq!(signature(&request, scope, SECRET), "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7");

    // The `get-vanilla` case of AWS's test suite for Signature Version 4.
    let headers = [("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
    let request = CanonicalRequest { method: "GET", path: "/", query: "", headers: &headers, body: b"" };
    let scope = Scope { service: "service", ..scope };
    assert_eq!(signature(&request, scope, SECRET), "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
}

#[test]
fn first_messages_match_the_specification() {
    let nonce: [u8; 32] = decode("Wj0lSjp8M0BMKGU+QVAzRSpWfk0hJigqO1V+b0FaVz4=").try_into().unwrap();
    assert_eq!(
        client_first(&nonce).as_bytes(),
        decode("NAAAAAVyACAAAAAAWj0lSjp8M0BMKGU+QVAzRSpWfk0hJigqO1V+b0FaVz4QcABuAAAAAA==")
    );
    let payload = decode(
        "ZgAAAAVzAEAAAAAAWj0lSjp8M0BMKGU+QVAzRSpWfk0hJigqO1V+b0FaVz5Rj7x9UOBHJLvPgvgPS9sSzZUWgAPTy8HBbI1cG1WJ9gJoABIA\
         AABzdHMuYW1hem9uYXdzLmNvbQAA",
    );
    let server = ServerFirst::read(&payload, &nonce).unwrap();
    assert_eq!((&server.nonce[..32], &*server.host), (&nonce[..], "sts.amazonaws.com"));
}

/// The expected signatures were computed independently of this code, with Python's `hmac` and `hashlib`.
#[test]
fn second_message_signs_a_request_for_the_identity_of_the_client() {
    let nonce: [u8; 64] = std::array::from_fn(|index| index as u8);
    let secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
    let keys = AccessKeys { access_key_id: "AKIAI44QH8DHBEXAMPLE", secret_access_key, session_token: None };
    let server = ServerFirst { nonce, host: "sts.amazonaws.com".to_owned() };
    let now = Timestamp::parse("2019-11-07T00:26:07Z").unwrap();
    let message = client_second(&server, keys, now).unwrap();
    assert_eq!(
        message.get_str("a").unwrap(),
        "AWS4-HMAC-SHA256 Credential=AKIAI44QH8DHBEXAMPLE/20191107/us-east-1/sts/aws4_request, SignedHeaders=\
         content-length;content-type;host;x-amz-date;x-mongodb-gs2-cb-flag;x-mongodb-server-nonce, Signature=\
         fddd33556169e75e9851848765a2555f9d0bae2e420977b071eeeada7f8311ab"
    );
    assert_eq!(message.get_str("d").unwrap(), "20191107T002607Z");
    assert_eq!(message.get("t").unwrap(), None);

    let keys = AccessKeys { session_token: Some("AQoDYXdzEJr"), ..keys };
    let server = ServerFirst { nonce, host: "sts.eu-central-1.amazonaws.com".to_owned() };
    let message = client_second(&server, keys, Timestamp::parse("2024-02-29T23:59:59Z").unwrap()).unwrap();
    assert_eq!(
        message.get_str("a").unwrap(),
        "AWS4-HMAC-SHA256 Credential=AKIAI44QH8DHBEXAMPLE/20240229/eu-central-1/sts/aws4_request, SignedHeaders=\
         content-length;content-type;host;x-amz-date;x-amz-security-token;x-mongodb-gs2-cb-flag;\
         x-mongodb-server-nonce, Signature=d9b8d34c3c100e14f6584a45e39691d121fe18afa951d56a7f7fc5c34f6f64f9"
    );
    assert_eq!(message.get_str("t").unwrap(), "AQoDYXdzEJr");
}

#[test]
fn region_is_the_second_label_of_the_host() {
    for (host, expected) in [
        ("sts.amazonaws.com", "us-east-1"),
        ("aws.amazonaws.com", "us-east-1"),
        ("sts.us-west-2.amazonaws.com", "us-west-2"),
        ("sts.us-west-2.amazonaws.com.ch", "us-west-2"),
        ("example.com", "com"),
        ("localhost", "us-east-1"),
        ("STS.AmazonAWS.com", "us-east-1"),
        ("sts-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sts.us-west-2.amazonaws.com:443", "us-west-2"),
        ("localhost:8000", "us-east-1"),
        ("127.0.0.1", "0"),
        (&"a".repeat(255), "us-east-1"),
    ] {
        assert_eq!(region(host), Ok(expected), "{host}");
    }
    let long = "a".repeat(256);
    for host in [
        "sts..com",
        ".amazonaws.com",
        "sts.amazonaws.",
        "",
        ".",
        &long,
        "sts.a\nhost:b",
        "sts. ",
        "sts.ä.com",
        // With these hosts, the region would take up more than one part of the scope.
        "sts.us-east-1/iam.com",
        "sts.a,SignedHeaders=host.com",
        "sts.a=b.com",
    ] {
        assert!(matches!(region(host), Err(WireError::ReplyField { field: "h (sts host)", .. })), "{host:?}");
    }
}

#[test]
fn invalid_answer_of_the_server_is_refused() {
    let client = [7; 32];
    let binary = |bytes| RawBsonRef::Binary(RawBinaryRef { subtype: BinarySubtype::Generic, bytes });
    let answer = |nonce: RawBsonRef<'_>, host: RawBsonRef<'_>| {
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("s"), nonce);
        document.append(cstr!("h"), host);
        ServerFirst::read(document.as_bytes(), &client)
    };
    let host = RawBsonRef::String("sts.amazonaws.com");
    assert!(answer(binary(&[7; 64]), host).is_ok());
    let mut other = [7; 64];
    other[31] = 8;
    for nonce in [binary(&[7; 63]), binary(&[7; 65]), binary(&[7; 32]), binary(&[]), binary(&other), host] {
        let error = answer(nonce, host).unwrap_err();
        assert!(matches!(error, WireError::ReplyField { field: "s (server nonce)", .. }), "{error}");
    }
    for host in [RawBsonRef::Int32(1), RawBsonRef::String(""), RawBsonRef::String("a..b")] {
        let error = answer(binary(&[7; 64]), host).unwrap_err();
        assert!(matches!(error, WireError::ReplyField { field: "h (sts host)", .. }), "{error}");
    }
    for payload in [&b""[..], b"\x05\0\0\0", b"\x05\0\0\0\x01", b"\x07\0\0\0\x05s\0"] {
        assert!(ServerFirst::read(payload, &client).is_err());
    }
}

#[test]
fn times_survive_a_round_trip() {
    for (seconds, rfc, text) in [
        (0, "1970-01-01T00:00:00Z", "19700101T000000Z"),
        (951_782_400, "2000-02-29T00:00:00Z", "20000229T000000Z"),
        (1_709_251_199, "2024-02-29T23:59:59Z", "20240229T235959Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z", "21000301T000000Z"),
    ] {
        assert_eq!(Timestamp(seconds).to_string(), text);
        assert_eq!(Timestamp::parse(rfc), Some(Timestamp(seconds)));
    }
    assert_eq!(Timestamp::parse("1970-01-01T00:00:01.999Z"), Some(Timestamp(1)));
    for text in [
        "",
        "Z",
        "2024-02-30T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2024-13-01T00:00:00Z",
        "2024-01-01T24:00:00Z",
        "2024-01-01T00:00:00",
        "2024-01-01 00:00:00Z",
        "2024-01-01T00:00:00.Z",
        "1969-12-31T23:59:59Z",
        "2024-01-01T00:00:00+01:00",
        "2024-01-0äT00:00:0Z",
    ] {
        assert_eq!(Timestamp::parse(text), None, "{text}");
    }
    // The dates of all days of eight centuries are distinct and in order.
    let mut last = date_of(0);
    for days in 1..800 * 366 {
        let date = date_of(days);
        assert!(date > last);
        assert_eq!(days_before(date.0, date.1, date.2), Some(days));
        last = date;
    }
}
