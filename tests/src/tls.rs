//! A certificate for 127.0.0.1 from an authority of its own, made when a test runs. It names localhost, too: nats.js checks
//! that name where the address is an IP address.

use std::fs;
use std::path::{Path, PathBuf};

/// Writes certificate and key into a folder; the authority's certificate, and the server's lines of configuration.
///
/// # Panics
///
/// If the folder cannot be written.
pub fn certified(folder: &Path) -> (PathBuf, String) {
    let authority_key = rcgen::KeyPair::generate().expect("a key");
    let mut authority = rcgen::CertificateParams::new(Vec::new()).expect("no names");
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    // By a name of its own: OpenSSL takes a certificate for self-signed whose issuer is called as it is.
    authority.distinguished_name.push(rcgen::DnType::CommonName, "authority of the tests");
    let authority_file = folder.join("ca.pem");
    let own = authority.self_signed(&authority_key).expect("a certificate");
    fs::write(&authority_file, own.pem()).expect("a writable folder");

    let (key, issuer) =
        (rcgen::KeyPair::generate().expect("a key"), rcgen::Issuer::new(authority, authority_key));
    let certificate =
        rcgen::CertificateParams::new(["127.0.0.1", "localhost"].map(str::to_owned)).expect("a name");
    let signed = certificate.signed_by(&key, &issuer).expect("a certificate");
    fs::write(folder.join("cert.pem"), signed.pem()).expect("a writable folder");
    fs::write(folder.join("key.pem"), key.serialize_pem()).expect("a writable folder");
    let folder = folder.display();
    (authority_file, format!("tls {{ cert_file: \"{folder}/cert.pem\", key_file: \"{folder}/key.pem\" }}\n"))
}
