//! Certificates and keys for TLS, generated for a test and removed after it.
//!
//! Every certificate has its own key. The exceptions are the client certificates `ClientRsa*`, which share one RSA key.
//! That key is part of this crate (`keys/`, in the forms that OpenSSL writes), because the library that generates the
//! certificates cannot generate RSA keys. None of the keys is a secret.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::folder::Folder;
use crate::mongod::MongodTls;

/// The password of every encrypted key.
pub const KEY_PASSWORD: &str = "wharf";

/// A server name that only a test's own resolver knows.
pub const SERVER_NAME: &str = "db.wharf.example";

const RSA: &str = include_str!("../keys/rsa.pem");
const RSA_PBES2: &str = include_str!("../keys/rsa-pbes2.pem");
const RSA_SCRYPT: &str = include_str!("../keys/rsa-scrypt.pem");
const RSA_DES3: &str = include_str!("../keys/rsa-des3.pem");
const RSA_LEGACY: &str = include_str!("../keys/rsa-legacy.pem");

/// A self-signed X.509 version 1 certificate for `CN=localhost,O=wharf`, and its key. rustls does not support version
/// 1.
pub const VERSION_1: &str = include_str!("../keys/version-1.pem");

/// The available files. Each holds certificates and the private key of the first certificate. The authorities' files
/// hold no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pem {
    /// The certificate of the default signing authority.
    Authority,
    /// The certificate of a second authority.
    OtherAuthority,
    /// The certificates of both authorities, with text around them. The second authority's certificate comes first.
    BothAuthorities,
    /// A server's certificate, for `localhost`, `127.0.0.1`, `::1` and [`SERVER_NAME`].
    Server,
    /// Like [`Server`](Pem::Server), expired in 2001.
    ExpiredServer,
    /// A server's certificate, for `other.example` and `192.0.2.1`.
    OtherNameServer,
    /// Like [`Server`](Pem::Server), signed by the second authority.
    OtherAuthoritysServer,
    /// Like [`Server`](Pem::Server), signed by an intermediate authority, whose certificate follows.
    ServerWithChain,
    /// Like [`Server`](Pem::Server), self-signed and marked as an authority, as `openssl req -x509` writes it.
    SelfSigned,
    /// Like [`SelfSigned`](Pem::SelfSigned), with the same subject and a different key.
    OtherSelfSigned,
    /// Like [`SelfSigned`](Pem::SelfSigned), expired in 2001.
    ExpiredSelfSigned,
    /// Like [`SelfSigned`](Pem::SelfSigned), but for `other.example`.
    OtherNameSelfSigned,
    /// Like [`SelfSigned`](Pem::SelfSigned), but for clients only.
    SelfSignedForClients,
    /// Like [`SelfSigned`](Pem::SelfSigned), with a key that may only sign certificates.
    SelfSignedForSigning,
    /// Like [`SelfSigned`](Pem::SelfSigned), but signed by the authority.
    SignedAuthorityAsServer,
    /// A client's certificate, with its key in PKCS#8. Its subject is `CN=client,O=wharf`.
    Client,
    /// Like [`Client`](Pem::Client), signed by an intermediate authority. The file holds the key and both certificates.
    ClientWithChain,
    /// Like [`Client`](Pem::Client), expired in 2001.
    ExpiredClient,
    /// Like [`Client`](Pem::Client), signed by the second authority.
    OtherAuthoritysClient,
    /// Like [`Client`](Pem::Client), with another certificate's key.
    ClientWithOtherKey,
    /// Like [`Client`](Pem::Client), with its key in SEC1.
    ClientSec1,
    /// Like [`Client`](Pem::Client), with an RSA key in PKCS#1.
    ClientRsaPkcs1,
    /// Like [`Client`](Pem::Client), with an RSA key in PKCS#8, encrypted with AES under PBKDF2.
    ClientRsaEncrypted,
    /// Like [`Client`](Pem::Client), with an RSA key in PKCS#8, encrypted with AES under scrypt.
    ClientRsaEncryptedScrypt,
    /// Like [`Client`](Pem::Client), with an RSA key in PKCS#8, encrypted with triple DES.
    ClientRsaEncryptedDes3,
    /// Like [`Client`](Pem::Client), with an RSA key in PKCS#1, encrypted with PEM's legacy scheme.
    ClientRsaLegacyEncrypted,
}

/// All the files, in a folder that is removed on drop.
#[derive(Debug)]
pub struct Certificates {
    folder: Folder,
}

type Issuer = CertifiedIssuer<'static, KeyPair>;

impl Certificates {
    /// Generates the certificates and writes the files.
    ///
    /// # Errors
    ///
    /// Returns the file system's error.
    pub fn create() -> io::Result<Self> {
        let certificates = Self { folder: Folder::create("certificates")? };
        certificates.write_all().map_err(io::Error::other)?;
        Ok(certificates)
    }

    /// Returns the path of a file.
    #[must_use]
    pub fn file(&self, pem: Pem) -> PathBuf {
        self.folder.path().join(format!("{pem:?}.pem"))
    }

    /// Returns the TLS options of a mongod that presents the certificate [`Pem::Server`] and trusts [`Pem::Authority`].
    #[must_use]
    pub fn of_mongod(&self, require_client_certificate: bool) -> MongodTls {
        MongodTls {
            certificate_key_file: self.file(Pem::Server),
            ca_file: self.file(Pem::Authority),
            require_client_certificate,
        }
    }

    /// Returns the folder that holds the files. A test may write other files into it; they are removed with the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn write_all(&self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let authority = Issuer::self_signed(authority_parameters("wharf authority"), KeyPair::generate()?)?;
        let other = Issuer::self_signed(authority_parameters("other authority"), KeyPair::generate()?)?;
        let between = authority_parameters("authority between");
        let between = Issuer::signed_by(between, KeyPair::generate()?, &authority)?;
        let local = ["localhost", "127.0.0.1", "::1", SERVER_NAME];

        self.write(Pem::Authority, authority.pem())?;
        self.write(Pem::OtherAuthority, other.pem())?;
        let both = format!("other\n{}\nand ours: one\n{}\n", other.pem(), authority.pem());
        self.write(Pem::BothAuthorities, both)?;

        self.write(Pem::Server, signed(server_parameters(&local)?, &authority)?.concat())?;
        self.write(Pem::ExpiredServer, signed(expired(server_parameters(&local)?), &authority)?.concat())?;
        let other_name = server_parameters(&["other.example", "192.0.2.1"])?;
        self.write(Pem::OtherNameServer, signed(other_name, &authority)?.concat())?;
        self.write(Pem::OtherAuthoritysServer, signed(server_parameters(&local)?, &other)?.concat())?;
        let [certificate, key] = signed(server_parameters(&local)?, &between)?;
        self.write(Pem::ServerWithChain, [certificate, between.pem(), key].concat())?;

        let own = |names: &[&str]| -> Result<CertificateParams, rcgen::Error> {
            let mut parameters = named(
                CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?,
                "server",
            );
            parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            Ok(parameters)
        };
        self.write(Pem::SelfSigned, self_signed(&own(&local)?)?)?;
        self.write(Pem::OtherSelfSigned, self_signed(&own(&local)?)?)?;
        self.write(Pem::ExpiredSelfSigned, self_signed(&expired(own(&local)?))?)?;
        self.write(Pem::OtherNameSelfSigned, self_signed(&own(&["other.example"])?)?)?;
        let mut for_clients = own(&local)?;
        for_clients.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.write(Pem::SelfSignedForClients, self_signed(&for_clients)?)?;
        let mut for_signing = own(&local)?;
        for_signing.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        self.write(Pem::SelfSignedForSigning, self_signed(&for_signing)?)?;
        self.write(Pem::SignedAuthorityAsServer, signed(own(&local)?, &authority)?.concat())?;

        let [certificate, key] = signed(client_parameters(), &authority)?;
        self.write(Pem::Client, [&*certificate, &key].concat())?;
        let sec1 = sections(&key, |der| Ok(("EC PRIVATE KEY", key_within(der)?)))?;
        self.write(Pem::ClientSec1, [&*certificate, &sec1].concat())?;
        let [_, other_key] = signed(client_parameters(), &authority)?;
        self.write(Pem::ClientWithOtherKey, [certificate, other_key].concat())?;
        let [certificate, key] = signed(client_parameters(), &between)?;
        self.write(Pem::ClientWithChain, [key, certificate, between.pem()].concat())?;
        self.write(Pem::ExpiredClient, signed(expired(client_parameters()), &authority)?.concat())?;
        self.write(Pem::OtherAuthoritysClient, signed(client_parameters(), &other)?.concat())?;

        let certificate = client_parameters().signed_by(&KeyPair::from_pem(RSA)?, &authority)?.pem();
        let pkcs1 = sections(RSA, |der| Ok(("RSA PRIVATE KEY", key_within(der)?)))?;
        self.write(Pem::ClientRsaPkcs1, [&*certificate, &pkcs1].concat())?;
        self.write(Pem::ClientRsaEncrypted, [&*certificate, RSA_PBES2].concat())?;
        self.write(Pem::ClientRsaEncryptedScrypt, [&*certificate, RSA_SCRYPT].concat())?;
        self.write(Pem::ClientRsaEncryptedDes3, [&*certificate, RSA_DES3].concat())?;
        self.write(Pem::ClientRsaLegacyEncrypted, [&*certificate, RSA_LEGACY].concat())?;
        Ok(())
    }

    fn write(&self, pem: Pem, text: String) -> io::Result<()> {
        fs::write(self.file(pem), text)
    }
}

pub(crate) fn named(mut parameters: CertificateParams, name: &str) -> CertificateParams {
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::OrganizationName, "wharf");
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}

pub(crate) fn authority_parameters(name: &str) -> CertificateParams {
    let mut parameters = named(CertificateParams::default(), name);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
}

pub(crate) fn server_parameters(names: &[&str]) -> Result<CertificateParams, rcgen::Error> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = named(CertificateParams::new(names)?, "server");
    parameters.use_authority_key_identifier_extension = true;
    // A mongod also connects to itself as a client.
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    Ok(parameters)
}

fn client_parameters() -> CertificateParams {
    let mut parameters = named(CertificateParams::default(), "client");
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    parameters
}

fn expired(mut parameters: CertificateParams) -> CertificateParams {
    (parameters.not_before, parameters.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
    parameters
}

/// Returns a certificate for a new key, and the key itself, both in PEM.
fn signed(parameters: CertificateParams, issuer: &Issuer) -> Result<[String; 2], rcgen::Error> {
    let key = KeyPair::generate()?;
    Ok([parameters.signed_by(&key, issuer)?.pem(), key.serialize_pem()])
}

/// Returns a certificate that is signed with its own new key, followed by the key, in PEM.
fn self_signed(parameters: &CertificateParams) -> Result<String, rcgen::Error> {
    let key = KeyPair::generate()?;
    Ok([parameters.self_signed(&key)?.pem(), key.serialize_pem()].concat())
}

type Converted = Result<(&'static str, Vec<u8>), Box<dyn std::error::Error + Send + Sync>>;

/// Converts the only section of a PEM file into a section of another kind.
fn sections(
    text: &str,
    convert: impl Fn(&[u8]) -> Converted,
) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject;

    let der = PrivatePkcs8KeyDer::from_pem_slice(text.as_bytes())?;
    let (label, der) = convert(der.secret_pkcs8_der())?;
    Ok(pem_rfc7468::encode_string(label, pem_rfc7468::LineEnding::LF, &der)?)
}

/// Returns the key inside a PKCS#8 document, in the format of the key's algorithm.
fn key_within(pkcs8: &[u8]) -> Result<Vec<u8>, pkcs8::der::Error> {
    use pkcs8::der::Decode;
    Ok(pkcs8::PrivateKeyInfoRef::from_der(pkcs8)?.private_key.as_bytes().to_vec())
}
