//! Issues certificates for a test: an authority, the server's, and those of clients, with the URIs that the test chooses.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};

/// The trust domain of the tests.
pub(crate) const DOMAIN: &str = "example.org";
/// The workload fleet manager.
pub(crate) const MANAGER: &str = "spiffe://example.org/margo/wfm/main";

/// The SPIFFE id of a client of the tests.
pub(crate) fn client_id(name: &str) -> String {
    format!("{MANAGER}/client/{name}")
}

/// An authority with a folder for the certificates that it signs.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn create(folder: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let folder = folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { folder, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Signs a certificate with these URIs among its names.
    pub(crate) fn sign(
        &self,
        file: &str,
        uris: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Signed {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        params.subject_alt_names = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())).collect();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let signed = Signed {
            certificate: self.folder.join(format!("{file}.pem")),
            key: self.folder.join(format!("{file}.key")),
        };
        fs::write(&signed.certificate, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        fs::write(&signed.key, key.serialize_pem()).unwrap();
        signed
    }

    /// The server's certificate. It also names the loopback, for clients that check an address.
    pub(crate) fn server(&self) -> Signed {
        self.sign("server", &[MANAGER], |params| {
            params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        })
    }

    /// The certificate of a client of the tests.
    pub(crate) fn client(&self, name: &str) -> Signed {
        self.sign(name, &[&client_id(name)], |_| ())
    }
}

/// Files of a certificate and its key.
#[derive(Debug, Clone)]
pub(crate) struct Signed {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}
