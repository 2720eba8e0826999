//! A certificate for the hub from an authority of its own, whose key signs once and is not stored.

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// The certificate and key of a server, and the authority that its clients trust.
pub(super) struct Certified {
    /// The authority's certificate (PEM).
    pub(super) authority: String,
    /// The server's certificate (PEM).
    pub(super) certificate: String,
    /// The server's key (PEM).
    pub(super) key: String,
}

/// Makes a certificate for a server of these names (host names or IP addresses).
///
/// # Errors
/// A name that can be in no certificate.
pub(super) fn certified(names: &[String]) -> Result<Certified, rcgen::Error> {
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.distinguished_name.push(DnType::CommonName, "muster lab");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate()?;
    let mut server = CertificateParams::new(names.to_vec())?;
    server.distinguished_name.push(DnType::CommonName, "muster hub");
    let signed = server.signed_by(&key, &issuer)?;
    Ok(Certified { authority: own.pem(), certificate: signed.pem(), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_certificate_has_an_authority_of_its_own() {
        let names = ["nats".to_owned(), "127.0.0.1".to_owned()];
        let (one, other) = (certified(&names).unwrap(), certified(&names).unwrap());
        assert!(one.certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert!(one.key.contains("PRIVATE KEY"));
        assert_ne!(one.authority, other.authority);
        assert!(certified(&["ü".to_owned()]).is_err());
    }
}
