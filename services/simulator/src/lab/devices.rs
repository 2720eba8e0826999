//! Devices that speak Margo's API: an authority that signs their certificates, the gateway's certificate for them, the gateway's
//! credentials, and the certificate of a first device. The authority's key stays in the vault, so that a person can sign more.

use std::path::Path;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::files::{PUBLIC, SECRET};
use super::{Lab, folder, keep, muster};
use crate::error::Error;

/// The gateway in SPIFFE ids.
const MANAGER: &str = "spiffe://lab.example/margo/wfm/main";
/// The name of the first device, which nobody has accepted yet.
const FIRST: &str = "press-1";
/// The addresses of the gateway: in the network of the containers, and on this machine.
const NAMES: [&str; 3] = ["gateway", "localhost", "127.0.0.1"];
/// The last file that is made.
const AUTHORITY: &str = "ca.pem";

/// Makes the files, unless they are there.
///
/// # Errors
/// A folder that cannot be written, or `muster` refuses.
pub(super) async fn prepare(lab: &Lab) -> Result<(), Error> {
    let (own, vault) = (lab.devices(), lab.dir.join("vault/devices"));
    folder(&own)?;
    folder(&vault)?;
    let creds = own.join("margo.creds");
    if !creds.exists() {
        let (auth, output) = (lab.auth().display().to_string(), creds.display().to_string());
        muster(&["auth", "creds", "margo", "--dir", &auth, "--output", &output]).await?;
    }
    if own.join(AUTHORITY).exists() {
        return Ok(());
    }
    sign_all(&own, &vault)?;
    tracing::info!(manager = MANAGER, "made the authority of devices that speak Margo's API");
    Ok(())
}

/// The authority's certificate is written last: with it all are there.
fn sign_all(own: &Path, vault: &Path) -> Result<(), Error> {
    let refused = |source| Error::Certificate { names: MANAGER.to_owned(), source };
    let key = KeyPair::generate().map_err(refused)?;
    let mut params = named("muster lab devices").map_err(refused)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = params.self_signed(&key).map_err(refused)?.pem();
    keep(&vault.join("ca.key"), &key.serialize_pem(), SECRET)?;
    let issuer = Issuer::new(params, key);
    let client = format!("{MANAGER}/client/{FIRST}");
    for (folder, name, uri, addresses) in
        [(vault, FIRST, client.as_str(), &[][..]), (own, "gateway", MANAGER, &NAMES[..])]
    {
        let (certificate, key) = signed(&issuer, name, uri, addresses).map_err(refused)?;
        keep(&folder.join(format!("{name}.key")), &key, SECRET)?;
        keep(&folder.join(format!("{name}.pem")), &certificate, PUBLIC)?;
    }
    keep(&own.join(AUTHORITY), &authority, PUBLIC)
}

fn named(name: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

/// A certificate of one URI and these addresses, and its key.
fn signed(
    issuer: &Issuer<'_, KeyPair>,
    name: &str,
    uri: &str,
    addresses: &[&str],
) -> Result<(String, String), rcgen::Error> {
    let addresses: Vec<String> = addresses.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(addresses)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names.push(SanType::URI(Ia5String::try_from(uri)?));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn files_for_margos_devices_are_made_once_and_keys_are_for_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        let lab = Lab { dir: dir.path().to_owned() };
        folder(&dir.path().join("vault")).unwrap();
        let auth = lab.auth().display().to_string();
        muster(&["auth", "init", "--dir", &auth, "--resolver-dir", "/accounts"]).await.unwrap();
        prepare(&lab).await.unwrap();
        let files = [
            ("devices/ca.pem", PUBLIC),
            ("devices/gateway.pem", PUBLIC),
            ("devices/gateway.key", SECRET),
            ("devices/margo.creds", SECRET),
            ("vault/devices/ca.key", SECRET),
            ("vault/devices/press-1.pem", PUBLIC),
            ("vault/devices/press-1.key", SECRET),
        ];
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let made: Vec<String> = files.iter().map(|(name, _)| read(name)).collect();
        for (name, mode) in files {
            let found = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
            assert_eq!(found, mode, "{name}");
        }
        prepare(&lab).await.unwrap();
        let again: Vec<String> = files.iter().map(|(name, _)| read(name)).collect();
        assert_eq!(made, again);
    }
}
