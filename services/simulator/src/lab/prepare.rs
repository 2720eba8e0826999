//! Creates the files that the containers need before they start, each once and in this order: keys and rights by
//! `muster auth init`, a certificate, nats-server's configuration, the files for devices that speak Margo's API, the
//! gateway's key of webhooks, all credentials, the repository.
//!
//! A step is done once its last file exists; an interrupted one is repeated.

use std::path::Path;

use data_encoding::BASE64;
use muster_identity::Role;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::files::{ACCOUNTS, PUBLIC, SECRET, certify, copy};
use super::{Lab, devices, fleet, folder, keep, muster, site};
use crate::config::lab::Prepare;
use crate::error::Error;
use crate::repository::Repository;

/// The data directory of nats-server, in its container.
const HUB_DATA: &str = "/data/state";
/// The folder with the prepared files of nats-server, in its container.
const HUB_FOLDER: &str = "/data/hub";
/// Bytes of a key that seals webhooks.
const WEBHOOK_KEY_BYTES: usize = 32;

/// Prepares a lab. Nothing that exists is changed, but for copies of what `muster auth` keeps.
///
/// # Errors
/// A folder that cannot be written, or a program that refuses.
pub(crate) async fn run_once(config: &Prepare) -> Result<(), Error> {
    let lab = &config.lab;
    for path in [lab.hub(), lab.join(), lab.dir.join("vault"), lab.dir.join("trust"), lab.dir.join("git")] {
        folder(&path)?;
    }
    if !lab.auth().exists() {
        let (auth, resolver) = (lab.auth().display().to_string(), format!("{HUB_DATA}/accounts"));
        muster(&["auth", "init", "--dir", &auth, "--resolver-dir", &resolver]).await?;
        tracing::info!(auth.dir = auth, "made the operator's keys");
    }
    certify(&config.names, &lab.hub(), &lab.authority())?;
    site::prepare(config).await?;
    devices::prepare(lab).await?;
    webhook_key(&lab.webhook_key())?;
    let accounts = lab.auth().join(ACCOUNTS);
    copy(&accounts, &lab.hub().join(ACCOUNTS), PUBLIC)?;
    keep(&lab.hub().join("hub.conf"), &hub_config(!config.sites.is_empty()), PUBLIC)?;
    distribute_credentials(lab)?;
    repository(lab).await
}

/// The configuration of nats-server. `include` is relative to the including file.
fn hub_config(with_sites: bool) -> String {
    let tls = format!("tls {{ cert_file: \"{HUB_FOLDER}/cert.pem\", key_file: \"{HUB_FOLDER}/key.pem\" }}");
    let sites = if with_sites { site::at_the_hub(&tls) } else { String::new() };
    format!(
        "# The hub of this lab, for nats-server. Made anew at every start.\n\
         server_name: hub\n\
         listen: \"0.0.0.0:4222\"\n\
         http: \"0.0.0.0:8222\"\n\
         websocket {{ listen: \"0.0.0.0:9222\", {tls} }}\n\
         jetstream {{ store_dir: \"{HUB_DATA}/jetstream\" }}\n\
         {tls}\n\
         {sites}\
         include \"{ACCOUNTS}\"\n"
    )
}

/// Makes the key that seals webhooks, unless it is there. The folder exists where a gateway mounts it.
fn webhook_key(file: &Path) -> Result<(), Error> {
    if file.exists() {
        return Ok(());
    }
    folder(file.parent().unwrap_or(file))?;
    let mut key = [0; WEBHOOK_KEY_BYTES];
    let random = SystemRandom::new().fill(&mut key);
    let refused =
        |_| Error::Prepare { path: file.to_owned(), source: std::io::Error::other("no random bytes") };
    random.map_err(refused)?;
    keep(file, &format!("{}\n", BASE64.encode(&key)), SECRET)
}

/// Copies each role's credentials into the folder of the service that uses them, where that folder exists: a lab mounts
/// those it needs.
fn distribute_credentials(lab: &Lab) -> Result<(), Error> {
    for role in Role::ALL.into_iter().filter(|role| role.is_everyday()) {
        // The keeper is a task of the rollup.
        let folder = if role == Role::Keeper { Role::Rollup } else { role };
        let (name, to) = (format!("{}.creds", role.as_str()), lab.dir.join("creds").join(folder.as_str()));
        if to.is_dir() {
            copy(&lab.auth().join("creds").join(&name), &to.join(&name), SECRET)?;
        }
    }
    Ok(())
}

/// A bare repository with the sample fleet as its first commit: made as one with files, whose files are then left out.
/// (Git would clone it through a shell, which a container of a lab does not have.)
async fn repository(lab: &Lab) -> Result<(), Error> {
    let (bare, work) = (lab.repository(), lab.dir.join("git/fleet.being-made"));
    if bare.exists() {
        return Ok(());
    }
    let remove = || match std::fs::remove_dir_all(&work) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Prepare { path: work.clone(), source })
        }
        _ => Ok(()),
    };
    remove()?;
    let repository = Repository::create(work.clone()).await?;
    fleet::FILES.iter().try_for_each(|(path, text)| repository.write(path, text))?;
    repository.commit("A fleet without devices").await?;
    repository.make_bare().await?;
    std::fs::rename(work.join(".git"), &bare)
        .map_err(|source| Error::Prepare { path: bare.clone(), source })?;
    tracing::info!(repository = %bare.display(), "made the repository");
    remove()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_key_of_webhooks_is_made_once_and_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = Lab { dir: dir.path().to_owned() }.webhook_key();
        webhook_key(&file).unwrap();
        let made = std::fs::read_to_string(&file).unwrap();
        assert_eq!(BASE64.decode(made.trim().as_bytes()).unwrap().len(), WEBHOOK_KEY_BYTES);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, SECRET);
        webhook_key(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), made);
    }
}
