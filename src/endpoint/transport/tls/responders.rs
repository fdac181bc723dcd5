//! Asks the responders named in a server's certificate whether the certificate has been revoked (OCSP Support
//! specification, "Suggested OCSP Behavior", steps 4 and 7).
//!
//! A responder is asked only after the certificate's chain has been verified, and only if the certificate's state is
//! still unknown, because the server stapled no response, or one that says "unknown". The client connects unless a
//! valid response says "revoked". A slow, unreachable or faulty responder does not prevent a connection.

use std::collections::HashMap;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::{Method, StatusCode};
use tokio_rustls::rustls::pki_types::UnixTime;
use tracing::debug;
use zeroize::Zeroizing;

use super::revocation::{Algorithms, Conclusion, Issued};
use crate::endpoint::http::HttpRequest;
use crate::endpoint::wire::ocsp::CertificateId;
use crate::pool::runtime::{Boxed, TARGET};
use crate::text::printable::{Printable, PrintableError};

/// The maximum time to wait for responders.
const LIMIT: Duration = Duration::from_secs(5);

/// The pause, in seconds, before responders that gave no conclusive answer are asked again. Without the pause, each
/// connection would wait for them.
const PAUSE: u64 = 60;

/// The maximum number of responders to ask about one certificate.
const MOST_RESPONDERS: usize = 4;

/// The maximum number of certificates to remember. A deployment has only a few.
const MOST_KNOWN: usize = 1_024;

/// The known states of certificates, from responders and from stapled responses.
#[derive(Debug, Default)]
pub(super) struct Responders {
    /// This is not behind a lock, because a forked child might find the lock held by a thread that exists only in the
    /// parent.
    known: ArcSwap<HashMap<CertificateId, Conclusion>>,
}

impl Responders {
    /// Remembers a conclusion, unless the one already known is valid for longer. Until a revocation expires, only
    /// another revocation can replace it, because a concurrent connection may merely have received no answer.
    pub fn learn(&self, id: &CertificateId, conclusion: Conclusion) {
        let now = UnixTime::now().as_secs();
        self.known.rcu(|known| {
            let mut known = HashMap::clone(known);
            if known.len() >= MOST_KNOWN {
                known.retain(|_, conclusion| conclusion.until > now);
            }
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            let rank = |conclusion: &Conclusion| (conclusion.is_revoked && conclusion.until > now, conclusion.until);
            let lasting = known.get(id).filter(|before| rank(before) > rank(&conclusion));
            known.insert(id.clone(), *lasting.unwrap_or(&conclusion));
            known
        });
    }

    /// Returns whether a certificate has been revoked, if that is known or if a responder answers. `left` is the time
    /// until the connection must be open. Responders get at most half of it.
    pub async fn is_revoked(&self, issued: &Issued<'_>, algorithms: &Algorithms, left: Option<Duration>) -> bool {
        let (id, now) = (issued.id(), UnixTime::now());
        let known = self.known.load().get(&id).copied().filter(|known| known.until > now.as_secs());
        if let Some(known) = known {
            return known.is_revoked;
        }
        let urls = issued.responders();
        if urls.is_empty() {
            return false;
        }
        let limit = left.map_or(LIMIT, |left| LIMIT.min(left / 2));
        let request = id.request();
        let asking = urls.into_iter().take(MOST_RESPONDERS).map(|url| {
            let asking = ask(url, &request, limit, issued, algorithms);
            Box::pin(asking) as Boxed<'_, Option<Conclusion>>
        });
        let told = first_of(asking.collect()).await;
        let conclusion = told.unwrap_or(Conclusion { is_revoked: false, until: now.as_secs() + PAUSE });
        self.learn(&id, conclusion);
        conclusion.is_revoked
    }
}

/// Asks one responder. Returns `None` if the responder gives no valid and conclusive answer in time.
async fn ask(
    url: &str,
    request: &[u8],
    limit: Duration,
    issued: &Issued<'_>,
    algorithms: &Algorithms,
) -> Option<Conclusion> {
    let silent = |why: &dyn std::fmt::Display| {
        debug!(target: TARGET, responder = %Printable(url), why = %PrintableError(why), "no OCSP status");
        None
    };
    let Some((base, path)) = parts(url) else { return silent(&"its address is not an http URL") };
    let body = Zeroizing::new(request.to_vec());
    let headers = [("content-type", "application/ocsp-request")];
    let request = HttpRequest { method: Method::POST, base, path, headers: &headers, body, peers: None, limit };
    let answer = match request.send().await {
        Ok(answer) if answer.status == StatusCode::OK => answer,
        Ok(answer) => return silent(&answer.status),
        Err(error) => return silent(&error),
    };
    match issued.conclude(&answer.body, UnixTime::now(), algorithms) {
        Ok(Some(conclusion)) => Some(conclusion),
        Ok(None) => silent(&"it does not know the certificate"),
        Err(error) => silent(&error),
    }
}

/// Splits a URL into its base and its path. Only plain HTTP is used: the answer is signed, and TLS would itself need a
/// revocation check.
fn parts(url: &str) -> Option<(&str, &str)> {
    let host = "http://".len();
    url.get(..host).filter(|scheme| scheme.eq_ignore_ascii_case("http://"))?;
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |end| host + end);
    let (base, path) = url.split_at(end);
    match path {
        "" => Some((base, "/")),
        path if path.starts_with('/') => Some((base, path)),
        _ => None,
    }
}

/// Returns the first conclusion, or `None` if no responder gives one.
async fn first_of(mut asking: Vec<Boxed<'_, Option<Conclusion>>>) -> Option<Conclusion> {
    poll_fn(|context| {
        let mut found = None;
        asking.retain_mut(|asking| {
            found.is_some()
                || match asking.as_mut().poll(context) {
                    Poll::Pending => true,
                    Poll::Ready(conclusion) => {
                        found = conclusion;
                        false
                    }
                }
        });
        match found {
            None if !asking.is_empty() => Poll::Pending,
            found => Poll::Ready(found),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use wharf_testbed::certificates::VERSION_1;

    use super::super::pem;
    use super::*;
    use crate::endpoint::wire::ocsp::Certificate;

    #[test]
    fn revocation_is_forgotten_for_nothing_before_its_time() {
        let sections = pem::sections(VERSION_1.as_bytes()).unwrap();
        let der = sections.iter().find(|section| section.label == pem::CERTIFICATE).unwrap().der.to_vec();
        let certificate = Certificate::read(&der).unwrap();
        let id = CertificateId::of(&certificate, certificate.public_key);
        let now = UnixTime::now().as_secs();
        let [good, pause] = [10_000, PAUSE].map(|valid| Conclusion { is_revoked: false, until: now + valid });
        let [over, revoked] = [0, 30].map(|valid| Conclusion { is_revoked: true, until: now + valid });
        let responders = Responders::default();
        for (told, known) in [
            (over, over),
            (pause, pause),
            (good, good),
            (pause, good),
            (revoked, revoked),
            (pause, revoked),
            (good, revoked),
        ] {
            responders.learn(&id, told);
            assert_eq!(responders.known.load()[&id], known, "{told:?}");
        }
    }

    #[test]
    fn responders_are_asked_in_plain_http_only() {
        assert_eq!(parts("http://ocsp.example.com"), Some(("http://ocsp.example.com", "/")));
        assert_eq!(parts("HTTP://[::1]:80/a/b?c"), Some(("HTTP://[::1]:80", "/a/b?c")));
        for other in ["https://ocsp.example.com/", "ldap://a/", "http:/a", "", "http://a?b", "httpä//a"] {
            assert_eq!(parts(other), None, "{other}");
        }
    }
}
