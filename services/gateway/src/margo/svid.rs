//! Reads the identity in a client's certificate, an X.509-SVID: exactly one URI among its names, of this server's trust domain and
//! manager, in a leaf that signs no certificates. The handshake refuses any other certificate.
//!
//! It does not decide whether the identity is accepted: [`caller`](super::caller) does, with each request.

use std::sync::Arc;

use muster_contract::http_device::ClientIdentity;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use webpki::EndEntityCert;

use crate::tls::{self, KeyPair, TlsError};

/// The extension `keyUsage` in DER: its object identifier.
const KEY_USAGE: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x0f];
/// The bits keyCertSign and cRLSign of its first octet.
const SIGNS_CERTIFICATES: u8 = 0b0000_0110;
/// Octets after the identifier in which the bits are.
const KEY_USAGE_OCTETS: usize = 12;

/// The server's own identity, to which its clients belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realm {
    /// `spiffe://<trust domain>/margo/wfm/<manager>`.
    pub manager: String,
}

impl Realm {
    /// The identity of a client's certificate; `None` if it has none of this realm.
    pub fn client(&self, certificate: &CertificateDer<'_>) -> Option<ClientIdentity> {
        let identity: ClientIdentity = only_uri(certificate)?.parse().ok()?;
        (identity.manager() == self.manager && !signs_certificates(certificate)).then_some(identity)
    }

    /// Whether a certificate is this server's own.
    pub fn is_own(&self, certificate: &CertificateDer<'_>) -> bool {
        only_uri(certificate).is_some_and(|uri| uri == self.manager)
    }
}

/// The only URI among a certificate's names.
pub(crate) fn only_uri(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut uris = certificate.valid_uri_names();
    let uri = uris.next()?.to_owned();
    uris.next().is_none().then_some(uri)
}

/// Whether the extension `keyUsage` permits signing certificates or revocation lists. It searches the whole
/// certificate for the identifier, and so may refuse a good certificate that has those bytes by chance.
pub(crate) fn signs_certificates(certificate: &[u8]) -> bool {
    let permits = |window: &[u8]| {
        let rest = window.iter().skip(KEY_USAGE.len()).copied().collect::<Vec<_>>();
        // BIT STRING: tag, length, unused bits, first octet.
        let at = rest.windows(2).position(|pair| pair[0] == 0x03 && matches!(pair[1], 2 | 3));
        at.and_then(|at| rest.get(at + 3)).is_none_or(|bits| bits & SIGNS_CERTIFICATES != 0)
    };
    certificate.windows(KEY_USAGE.len()).enumerate().filter(|(_, window)| *window == KEY_USAGE).any(
        |(at, _)| permits(&certificate[at..certificate.len().min(at + KEY_USAGE.len() + KEY_USAGE_OCTETS)]),
    )
}

/// TLS for devices: the server's certificate, and one of each client that an authority has signed and that names a client of the
/// realm.
///
/// # Errors
/// Certificate, key or authorities cannot be used, or the certificate is not the server's.
pub(crate) fn for_devices(
    pair: KeyPair,
    authorities: Vec<CertificateDer<'static>>,
    realm: Realm,
) -> Result<Arc<ServerConfig>, TlsError> {
    if !pair.chain.first().is_some_and(|own| realm.is_own(own)) {
        return Err(TlsError::Identity { wanted: realm.manager });
    }
    let roots = tls::roots(authorities)?;
    let inner = WebPkiClientVerifier::builder_with_provider(roots, tls::provider()).build()?;
    tls::for_clients(pair, Arc::new(SvidVerifier { inner, realm }), b"http/1.1")
}

/// Checks a client's certificate by its chain, and then its identity.
#[derive(Debug)]
struct SvidVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    realm: Realm,
}

impl ClientCertVerifier for SvidVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        match self.realm.client(end_entity) {
            Some(_) => Ok(verified),
            None => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyUsagePurpose, SanType};

    use super::*;

    const CLIENT: &str = "spiffe://example.org/margo/wfm/main/client/press-4";

    fn certificate(uris: &[&str], usages: &[KeyUsagePurpose]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let uri = |uri: &&str| SanType::URI((*uri).try_into().unwrap());
        params.subject_alt_names = uris.iter().map(uri).collect();
        params.key_usages = usages.to_vec();
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn realm() -> Realm {
        Realm { manager: "spiffe://example.org/margo/wfm/main".to_owned() }
    }

    #[test]
    fn a_client_has_one_uri_of_this_trust_domain_and_manager() {
        let named = |uris: &[&str]| realm().client(&certificate(uris, &[]));
        assert_eq!(named(&[CLIENT]).unwrap().as_str(), CLIENT);
        for uris in [
            &[][..],
            &[CLIENT, CLIENT],
            &["spiffe://example.com/margo/wfm/main/client/press-4"],
            &["spiffe://example.org/margo/wfm/other/client/press-4"],
            &["spiffe://example.org/margo/wfm/main"],
            &["https://example.org/margo/wfm/main/client/press-4"],
        ] {
            assert_eq!(named(uris), None, "{uris:?}");
        }
        assert!(realm().is_own(&certificate(&["spiffe://example.org/margo/wfm/main"], &[])));
        assert!(!realm().is_own(&certificate(&[CLIENT], &[])));
    }

    #[test]
    fn a_certificate_that_signs_others_is_refused() {
        use KeyUsagePurpose::{CrlSign, DigitalSignature, KeyAgreement, KeyCertSign};
        let accepted = |usages: &[KeyUsagePurpose]| realm().client(&certificate(&[CLIENT], usages)).is_some();
        assert!(accepted(&[DigitalSignature]) && accepted(&[DigitalSignature, KeyAgreement]));
        for usages in [&[KeyCertSign][..], &[CrlSign], &[DigitalSignature, KeyCertSign]] {
            assert!(!accepted(usages), "{usages:?}");
        }
    }
}
