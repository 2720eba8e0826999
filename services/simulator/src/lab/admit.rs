//! Lets devices in that ask: enrols the key that a device left, adds the device's folder to the fleet by a commit, then
//! leaves the JWT. In this order, so that a device that is in is also in the fleet; whatever is cut short is done again,
//! because a request stays until its JWT is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_service::error::chain;
use muster_service::health::Health;
use muster_service::life::{Life, Stage};
use prometheus_client::metrics::counter::Counter;
use tokio::time::sleep;

use super::{Lab, muster, run};
use crate::config::lab::Admit;
use crate::error::Error;
use crate::repository::BRANCH;

/// Time between two looks for requests.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most devices let in at once: one commit for all of them.
const BATCH_MAX: usize = 256;
/// How long a device of a lab is let in.
const VALID: &str = "365d";
/// Whom commits are by.
const AUTHOR: [&str; 4] = ["-c", "user.name=Muster lab", "-c", "user.email=lab@localhost"];

/// Lets devices in until it is asked to stop.
///
/// # Errors
/// The folder of requests is not there.
pub async fn start(config: Admit, life: Life) -> Result<(), Error> {
    let join = config.lab.join();
    std::fs::read_dir(&join).map_err(|source| Error::Prepare { path: join, source })?;
    let admitted = counter(life.health());
    let stop = life.token(Stage::Work);
    life.spawn(Stage::Work, "admit", async move {
        let mut said = BTreeMap::new();
        while stop.run_until_cancelled(sleep(LOOK_EVERY)).await.is_some() {
            match stop.run_until_cancelled(look(&config, &mut said)).await {
                Some(Ok(count)) => _ = admitted.inc_by(count),
                Some(Err(error)) => {
                    tracing::warn!(error = chain(&error), "devices that asked are not in yet: tried again");
                }
                None => {}
            }
        }
    });
    Ok(())
}

fn counter(health: &Health) -> Counter {
    let admitted = Counter::default();
    health.metrics(|registry| registry.register("lab_admitted", "Devices let in", admitted.clone()));
    admitted
}

/// Lets in who asks now. `said` are those that were refused, so that it is said once.
async fn look(config: &Admit, said: &mut BTreeMap<DeviceKey, String>) -> Result<u64, Error> {
    let lab = &config.lab;
    let mut let_in = Vec::new();
    for (device, key) in requests(&lab.join())?.into_iter().take(BATCH_MAX) {
        if said.get(&device) == Some(&key) {
            continue;
        }
        match enrol(lab, &device, &key, &config.scratch).await {
            Ok(token) => let_in.push((device, token)),
            Err(error) => {
                tracing::warn!(device = %device, error = chain(&error), "a device is not let in");
                said.insert(device, key);
            }
        }
    }
    if let_in.is_empty() {
        return Ok(0);
    }
    let devices: Vec<_> = let_in.iter().map(|(device, _)| device.clone()).collect();
    add_folders(config, &devices).await?;
    for (device, token) in &let_in {
        leave(token, &lab.join().join(format!("{}_{}.jwt", device.site, device.device)))?;
        tracing::info!(device = %device, "let in");
    }
    Ok(let_in.len() as u64)
}

/// Devices with a key and no JWT.
fn requests(join: &Path) -> Result<Vec<(DeviceKey, String)>, Error> {
    let failed = |source| Error::Prepare { path: join.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(join).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(device) = named(&path) else { continue };
        if path.with_extension("jwt").exists() {
            continue;
        }
        // One that goes while it is looked at asks no more.
        if let Ok(key) = std::fs::read_to_string(&path) {
            found.push((device, key.trim().to_owned()));
        }
    }
    found.sort();
    Ok(found)
}

/// The device of `<site>_<device>.key`.
fn named(path: &Path) -> Option<DeviceKey> {
    let name = path.file_name()?.to_str()?.strip_suffix(".key")?;
    let (site, device) = name.split_once('_')?;
    Some(DeviceKey { site: site.parse().ok()?, device: device.parse().ok()? })
}

/// Enrols a key; where its JWT is.
async fn enrol(lab: &Lab, device: &DeviceKey, key: &str, scratch: &Path) -> Result<PathBuf, Error> {
    let token = scratch.join(format!("{}_{}.jwt", device.site, device.device));
    let (name, auth) = (device.to_string(), lab.auth());
    let (auth, file) = (auth.display().to_string(), token.display().to_string());
    muster(&["enroll", &name, "--key", key, "--valid", VALID, "--dir", &auth, "--output", &file]).await?;
    Ok(token)
}

/// Hands a JWT over as a whole: the scratch folder may be on another disk.
fn leave(token: &Path, to: &Path) -> Result<(), Error> {
    let beside = to.with_extension("jwt.new");
    let moved = std::fs::copy(token, &beside).and_then(|_| std::fs::rename(&beside, to));
    moved.map_err(|source| Error::Prepare { path: to.to_owned(), source })
}

/// Adds a folder for each device to the fleet, by a commit on top of whatever was pushed meanwhile.
async fn add_folders(config: &Admit, devices: &[DeviceKey]) -> Result<(), Error> {
    let clone = config.scratch.join("clone");
    let path = clone.display().to_string();
    if clone.exists() {
        git(&["-C", &path, "fetch", "--quiet", "origin", BRANCH]).await?;
        git(&["-C", &path, "reset", "--quiet", "--hard", "FETCH_HEAD"]).await?;
    } else {
        git(&["clone", "--quiet", "--branch", BRANCH, &config.repository, &path]).await?;
    }
    let mut new = 0;
    for device in devices {
        let folder = clone.join(format!("sites/{}/{}", device.site, device.device));
        if !folder.exists() {
            super::folder(&folder)?;
            super::keep(&folder.join(".gitkeep"), "", 0o644)?;
            new += 1;
        }
    }
    if new == 0 {
        return Ok(());
    }
    let message = match devices {
        [device] => format!("{device} joins"),
        devices => format!("{} devices join", devices.len()),
    };
    git(&["-C", &path, "add", "--all"]).await?;
    git(&[&["-C", &path], &AUTHOR[..], &["commit", "--quiet", "--message", &message]].concat()).await?;
    git(&["-C", &path, "push", "--quiet", "origin", &format!("HEAD:{BRANCH}")]).await
}

async fn git(args: &[&str]) -> Result<(), Error> {
    run(Path::new("git"), "git", args).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_key_without_a_jwt_under_a_name_of_a_device() {
        let join = tempfile::tempdir().unwrap();
        for name in ["harbour_b.key", "harbour_a.key", "harbour_in.key", "harbour_in.jwt", "noise", "_x.key"]
        {
            std::fs::write(join.path().join(name), "UKEY\n").unwrap();
        }
        let names: Vec<_> = requests(join.path())
            .unwrap()
            .into_iter()
            .map(|(device, key)| format!("{device} {key}"))
            .collect();
        assert_eq!(names, ["harbour/a UKEY", "harbour/b UKEY"]);
    }
}
