//! Streams to servers: TCP, Unix domain sockets, SOCKS5 proxies and TLS, and every way in which they can fail.
#![cfg(not(any(loom, shuttle)))]

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bson::rawdoc;
use wharf::endpoint::ConnectTimeoutError;
use wharf::unstable::endpoint::{ConnectError, ProxyError, TlsError};
use wharf::{
    Credential, DirectConnection, EstablishError, InvalidOption, Labels, Mechanism, Options, ProxyOptions, Stage,
    TlsOptions,
};
use wharf_testbed::certificates::{Certificates, KEY_PASSWORD, Pem};
use wharf_testbed::embedded::{EmbeddedOptions, EmbeddedServer};
use wharf_testbed::mongod::{Mongod, MongodOptions};
use wharf_testbed::relay::{Direction, Relay};
use wharf_testbed::socks::{SocksFault, SocksMessage, SocksOptions, SocksProxy};
use wharf_testbed::tls_front::TlsFront;

mod client_certificates;
mod files;
mod interrupted;
mod local;
mod memory;
mod own_rustls;
mod proxy;
#[cfg(feature = "ocsp")]
mod responders;
mod revocation;
mod self_signed;
mod server_certificates;
mod sessions;
mod stages;
#[cfg(unix)]
mod unix;
mod zones;

/// The time after which a hanging test fails.
const AGES: Duration = Duration::from_secs(60);

/// The two labels of an error that an overloaded server may have caused.
const OVERLOADED: Labels = Labels::SYSTEM_OVERLOADED.with(Labels::RETRYABLE);

/// A mongod with TLS, and its certificates.
struct Secured {
    // This field comes before the certificates, because fields are dropped in the order of their declaration, and the
    // server needs its files until it exits.
    mongod: Mongod,
    certificates: Certificates,
}

impl Secured {
    fn start(require_client_certificate: bool) -> Self {
        let certificates = Certificates::create().unwrap();
        let tls = certificates.of_mongod(require_client_certificate);
        let mongod = Mongod::start(MongodOptions { tls: Some(tls), ..MongodOptions::default() }).unwrap();
        Self { mongod, certificates }
    }

    /// Returns the server that the tests share. It requires no client certificate, and exits when the last test that
    /// uses it drops it.
    fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Secured>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(Self::start(false));
            *shared = Arc::downgrade(&started);
            started
        })
    }

    /// Returns TLS options that trust the server's authority.
    fn trust(&self) -> TlsOptions {
        trust(&self.certificates)
    }
}

fn trust(certificates: &Certificates) -> TlsOptions {
    TlsOptions::default().ca_file(certificates.file(Pem::Authority))
}

/// Starts an embedded server with a TLS 1.3 front.
async fn front(certificates: &Certificates, certificate: Pem) -> (EmbeddedServer, TlsFront) {
    let server = embedded().await;
    let version = &tokio_rustls::rustls::version::TLS13;
    let front = TlsFront::start(socket_address(&server), &certificates.file(certificate), version, None).await.unwrap();
    (server, front)
}

async fn embedded() -> EmbeddedServer {
    EmbeddedServer::start(EmbeddedOptions::default()).await.unwrap()
}

fn socket_address(server: &EmbeddedServer) -> SocketAddr {
    server.address().parse().unwrap()
}

fn options(host: impl ToString) -> Options {
    Options::new([host.to_string().as_str()]).unwrap()
}

fn localhost(port: u16) -> Options {
    options(format!("localhost:{port}"))
}

/// Opens a connection and runs a command on it.
async fn connect(options: Options) -> Result<DirectConnection, EstablishError> {
    let endpoint = options.endpoint().unwrap();
    let mut connection = tokio::time::timeout(AGES, endpoint.connect()).await.expect("the attempt hangs")?;
    connection.run_command("admin", &rawdoc! { "ping": 1 }).await.unwrap();
    Ok(connection)
}

async fn refused(options: Options) -> EstablishError {
    connect(options).await.expect_err("the connection was established")
}

#[track_caller]
fn assert_refused(error: &EstablishError, stage: Stage, labels: Labels) {
    assert_eq!((error.stage(), error.labels()), (stage, labels), "{error}");
}

#[track_caller]
fn cause<E: StdError + 'static>(error: &EstablishError) -> &E {
    error.cause().downcast_ref().unwrap_or_else(|| panic!("unexpected cause: {:?}", error.cause()))
}

/// Returns the TLS error behind a failed establishment.
#[track_caller]
fn tls_error(error: &EstablishError) -> &tokio_rustls::rustls::Error {
    let source = match error.cause().downcast_ref::<wharf::unstable::endpoint::TlsError>() {
        Some(hinted) => std::error::Error::source(hinted).and_then(|source| source.downcast_ref()),
        None => cause::<io::Error>(error).get_ref().and_then(|source| source.downcast_ref()),
    };
    source.unwrap_or_else(|| panic!("not a TLS error: {:?}", error.cause()))
}
