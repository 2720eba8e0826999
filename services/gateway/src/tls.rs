//! The TLS settings of a listener, from files. They are read once, at the start: a new certificate needs a restart.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, VerifierBuilderError};
use rustls::{RootCertStore, ServerConfig, version};

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The file holds no PEM of the kind that is needed.
    #[error("{} holds no {what} in PEM", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// The kind of item that was looked for.
        what: &'static str,
        /// The parser's reason.
        #[source]
        source: pem::Error,
    },
    /// The certificates of an authority cannot be used.
    #[error(
        "cannot use the certificates of clients' authorities (--client-ca, --grpc-client-ca): they must be authorities in PEM"
    )]
    Authority(#[source] rustls::Error),
    /// The lists of revoked certificates cannot be used.
    #[error(
        "cannot use the lists of revoked certificates (--grpc-crl): each must be a CRL of version 2 in PEM"
    )]
    RevocationList(#[source] rustls::Error),
    /// The certificate names another server.
    #[error(
        "the certificate for devices must name {wanted} and no other URI: its trust domain and WFM id are the server's"
    )]
    Identity {
        /// The server's identity.
        wanted: String,
    },
    /// Certificate and key cannot be used together.
    #[error("cannot use the certificate with its key: do the files belong together?")]
    Pair(#[source] rustls::Error),
}

impl From<VerifierBuilderError> for TlsError {
    fn from(error: VerifierBuilderError) -> Self {
        match error {
            VerifierBuilderError::InvalidCrl(error) => {
                Self::RevocationList(rustls::Error::InvalidCertRevocationList(error))
            }
            other => Self::Authority(rustls::Error::General(other.to_string())),
        }
    }
}

/// A certificate chain and its key.
#[derive(Debug)]
pub(crate) struct KeyPair {
    /// The certificate and its intermediates.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key.
    pub key: PrivateKeyDer<'static>,
}

impl KeyPair {
    /// Reads both files.
    ///
    /// # Errors
    /// One of them cannot be read, or is no PEM.
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = certificates(certificate)?;
        let bytes = read(key)?;
        let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|source| TlsError::Pem {
            path: key.to_owned(),
            what: "private key",
            source,
        })?;
        Ok(Self { chain, key })
    }
}

/// All certificates of a file.
///
/// # Errors
/// It cannot be read, or holds none.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    items(path, "certificate")
}

/// All lists of revoked certificates of a file.
///
/// # Errors
/// It cannot be read, or holds none.
pub(crate) fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    items(path, "list of revoked certificates")
}

/// Authorities as roots.
///
/// # Errors
/// One of them cannot be used.
pub(crate) fn roots(authorities: Vec<CertificateDer<'static>>) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).map_err(TlsError::Authority)?;
    }
    Ok(Arc::new(roots))
}

/// TLS for people: a certificate of the server, none of the client.
///
/// # Errors
/// Certificate and key do not belong together.
pub(crate) fn for_people(pair: KeyPair) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
    let builder = builder.map_err(TlsError::Pair)?.with_no_client_auth();
    let mut config = builder.with_single_cert(pair.chain, pair.key).map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// TLS 1.3 with a certificate of the server, and one of each client that a verifier accepts. Sessions are not resumed, so that
/// each connection proves its certificate.
///
/// # Errors
/// Certificate and key do not belong together.
pub(crate) fn for_clients(
    pair: KeyPair,
    verifier: Arc<dyn ClientCertVerifier>,
    protocol: &[u8],
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .map_err(TlsError::Pair)?
        .with_client_cert_verifier(verifier);
    let mut config = builder.with_single_cert(pair.chain, pair.key).map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The provider of cryptography, the same as that of the bus.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// All items of one kind of a file; there is at least one.
fn items<T: PemObject>(path: &Path, what: &'static str) -> Result<Vec<T>, TlsError> {
    let bytes = read(path)?;
    let pem = |source| TlsError::Pem { path: path.to_owned(), what, source };
    let found: Vec<T> = T::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(pem)?;
    if found.is_empty() { Err(pem(pem::Error::NoItemsFound)) } else { Ok(found) }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_used_with_its_own_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let made = rcgen::generate_simple_self_signed(["gateway.example".to_owned()]).unwrap();
        let certificate = write("cert.pem", &made.cert.pem());
        let key = write("key.pem", &made.signing_key.serialize_pem());
        assert!(for_people(KeyPair::read(&certificate, &key).unwrap()).is_ok());
        let other = rcgen::generate_simple_self_signed(["other.example".to_owned()]).unwrap();
        let other = write("other.pem", &other.signing_key.serialize_pem());
        assert!(matches!(for_people(KeyPair::read(&certificate, &other).unwrap()), Err(TlsError::Pair(_))));
        assert!(matches!(KeyPair::read(&key, &key), Err(TlsError::Pem { what: "certificate", .. })));
        assert!(matches!(KeyPair::read(&certificate, &certificate), Err(TlsError::Pem { .. })));
    }
}
