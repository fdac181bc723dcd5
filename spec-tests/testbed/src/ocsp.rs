//! Revocable server certificates, and OCSP responses about them, both valid and invalid.
//!
//! This module writes the responses byte by byte, without a library, so that they can be invalid in any way.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use rcgen::{
    CertificateParams, CertifiedIssuer, CustomExtension, ExtendedKeyUsagePurpose, KeyPair, PublicKeyData, SerialNumber,
    SigningKey, date_time_ymd,
};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::certificates::{authority_parameters, named, server_parameters};
use crate::folder::Folder;

type Issuer = CertifiedIssuer<'static, KeyPair>;
type HashOf = fn(&[u8]) -> Vec<u8>;
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Server certificates, all for `localhost`, `127.0.0.1` and `::1`. They differ in their serial numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revocable {
    /// A certificate signed by the authority.
    Plain,
    /// Like `Plain`, but requires a stapled response.
    MustStaple,
    /// Like `Plain`, but requires a different TLS feature.
    OtherFeature,
    /// Like `Plain`, followed by the certificate of [`Issuing::Impostor`].
    WithImpostor,
    /// A certificate signed by the intermediate authority, whose certificate follows.
    WithChain,
    /// A certificate signed by the authority below the intermediate authority; both certificates follow, in that order.
    WithLongChain,
}

/// An authority that issues certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issuing {
    /// The authority that clients trust.
    Authority,
    /// The intermediate authority, whose certificate the trusted authority signed.
    Between,
    /// The authority below the intermediate authority; the intermediate authority signed its certificate.
    Below,
    /// An authority with its own name, which clients do not trust.
    Other,
    /// An authority with the trusted authority's name and a different key.
    Impostor,
}

/// The signer of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// The issuer itself. Its certificate is not in the response.
    Issuer(Issuing),
    /// A delegate of the issuer. Its certificate is in the response.
    Delegate(Issuing, Delegate),
}

/// The rights that a delegate's certificate grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delegate {
    /// The right to sign responses.
    Authorized,
    /// Like `Authorized`, expired in 2001.
    Expired,
    /// Only the right to act as a TLS server.
    ForServers,
    /// No rights at all.
    Unspecified,
}

/// The status of the certificate in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The certificate is not revoked.
    Good,
    /// The certificate is revoked.
    Revoked,
    /// The responder does not know the certificate.
    Unknown,
}

/// The parts of a response that may have extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The response as a whole.
    Response,
    /// The entry about one certificate.
    Entry,
}

/// The contents of a response. The default response is about [`Revocable::Plain`], says "good", and is valid for a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseOptions {
    /// The certificate that the response is about.
    pub about: Revocable,
    /// The issuer of that certificate, according to the response.
    pub issuer: Issuing,
    /// The statuses in the response, one entry for each.
    pub says: Vec<Said>,
    /// The signer of the response.
    pub signer: Signer,
    /// Whether the response identifies the signer by the hash of its key instead of by its name.
    pub by_key: bool,
    /// Whether the response identifies the issuer by SHA-256 instead of SHA-1.
    pub sha256: bool,
    /// The age of the response in seconds. Negative if the response becomes valid only that many seconds from now.
    pub age: i64,
    /// How many more seconds the response is valid for. If it has already expired, this is negative: minus the number
    /// of seconds since then.
    pub holds: Option<i64>,
    /// Whether to change a bit in the signed part after signing.
    pub forged: bool,
    /// Where the response contains an unknown extension, if anywhere, and whether the extension is critical.
    pub extension: Option<(Place, bool)>,
    /// Whether the response names a signer other than the actual signer.
    pub misnamed: bool,
    /// The number of other delegates' certificates, with the same name and rights, that come before the delegate's own.
    pub namesakes: usize,
}

impl Default for ResponseOptions {
    fn default() -> Self {
        Self {
            about: Revocable::Plain,
            issuer: Issuing::Authority,
            says: vec![Said::Good],
            signer: Signer::Issuer(Issuing::Authority),
            by_key: false,
            sha256: false,
            age: 3_600,
            holds: Some(86_400),
            forged: false,
            extension: None,
            misnamed: false,
            namesakes: 0,
        }
    }
}

/// The authorities, and the certificate files, in a folder that is removed on drop.
pub struct OcspAuthority {
    folder: Folder,
    authority: Issuer,
    between: Issuer,
    below: Issuer,
    other: Issuer,
    impostor: Issuer,
}

impl OcspAuthority {
    /// Generates the authorities and writes the files.
    ///
    /// # Errors
    ///
    /// Returns the file system's error.
    pub fn create() -> io::Result<Self> {
        Self::with_responders(&[])
    }

    /// Like [`create`](Self::create), but the certificates name these responder URLs.
    ///
    /// # Errors
    ///
    /// Returns the file system's error.
    pub fn with_responders(urls: &[String]) -> io::Result<Self> {
        Self::try_create(urls).map_err(io::Error::other)
    }

    fn try_create(responders: &[String]) -> Result<Self, Failed> {
        let authority = Issuer::self_signed(authority_parameters("wharf authority"), KeyPair::generate()?)?;
        let between = authority_parameters("authority between");
        let between = Issuer::signed_by(between, KeyPair::generate()?, &authority)?;
        let below = Issuer::signed_by(authority_parameters("authority below"), KeyPair::generate()?, &between)?;
        let other = Issuer::self_signed(authority_parameters("other authority"), KeyPair::generate()?)?;
        let impostor = Issuer::self_signed(authority_parameters("wharf authority"), KeyPair::generate()?)?;
        let made = Self { folder: Folder::create("ocsp")?, authority, between, below, other, impostor };
        fs::write(made.authority_file(), made.authority.pem())?;
        for (revocable, issuer, feature, following) in [
            (Revocable::Plain, &made.authority, None, vec![]),
            (Revocable::MustStaple, &made.authority, Some(5), vec![]),
            (Revocable::OtherFeature, &made.authority, Some(17), vec![]),
            (Revocable::WithImpostor, &made.authority, None, vec![&made.impostor]),
            (Revocable::WithChain, &made.between, None, vec![&made.between]),
            (Revocable::WithLongChain, &made.below, None, vec![&made.below, &made.between]),
        ] {
            let key = KeyPair::generate()?;
            let mut parameters = server_parameters(&["localhost", "127.0.0.1", "::1"])?;
            parameters.serial_number = Some(SerialNumber::from(serial(revocable).to_vec()));
            let features = feature.map(|feature| element(0x30, &[&element(0x02, &[&[feature]])]));
            let features = features.map(|list| CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 24], list));
            parameters.custom_extensions.extend(features);
            if !responders.is_empty() {
                let method = element(0x06, &[&[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01]]);
                let entries = responders.iter().map(|url| element(0x30, &[&method, &element(0x86, &[url.as_bytes()])]));
                let list = element(0x30, &[&entries.collect::<Vec<_>>().concat()]);
                let information = CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], list);
                parameters.custom_extensions.push(information);
            }
            let certificate = parameters.signed_by(&key, issuer)?.pem();
            let following = following.iter().map(|issuer| issuer.pem()).collect::<String>();
            fs::write(made.file(revocable), [certificate, following, key.serialize_pem()].concat())?;
        }
        Ok(made)
    }

    /// Returns the file with the certificate of the authority that clients trust.
    #[must_use]
    pub fn authority_file(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// Returns the file with a server's certificate and its key.
    #[must_use]
    pub fn file(&self, revocable: Revocable) -> PathBuf {
        self.folder.path().join(format!("{revocable:?}.pem"))
    }

    /// Returns a response, in DER.
    ///
    /// # Panics
    ///
    /// Panics if a time in the options cannot be encoded.
    #[must_use]
    pub fn response(&self, options: &ResponseOptions) -> Vec<u8> {
        self.try_response(options).expect("the options can be encoded as a response")
    }

    fn try_response(&self, options: &ResponseOptions) -> Result<Vec<u8>, Failed> {
        let now = i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs())?;
        let issuer = self.issuer(options.issuer);
        let extension = |place| match options.extension {
            Some((wanted, critical)) if wanted == place => {
                let critical = if critical { element(0x01, &[&[0xff]]) } else { Vec::new() };
                let extension =
                    element(0x30, &[&element(0x06, &[&[0x2a, 0x03]]), &critical, &element(0x04, &[b"nothing"])]);
                element(0xa1, &[&element(0x30, &[&extension])])
            }
            _ => Vec::new(),
        };
        let (hash, algorithm): (HashOf, &[u8]) = match options.sha256 {
            false => (|bytes| Sha1::digest(bytes).to_vec(), &[0x2b, 0x0e, 0x03, 0x02, 0x1a]),
            true => (|bytes| Sha256::digest(bytes).to_vec(), &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01]),
        };
        let identifier = element(
            0x30,
            &[
                &element(0x30, &[&element(0x06, &[algorithm]), &element(0x05, &[])]),
                &element(0x04, &[&hash(&name(issuer.der())?)]),
                &element(0x04, &[&hash(issuer.key().der_bytes())]),
                &element(0x02, &[&serial(options.about)]),
            ],
        );
        let this_update = time_element(now - options.age)?;
        let next_update = options.holds.map(|holds| time_element(now + holds)).transpose()?;
        let next_update = next_update.map(|time| element(0xa0, &[&time])).unwrap_or_default();
        let mut entries = Vec::new();
        for said in &options.says {
            let said = match said {
                Said::Good => element(0x80, &[]),
                Said::Revoked => element(0xa1, &[&time_element(now - 2 * 86_400)?]),
                Said::Unknown => element(0x82, &[]),
            };
            entries.extend(element(0x30, &[&identifier, &said, &this_update, &next_update, &extension(Place::Entry)]));
        }

        let delegate_key = KeyPair::generate()?;
        let mut certificates = Vec::new();
        let (mut signer_name, key) = match options.signer {
            Signer::Issuer(issuing) => {
                let issuer = self.issuer(issuing);
                (name(issuer.der())?, issuer.key())
            }
            Signer::Delegate(issuing, delegate) => {
                let issuer = self.issuer(issuing);
                for _ in 0..options.namesakes {
                    let namesake = delegate_parameters(delegate).signed_by(&KeyPair::generate()?, issuer)?;
                    certificates.extend_from_slice(namesake.der());
                }
                let certificate = delegate_parameters(delegate).signed_by(&delegate_key, issuer)?;
                certificates.extend_from_slice(certificate.der());
                (name(certificate.der())?, &delegate_key)
            }
        };
        let mut key_hash = Sha1::digest(key.der_bytes()).to_vec();
        if options.misnamed {
            signer_name = name(self.other.der())?;
            key_hash = Sha1::digest(self.other.key().der_bytes()).to_vec();
        }
        let responder = match options.by_key {
            false => element(0xa1, &[&signer_name]),
            true => element(0xa2, &[&element(0x04, &[&key_hash])]),
        };
        let produced = time_element(now)?;
        let mut signed =
            element(0x30, &[&responder, &produced, &element(0x30, &[&entries]), &extension(Place::Response)]);
        let signature = key.sign(&signed)?;
        if options.forged {
            // Flips a bit in the last digit before the Z of the signing time. This changes the signing time by one
            // second and leaves everything else valid.
            let end = signed.windows(produced.len()).position(|bytes| bytes == produced).ok_or("it holds its time")?;
            signed[end + produced.len() - 2] ^= 1;
        }
        let certificates = match certificates.is_empty() {
            true => Vec::new(),
            false => element(0xa0, &[&element(0x30, &[&certificates])]),
        };
        let ecdsa_with_sha256 = element(0x30, &[&element(0x06, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02]])]);
        let signature = element(0x03, &[&[0], &signature]);
        let basic = element(0x30, &[&signed, &ecdsa_with_sha256, &signature, &certificates]);
        let kind = element(0x06, &[&[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01]]);
        let bytes = element(0xa0, &[&element(0x30, &[&kind, &element(0x04, &[&basic])])]);
        Ok(element(0x30, &[&element(0x0a, &[&[0]]), &bytes]))
    }

    fn issuer(&self, issuing: Issuing) -> &Issuer {
        match issuing {
            Issuing::Authority => &self.authority,
            Issuing::Between => &self.between,
            Issuing::Below => &self.below,
            Issuing::Other => &self.other,
            Issuing::Impostor => &self.impostor,
        }
    }
}

/// Returns a response that has this `responseStatus` and contains no answer.
#[must_use]
pub fn unsuccessful(status: u8) -> Vec<u8> {
    element(0x30, &[&element(0x0a, &[&[status]])])
}

fn serial(revocable: Revocable) -> [u8; 3] {
    [0x51, 0, revocable as u8]
}

fn delegate_parameters(delegate: Delegate) -> CertificateParams {
    let mut parameters = named(CertificateParams::default(), "responder");
    parameters.extended_key_usages = match delegate {
        Delegate::Authorized | Delegate::Expired => vec![ExtendedKeyUsagePurpose::OcspSigning],
        Delegate::ForServers => vec![ExtendedKeyUsagePurpose::ServerAuth],
        Delegate::Unspecified => Vec::new(),
    };
    if delegate == Delegate::Expired {
        (parameters.not_before, parameters.not_after) = (date_time_ymd(2000, 1, 1), date_time_ymd(2001, 1, 1));
    }
    parameters
}

/// Returns a certificate's subject, in DER.
fn name(certificate: &CertificateDer<'static>) -> Result<Vec<u8>, Failed> {
    let mut store = RootCertStore::empty();
    store.add(certificate.clone())?;
    Ok(element(0x30, &[&store.roots[0].subject]))
}

fn time_element(seconds: i64) -> Result<Vec<u8>, Failed> {
    let time = OffsetDateTime::from_unix_timestamp(seconds)?;
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    let text = format!("{year:04}{:02}{day:02}{hour:02}{minute:02}{second:02}Z", month as u8);
    Ok(element(0x18, &[text.as_bytes()]))
}

fn element(tag: u8, contents: &[&[u8]]) -> Vec<u8> {
    let contents = contents.concat();
    let length = contents.len();
    let head = match length {
        0..0x80 => vec![tag, length as u8],
        0x80..0x100 => vec![tag, 0x81, length as u8],
        _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
    };
    [head, contents].concat()
}
