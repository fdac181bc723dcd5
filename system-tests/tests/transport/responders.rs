//! Requests to OCSP responders about certificates for which no conclusive response is stapled (OCSP Support
//! specification, "Suggested OCSP Behavior", steps 4, 7 and 10).

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::rustls::SupportedProtocolVersion;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use wharf::Endpoint;
use wharf_testbed::ocsp::{OcspAuthority, ResponseOptions, Revocable, Said, unsuccessful};

use super::revocation::End::{self, Connected, Revoked};
use super::revocation::end;
use super::*;

/// A responder that either answers the requests it receives, or never answers at all.
struct Responder {
    listener: TcpListener,
}

#[derive(Clone)]
enum Answer {
    Body(Vec<u8>),
    /// The first request gets the first body, and all later requests get the second.
    Change(Vec<u8>, Vec<u8>),
    Status(&'static str),
    Nothing,
}

impl Responder {
    async fn bind() -> Self {
        Self { listener: TcpListener::bind(("127.0.0.1", 0)).await.unwrap() }
    }

    fn url(&self) -> String {
        format!("http://{}/status", self.listener.local_addr().unwrap())
    }

    /// Starts answering requests. Returns a channel with the bodies of the requests.
    fn answer(self, answer: Answer) -> mpsc::UnboundedReceiver<Vec<u8>> {
        let (sender, requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let (mut open, mut answered) = (Vec::new(), 0);
            while let Ok((mut stream, _)) = self.listener.accept().await {
                let Some(body) = read_request(&mut stream).await else { continue };
                if sender.send(body).is_err() {
                    return;
                }
                answered += 1;
                let (status, body) = match &answer {
                    Answer::Change(first, _) if answered == 1 => ("200 OK", &**first),
                    Answer::Body(body) | Answer::Change(_, body) => ("200 OK", &**body),
                    Answer::Status(status) => (*status, &b"no"[..]),
                    // The connection is kept open.
                    Answer::Nothing => {
                        open.push(stream);
                        continue;
                    }
                };
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
            }
        });
        requests
    }
}

/// Reads a request, and returns its body.
async fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await.ok()? == 0 {
            return None;
        }
        let Some(head) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&request[..head]).unwrap().to_lowercase();
        assert!(text.starts_with("post /status http/1.1\r\n"), "{text}");
        assert!(text.contains("content-type: application/ocsp-request"), "{text}");
        let length: usize = text.split_once("content-length: ").unwrap().1.lines().next().unwrap().parse().unwrap();
        if request.len() >= head + 4 + length {
            return Some(request.split_off(head + 4));
        }
    }
}

/// A server with a certificate that names responders. It staples nothing unless the test says otherwise.
struct Asked {
    _server: EmbeddedServer,
    front: TlsFront,
    options: Options,
}

impl Asked {
    async fn start(authority: &OcspAuthority, staple: Vec<u8>) -> Self {
        Self::start_with(&TLS13, authority, staple).await
    }

    async fn start_with(
        version: &'static SupportedProtocolVersion,
        authority: &OcspAuthority,
        staple: Vec<u8>,
    ) -> Self {
        let server = embedded().await;
        let file = authority.file(Revocable::Plain);
        let front = TlsFront::start_stapling(socket_address(&server), &file, version, None, staple).await.unwrap();
        let tls = TlsOptions::default().ca_file(authority.authority_file());
        let options = localhost(front.address().port()).tls(tls);
        Self { _server: server, front, options }
    }

    /// Returns two endpoints that share their knowledge of certificates. They use different names for the server, so
    /// neither resumes the other's sessions.
    fn endpoints(&self) -> Vec<Endpoint> {
        let port = self.front.address().port();
        let names = [format!("localhost:{port}"), format!("127.0.0.1:{port}")];
        let tls = self.options.tls.clone().unwrap();
        let options = Options::new(names.each_ref().map(String::as_str)).unwrap().tls(tls);
        options.connect_timeout(self.options.connect_timeout).endpoints().unwrap()
    }
}

fn says(authority: &OcspAuthority, said: Said) -> Vec<u8> {
    authority.response(&ResponseOptions { says: vec![said], ..ResponseOptions::default() })
}

/// Connects to a server that staples nothing and has one responder, which gives this answer. Returns the outcome and
/// the number of requests.
async fn outcome(answer: impl FnOnce(&OcspAuthority) -> Answer) -> (End, usize) {
    let responder = Responder::bind().await;
    let authority = OcspAuthority::with_responders(&[responder.url()]).unwrap();
    let mut requests = responder.answer(answer(&authority));
    let asked = Asked::start(&authority, Vec::new()).await;
    let end = end(asked.options.clone()).await;
    (end, std::iter::from_fn(|| requests.try_recv().ok()).count())
}

#[tokio::test]
async fn responder_decides_if_the_server_staples_nothing() {
    for (said, expected) in [(Said::Good, Connected), (Said::Revoked, Revoked), (Said::Unknown, Connected)] {
        assert_eq!(outcome(|authority| Answer::Body(says(authority, said))).await, (expected, 1), "{said:?}");
    }
}

#[tokio::test]
async fn responder_without_a_valid_answer_stops_no_connection() {
    let forged = ResponseOptions { says: vec![Said::Revoked], forged: true, ..ResponseOptions::default() };
    let expired = ResponseOptions { says: vec![Said::Revoked], holds: Some(-1), ..ResponseOptions::default() };
    let other = ResponseOptions { about: Revocable::MustStaple, ..forged.clone() };
    for options in [forged, expired, other] {
        assert_eq!(
            outcome(|authority| Answer::Body(authority.response(&options))).await,
            (Connected, 1),
            "{options:?}"
        );
    }
    for answer in [
        Answer::Body(unsuccessful(6)),
        Answer::Body(b"<html>".to_vec()),
        Answer::Body(vec![0x30; 100_000]),
        Answer::Status("500 Internal Server Error"),
    ] {
        assert_eq!(outcome(|_| answer).await, (Connected, 1));
    }
    // Nothing is listening there.
    let url = Responder::bind().await.url();
    let authority = OcspAuthority::with_responders(&[url, "ldap://directory".to_owned()]).unwrap();
    assert_eq!(end(Asked::start(&authority, Vec::new()).await.options).await, Connected);
}

#[tokio::test]
async fn silent_responder_leaves_time_for_the_rest_and_is_not_asked_again() {
    let responder = Responder::bind().await;
    let authority = OcspAuthority::with_responders(&[responder.url()]).unwrap();
    let mut requests = responder.answer(Answer::Nothing);
    let mut asked = Asked::start(&authority, Vec::new()).await;
    asked.options = asked.options.connect_timeout(Duration::from_secs(2));
    for endpoint in asked.endpoints() {
        let mut connection = tokio::time::timeout(AGES, endpoint.connect()).await.unwrap().unwrap();
        connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    }
    assert!(requests.recv().await.is_some());
    assert!(requests.try_recv().is_err(), "it was asked again");
}

#[tokio::test]
async fn first_conclusive_answer_of_several_responders_counts() {
    let responders = [Responder::bind().await, Responder::bind().await, Responder::bind().await];
    let authority = OcspAuthority::with_responders(&responders.each_ref().map(Responder::url)).unwrap();
    let [silent, unknowing, knowing] = responders;
    let mut requests = [
        silent.answer(Answer::Nothing),
        unknowing.answer(Answer::Body(says(&authority, Said::Unknown))),
        knowing.answer(Answer::Body(says(&authority, Said::Revoked))),
    ];
    let asked = Asked::start(&authority, Vec::new()).await;
    assert_eq!(end(asked.options.clone().connect_timeout(Duration::ZERO)).await, Revoked);
    for requests in &mut requests {
        assert!(requests.recv().await.is_some());
    }
}

#[tokio::test]
async fn answer_is_kept_for_later_connections() {
    for (said, expected) in [(Said::Good, Connected), (Said::Revoked, Revoked)] {
        let responder = Responder::bind().await;
        let authority = OcspAuthority::with_responders(&[responder.url()]).unwrap();
        let mut requests = responder.answer(Answer::Body(says(&authority, said)));
        let asked = Asked::start(&authority, Vec::new()).await;
        for endpoint in asked.endpoints() {
            let connected = endpoint.connect().await.is_ok();
            assert_eq!(connected, expected == Connected);
        }
        assert!(requests.recv().await.is_some());
        assert!(requests.try_recv().is_err(), "{said:?}");
    }
}

#[tokio::test]
async fn revoked_certificate_is_refused_although_its_session_can_be_resumed() {
    for version in [&TLS12, &TLS13] {
        let responder = Responder::bind().await;
        let authority = OcspAuthority::with_responders(&[responder.url()]).unwrap();
        let _requests = responder.answer(Answer::Body(says(&authority, Said::Revoked)));
        let asked = Asked::start_with(version, &authority, Vec::new()).await;
        let endpoint = asked.options.endpoint().unwrap();
        for attempt in 0..3 {
            let error = endpoint.connect().await.expect_err("the certificate was revoked");
            assert!(error.to_string().to_lowercase().contains("revoked"), "{attempt}: {error}");
        }
    }
}

/// The session keeps the revoked certificate, even if the server has a new one.
#[tokio::test]
async fn session_with_a_revoked_certificate_is_not_resumed_again() {
    for version in [&TLS12, &TLS13] {
        let responder = Responder::bind().await;
        let authority = OcspAuthority::with_responders(&[responder.url()]).unwrap();
        let asked = Asked::start_with(version, &authority, Vec::new()).await;
        let for_two_seconds = ResponseOptions { says: vec![Said::Good], holds: Some(2), ..ResponseOptions::default() };
        let good = authority.response(&for_two_seconds);
        let _requests = responder.answer(Answer::Change(good, says(&authority, Said::Revoked)));
        let endpoint = asked.options.endpoint().unwrap();
        let mut connected = 0;
        let refused = loop {
            match endpoint.connect().await {
                Ok(_) => connected += 1,
                Err(error) => break error,
            }
        };
        let again = endpoint.connect().await.expect_err("the certificate was revoked");
        for error in [refused, again] {
            assert!(error.to_string().to_lowercase().contains("revoked"), "{error}");
        }
        let resumed = || asked.front.handshakes().iter().map(|handshake| handshake.resumed).collect::<Vec<_>>();
        while resumed().len() < connected + 2 {
            tokio::task::yield_now().await;
        }
        assert!(connected > 0);
        assert_eq!(resumed()[connected..], [true, false]);
    }
}

#[tokio::test]
async fn no_responder_is_asked_where_a_staple_tells_or_an_option_forbids_it() {
    for (said, relax) in [
        (Some(Said::Good), (|tls: TlsOptions| tls) as fn(TlsOptions) -> TlsOptions),
        (None, |tls| tls.disable_ocsp_endpoint_check(true)),
        (None, |tls| tls.disable_certificate_revocation_check(true)),
        (None, |tls| tls.allow_invalid_certificates(true)),
    ] {
        let responder = Responder::bind().await;
        let authority = OcspAuthority::with_responders(&[responder.url()]).unwrap();
        let mut requests = responder.answer(Answer::Body(says(&authority, Said::Revoked)));
        let staple = said.map(|said| says(&authority, said)).unwrap_or_default();
        let asked = Asked::start(&authority, staple).await;
        let tls = relax(TlsOptions::default().ca_file(authority.authority_file()));
        assert_eq!(end(asked.options.clone().tls(tls)).await, Connected);
        assert!(requests.try_recv().is_err());
    }
    // A stapled response with the status "unknown" is not conclusive.
    let responder = Responder::bind().await;
    let authority = OcspAuthority::with_responders(&[responder.url()]).unwrap();
    let _requests = responder.answer(Answer::Body(says(&authority, Said::Revoked)));
    let asked = Asked::start(&authority, says(&authority, Said::Unknown)).await;
    assert_eq!(end(asked.options.clone()).await, Revoked);
}

#[tokio::test]
async fn no_request_goes_past_a_proxy() {
    let responder = Responder::bind().await;
    let authority = OcspAuthority::with_responders(&[responder.url()]).unwrap();
    let mut requests = responder.answer(Answer::Body(says(&authority, Said::Revoked)));
    let asked = Asked::start(&authority, Vec::new()).await;
    let proxy = proxy::proxy(asked.front.address(), None, None).await;
    assert_eq!(end(asked.options.clone().proxy(proxy::through(&proxy))).await, Connected);
    assert!(requests.try_recv().is_err());
}
