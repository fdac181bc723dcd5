//! Servers that listen on a Unix domain socket.

use wharf_testbed::folder::Folder;

use super::*;

#[tokio::test]
async fn mongod_is_reached_by_the_path_of_its_socket() {
    let folder = Folder::create("socket").unwrap();
    let socket_folder = Some(folder.path().to_path_buf());
    let mongod = Mongod::start(MongodOptions { socket_folder, ..MongodOptions::default() }).unwrap();
    let socket = mongod.socket(folder.path());
    // The proxy and the TCP options do not apply.
    let proxy = ProxyOptions::new("nonexistent.invalid");
    let connection = connect(options(socket.display()).proxy(proxy)).await.unwrap();
    assert_eq!(*connection.address(), *socket.to_string_lossy());
    assert_eq!((connection.local_address(), connection.peer_address()), (None, None));

    mongod.stop().unwrap();
    let error = refused(options(socket.display())).await;
    assert_refused(&error, Stage::Connect, OVERLOADED);
    let ConnectError { attempts, .. } = cause(&error);
    assert_eq!(attempts[0].peer, socket.to_string_lossy());
}

#[test]
fn invalid_socket_path_is_refused() {
    let path = format!("/{}.sock", "x".repeat(110));
    let error = options(&path).endpoint().unwrap_err();
    assert_eq!((error.option, error.value), ("hosts", Some(format!("{path:?}"))));
    assert!(error.problem.starts_with("must be the path of a Unix domain socket ("), "{}", error.problem);
    let error = wharf::Endpoint::new(&path).unwrap_err();
    assert_eq!(error.value, Some(format!("{path:?}")));
    assert_eq!(error.problem, "must be a path that a Unix domain socket can have on this platform, if it is a path");
}

#[tokio::test]
async fn mongod_with_tls_is_reached_by_its_socket_without_a_host_name_check() {
    let folder = Folder::create("socket").unwrap();
    let certificates = Certificates::create().unwrap();
    let tls = certificates.of_mongod(false);
    let socket_folder = Some(folder.path().to_path_buf());
    let mongod = Mongod::start(MongodOptions { tls: Some(tls), socket_folder, ..MongodOptions::default() }).unwrap();
    let host = mongod.socket(folder.path()).display().to_string();
    connect(options(&host).tls(trust(&certificates).allow_invalid_hostnames(true))).await.unwrap();
    let error = options(&host).tls(trust(&certificates)).endpoint().unwrap_err();
    assert_eq!(error.option, "tls");
    let other = TlsOptions::default().ca_file(certificates.file(Pem::OtherAuthority)).allow_invalid_hostnames(true);
    assert_refused(&refused(options(&host).tls(other)).await, Stage::Tls, Labels::NONE);
}
