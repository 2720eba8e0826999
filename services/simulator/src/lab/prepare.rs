//! Creates the files that the containers need before they start, each once and in this order: keys and rights by
//! `muster auth init`, a certificate, nats-server's configuration, the files for devices that speak Margo's API, all
//! credentials, the repository.
//!
//! A step is done once its last file exists; an interrupted one is repeated.

use std::path::Path;

use muster_identity::Role;

use super::{Lab, PUBLIC, SECRET, certificate, devices, fleet, folder, keep, muster, site};
use crate::config::lab::Prepare;
use crate::error::Error;
use crate::repository::Repository;

/// The data directory of nats-server, in its container.
const HUB_DATA: &str = "/data/state";
/// The folder with the prepared files of nats-server, in its container.
const HUB_FOLDER: &str = "/data/hub";
/// The file of `muster auth` that nats-server includes.
pub(crate) const ACCOUNTS: &str = "nats-server.conf";

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
    let accounts = lab.auth().join(ACCOUNTS);
    copy(&accounts, &lab.hub().join(ACCOUNTS), PUBLIC)?;
    keep(&lab.hub().join("hub.conf"), &hub_config(!config.sites.is_empty()), PUBLIC)?;
    distribute_credentials(lab)?;
    repository(lab).await
}

/// Makes a certificate for a server of these names into its folder, and its authority's into a file for everybody.
pub(crate) fn certify(names: &[String], folder: &Path, authority: &Path) -> Result<(), Error> {
    // The authority is written last: with it the certificate is whole.
    if authority.exists() {
        return Ok(());
    }
    let made = certificate::certified(names)
        .map_err(|error| Error::Certificate { names: names.join(", "), source: error })?;
    keep(&folder.join("cert.pem"), &made.certificate, PUBLIC)?;
    keep(&folder.join("key.pem"), &made.key, SECRET)?;
    keep(authority, &made.authority, PUBLIC)?;
    tracing::info!(names = names.join(", "), "made a certificate");
    Ok(())
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

pub(super) fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Error> {
    let text =
        std::fs::read_to_string(from).map_err(|source| Error::Prepare { path: from.to_owned(), source })?;
    if std::fs::read_to_string(to).is_ok_and(|there| there == text) {
        return Ok(());
    }
    keep(to, &text, mode)
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
