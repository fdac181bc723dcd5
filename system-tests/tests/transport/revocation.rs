//! Servers whose certificates were revoked, or that staple an invalid response (OCSP Support specification, "Suggested
//! OCSP Behavior", and RFC 6960, section 3.2).

use std::mem::{Discriminant, discriminant};

use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CertificateError, Error, SupportedProtocolVersion};
use wharf::unstable::wire::ocsp::{CLOCK_SKEW, MAX_AGE, MAX_LENGTH, OcspError};
use wharf_testbed::ocsp::{
    Delegate, Issuing, OcspAuthority, Place, ResponseOptions, Revocable, Said, Signer, unsuccessful,
};

use super::*;

/// The outcome of an attempt to connect.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum End {
    Connected,
    Revoked,
    Refused(OcspError),
}

use End::{Connected, Refused, Revoked};

impl End {
    fn kind(&self) -> (Discriminant<Self>, Option<Discriminant<OcspError>>) {
        let why = if let Refused(why) = self { Some(discriminant(why)) } else { None };
        (discriminant(self), why)
    }
}

/// A server behind all fronts, and the authority that issues their certificates.
struct Stapling {
    server: EmbeddedServer,
    authority: OcspAuthority,
}

impl Stapling {
    async fn start() -> Self {
        Self { server: embedded().await, authority: OcspAuthority::create().unwrap() }
    }

    fn trust(&self) -> TlsOptions {
        TlsOptions::default().ca_file(self.authority.authority_file())
    }

    async fn front(&self, of: Revocable, version: &'static SupportedProtocolVersion, staple: Vec<u8>) -> TlsFront {
        let file = self.authority.file(of);
        TlsFront::start_stapling(socket_address(&self.server), &file, version, None, staple).await.unwrap()
    }

    /// Connects to a server that has this certificate and staples this response.
    async fn end_with(&self, of: Revocable, staple: Vec<u8>, tls: TlsOptions) -> End {
        let mut ends = Vec::new();
        for version in [&TLS13, &TLS12] {
            let front = self.front(of, version, staple.clone()).await;
            ends.push(end(localhost(front.address().port()).tls(tls.clone())).await);
        }
        // Errors about times contain the current time, so only their kinds are compared.
        assert_eq!(ends[0].kind(), ends[1].kind(), "the versions of TLS differ");
        ends.remove(0)
    }

    async fn end(&self, of: Revocable, response: ResponseOptions) -> End {
        self.end_with(of, self.authority.response(&response), self.trust()).await
    }
}

pub(super) async fn end(options: Options) -> End {
    let Err(error) = connect(options).await else { return Connected };
    assert_refused(&error, Stage::Tls, Labels::NONE);
    if let Some(why) = error.cause().downcast_ref::<OcspError>() {
        assert!(error.to_string().contains(&why.to_string()), "{error}");
        return Refused(why.clone());
    }
    match tls_error(&error) {
        Error::InvalidCertificate(CertificateError::Revoked) => Revoked,
        other => panic!("unexpected error: {other}"),
    }
}

fn said(said: Said) -> ResponseOptions {
    ResponseOptions { says: vec![said], ..ResponseOptions::default() }
}

fn signed_by(signer: Signer) -> ResponseOptions {
    ResponseOptions { signer, ..ResponseOptions::default() }
}

#[tokio::test]
async fn issuers_response_decides() {
    let stapling = Stapling::start().await;
    for (says, expected) in [(Said::Good, Connected), (Said::Revoked, Revoked), (Said::Unknown, Connected)] {
        for (by_key, sha256) in [(false, false), (true, true)] {
            let response = ResponseOptions { by_key, sha256, ..said(says) };
            assert_eq!(stapling.end(Revocable::Plain, response).await, expected, "{says:?} {by_key}");
        }
        let about = Revocable::MustStaple;
        assert_eq!(stapling.end(about, ResponseOptions { about, ..said(says) }).await, expected, "{says:?}");
    }
}

#[tokio::test]
async fn worst_of_several_statuses_counts() {
    let stapling = Stapling::start().await;
    for (says, expected) in [
        (vec![Said::Good, Said::Revoked], Revoked),
        (vec![Said::Revoked, Said::Unknown, Said::Good], Revoked),
        (vec![Said::Unknown, Said::Good], Connected),
        (vec![], Refused(OcspError::NotCovered)),
    ] {
        let response = ResponseOptions { says: says.clone(), ..ResponseOptions::default() };
        assert_eq!(stapling.end(Revocable::Plain, response).await, expected, "{says:?}");
    }
}

#[tokio::test]
async fn response_about_another_certificate_is_refused() {
    let stapling = Stapling::start().await;
    let other_serial = ResponseOptions { about: Revocable::MustStaple, ..ResponseOptions::default() };
    let other_issuer = ResponseOptions { issuer: Issuing::Other, ..ResponseOptions::default() };
    // The issuer's name is right, but the key is not.
    let other_key = ResponseOptions { issuer: Issuing::Impostor, ..ResponseOptions::default() };
    for response in [other_serial, other_issuer, other_key] {
        for says in [Said::Good, Said::Revoked] {
            let response = ResponseOptions { says: vec![says], ..response.clone() };
            assert_eq!(stapling.end(Revocable::Plain, response).await, Refused(OcspError::NotCovered));
        }
    }
}

#[tokio::test]
async fn only_the_issuer_may_sign() {
    let stapling = Stapling::start().await;
    // A signer whose name or key id differs from the issuer's is not authorized. A signer with the issuer's name and a
    // different key is mistaken for the issuer, so its signature is wrong.
    let impostor = Signer::Issuer(Issuing::Impostor);
    for of in [Revocable::Plain, Revocable::WithImpostor] {
        for (signer, by_key, why) in [
            (Signer::Issuer(Issuing::Other), false, OcspError::Unauthorized),
            (Signer::Issuer(Issuing::Other), true, OcspError::Unauthorized),
            (impostor, false, OcspError::Signature),
            (impostor, true, OcspError::Unauthorized),
        ] {
            let response = ResponseOptions { by_key, about: of, ..signed_by(signer) };
            assert_eq!(stapling.end(of, response).await, Refused(why), "{signer:?} {by_key} {of:?}");
        }
    }
    // A response whose issuer and signer are both the impostor is self-consistent, but still refused.
    let response = ResponseOptions { issuer: Issuing::Impostor, about: Revocable::WithImpostor, ..signed_by(impostor) };
    assert_eq!(stapling.end(Revocable::WithImpostor, response).await, Refused(OcspError::Signature));
    for by_key in [false, true] {
        let forged = ResponseOptions { forged: true, by_key, ..ResponseOptions::default() };
        assert_eq!(stapling.end(Revocable::Plain, forged).await, Refused(OcspError::Signature));
    }
}

#[tokio::test]
async fn issuer_may_be_an_intermediate_authority() {
    let stapling = Stapling::start().await;
    let about = Revocable::WithChain;
    let of_chain = |signer| ResponseOptions { about, issuer: Issuing::Between, ..signed_by(signer) };
    let between = Signer::Issuer(Issuing::Between);
    assert_eq!(stapling.end(about, of_chain(between)).await, Connected);
    let revoked = ResponseOptions { says: vec![Said::Revoked], ..of_chain(between) };
    assert_eq!(stapling.end(about, revoked).await, Revoked);
    let delegate = Signer::Delegate(Issuing::Between, Delegate::Authorized);
    assert_eq!(stapling.end(about, of_chain(delegate)).await, Connected);
    // The trusted authority certified the intermediate authority, but did not issue the server's certificate.
    for signer in [Signer::Issuer(Issuing::Authority), Signer::Delegate(Issuing::Authority, Delegate::Authorized)] {
        assert_eq!(stapling.end(about, of_chain(signer)).await, Refused(OcspError::Unauthorized), "{signer:?}");
    }
    let above = ResponseOptions { issuer: Issuing::Authority, ..of_chain(between) };
    assert_eq!(stapling.end(about, above).await, Refused(OcspError::NotCovered));
    // Of the two intermediate authorities, the one that issued the certificate may sign. The one above it, which the
    // trusted authority certified, may not.
    let about = Revocable::WithLongChain;
    let of_long_chain = |signer| ResponseOptions { about, issuer: Issuing::Below, ..signed_by(signer) };
    assert_eq!(stapling.end(about, of_long_chain(Signer::Issuer(Issuing::Below))).await, Connected);
    assert_eq!(stapling.end(about, of_long_chain(between)).await, Refused(OcspError::Unauthorized));
    // An authority may not sign for a certificate that a higher authority issued.
    let below = signed_by(delegate);
    assert_eq!(stapling.end(Revocable::Plain, below).await, Refused(OcspError::Unauthorized));
}

#[tokio::test]
async fn authorized_delegate_may_sign() {
    let stapling = Stapling::start().await;
    let authorized = Signer::Delegate(Issuing::Authority, Delegate::Authorized);
    for by_key in [false, true] {
        for (says, expected) in [(Said::Good, Connected), (Said::Revoked, Revoked)] {
            let response = ResponseOptions { says: vec![says], by_key, ..signed_by(authorized) };
            assert_eq!(stapling.end(Revocable::Plain, response).await, expected);
        }
    }
    let forged = ResponseOptions { forged: true, ..signed_by(authorized) };
    assert_eq!(stapling.end(Revocable::Plain, forged).await, Refused(OcspError::Signature));
    // The signer must be the one that the response names.
    for signer in [authorized, Signer::Issuer(Issuing::Authority)] {
        for by_key in [false, true] {
            let misnamed = ResponseOptions { misnamed: true, by_key, ..signed_by(signer) };
            assert_eq!(stapling.end(Revocable::Plain, misnamed).await, Refused(OcspError::Unauthorized));
        }
    }
    // Of several candidates for the signer, only the first few are tried.
    for (namesakes, expected) in [(3, Connected), (4, Refused(OcspError::Signature))] {
        let response = ResponseOptions { namesakes, ..signed_by(authorized) };
        assert_eq!(stapling.end(Revocable::Plain, response).await, expected);
    }
    for (issuing, delegate) in [
        (Issuing::Authority, Delegate::Unspecified),
        (Issuing::Authority, Delegate::ForServers),
        (Issuing::Authority, Delegate::Expired),
        (Issuing::Other, Delegate::Authorized),
        (Issuing::Impostor, Delegate::Authorized),
    ] {
        let response = signed_by(Signer::Delegate(issuing, delegate));
        let end = stapling.end(Revocable::Plain, response).await;
        assert_eq!(end, Refused(OcspError::Unauthorized), "{issuing:?} {delegate:?}");
    }
}

#[tokio::test]
async fn response_is_valid_for_a_limited_time() {
    let stapling = Stapling::start().await;
    let (skew, most) = (CLOCK_SKEW as i64, MAX_AGE as i64);
    // The ages are far enough from the bounds that the test also passes on a slow machine.
    for (age, holds, is_right) in [
        (0, Some(600), true),
        (-skew / 2, Some(600), true),
        (-skew - 600, Some(1_200), false),
        (30 * 86_400, Some(600), true),
        (7_200, Some(-1), false),
        (7_200, Some(-skew / 2), false),
        (most - 600, None, true),
        (most + 600, None, false),
    ] {
        for (says, right) in [(Said::Good, Connected), (Said::Revoked, Revoked)] {
            let response = ResponseOptions { age, holds, ..said(says) };
            let end = stapling.end(Revocable::Plain, response).await;
            match is_right {
                true => assert_eq!(end, right, "{age} {holds:?}"),
                false if age < 0 => assert!(matches!(end, Refused(OcspError::NotYetValid { .. })), "{age}: {end:?}"),
                false => assert!(matches!(end, Refused(OcspError::Expired { .. })), "{age} {holds:?}: {end:?}"),
            }
        }
    }
}

#[tokio::test]
async fn must_staple_certificate_needs_a_response() {
    let stapling = Stapling::start().await;
    for (of, expected) in [
        (Revocable::Plain, Connected),
        (Revocable::OtherFeature, Connected),
        (Revocable::MustStaple, Refused(OcspError::Missing)),
    ] {
        assert_eq!(stapling.end_with(of, Vec::new(), stapling.trust()).await, expected, "{of:?}");
    }
}

#[tokio::test]
async fn invalid_response_is_refused() {
    let stapling = Stapling::start().await;
    let right = stapling.authority.response(&ResponseOptions::default());
    let refused = async |staple: Vec<u8>| match stapling.end_with(Revocable::Plain, staple, stapling.trust()).await {
        Refused(why) => why,
        other => panic!("{other:?}"),
    };
    for garbage in [vec![0], b"HTTP/1.1 200 OK".to_vec(), right[..right.len() - 1].to_vec(), [&*right, &[0]].concat()] {
        assert!(matches!(refused(garbage).await, OcspError::Malformed { .. }));
    }
    assert_eq!(refused(unsuccessful(3)).await, OcspError::Unsuccessful { status: 3 });
    assert!(matches!(refused(unsuccessful(0)).await, OcspError::Malformed { .. }));
    assert_eq!(refused(vec![0x30; MAX_LENGTH + 1]).await, OcspError::Length { length: MAX_LENGTH + 1 });
    for place in [Place::Response, Place::Entry] {
        let critical = ResponseOptions { extension: Some((place, true)), ..ResponseOptions::default() };
        assert!(matches!(refused(stapling.authority.response(&critical)).await, OcspError::Unsupported { .. }));
        let ignored = ResponseOptions { extension: Some((place, false)), ..ResponseOptions::default() };
        assert_eq!(stapling.end(Revocable::Plain, ignored).await, Connected);
    }
}

#[tokio::test]
async fn options_that_disable_the_check_disable_it() {
    let stapling = Stapling::start().await;
    let revoked = stapling.authority.response(&said(Said::Revoked));
    let trust = stapling.trust();
    for (tls, is_off) in [
        (trust.clone(), false),
        (trust.clone().disable_ocsp_endpoint_check(true), false),
        (trust.clone().allow_invalid_hostnames(true), false),
        (trust.clone().disable_certificate_revocation_check(true), true),
        (trust.clone().allow_invalid_certificates(true), true),
        (trust.clone().insecure(true), true),
    ] {
        for (of, staple, on) in [
            (Revocable::Plain, revoked.clone(), Revoked),
            (Revocable::MustStaple, Vec::new(), Refused(OcspError::Missing)),
            (Revocable::Plain, unsuccessful(6), Refused(OcspError::Unsuccessful { status: 6 })),
        ] {
            let expected = if is_off { Connected } else { on };
            assert_eq!(stapling.end_with(of, staple, tls.clone()).await, expected, "{tls:?} {of:?}");
        }
    }
}

#[tokio::test]
async fn other_certificate_problems_are_reported_first() {
    let stapling = Stapling::start().await;
    let revoked = stapling.authority.response(&said(Said::Revoked));
    let front = stapling.front(Revocable::Plain, &TLS13, revoked).await;
    let certificates = Certificates::create().unwrap();
    let other = TlsOptions::default().ca_file(certificates.file(Pem::OtherAuthority));
    let error = refused(localhost(front.address().port()).tls(other)).await;
    assert_refused(&error, Stage::Tls, Labels::NONE);
    let why = tls_error(&error);
    assert!(matches!(why, Error::InvalidCertificate(CertificateError::UnknownIssuer)), "{error}");
}

#[tokio::test]
async fn resumed_session_relies_on_the_check_of_its_first_connection() {
    let stapling = Stapling::start().await;
    let about = Revocable::MustStaple;
    let good = stapling.authority.response(&ResponseOptions { about, ..ResponseOptions::default() });
    let front = stapling.front(about, &TLS13, good).await;
    let endpoint = localhost(front.address().port()).tls(stapling.trust()).endpoint().unwrap();
    for _ in 0..2 {
        let mut connection = endpoint.connect().await.unwrap();
        connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    }
    let resumed: Vec<_> = front.handshakes().iter().map(|handshake| handshake.resumed).collect();
    assert_eq!(resumed, [false, true]);
}
