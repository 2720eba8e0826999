//! Enrols devices that ask: it enrols the key that a device wrote, commits the device's folder to the fleet, then writes the
//! JWT. In this order, so that an enrolled device is also in the fleet. An interrupted enrolment is repeated, because a
//! request stays until its JWT exists. A refused one is repeated at growing intervals and does not delay others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use muster_contract::DeviceKey;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use muster_service::health::Health;
use muster_service::supervisor::{Stage, Supervisor};
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, sleep};

use super::{Lab, muster, run};
use crate::config::lab::Admit;
use crate::error::Error;
use crate::repository::BRANCH;

/// Time between two looks for requests.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The most devices enrolled with one commit.
const BATCH_MAX: usize = 256;
/// Shortest delay before another attempt after a refusal.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Longest delay before another attempt: an operator who removed the cause may wait that long.
const RETRY_MAX: Duration = Duration::from_secs(30);
/// The validity of the JWT of a lab's device.
const VALID: &str = "365d";
/// The author of commits.
const AUTHOR: [&str; 4] = ["-c", "user.name=Muster lab", "-c", "user.email=lab@localhost"];

/// Lets devices in until it is asked to stop.
///
/// # Errors
/// The folder of requests is not there.
pub(crate) async fn start(config: Admit, supervisor: Supervisor) -> Result<(), Error> {
    let join = config.lab.join();
    std::fs::read_dir(&join).map_err(|source| Error::Prepare { path: join, source })?;
    let admitted = counter(supervisor.health());
    let stop = supervisor.token(Stage::Work);
    supervisor.spawn(Stage::Work, "admit", async move {
        let (mut refused, mut rng) = (Refused::default(), Rng::new());
        while stop.run_until_cancelled(sleep(POLL_INTERVAL)).await.is_some() {
            let look = enroll_requests(&config, &mut refused, Instant::now(), &mut rng);
            match stop.run_until_cancelled(look).await {
                Some(Ok(count)) => _ = admitted.inc_by(count),
                Some(Err(error)) => {
                    tracing::warn!(error = chain(&error), "cannot enrol all devices yet; trying again");
                }
                None => {}
            }
        }
    });
    Ok(())
}

fn counter(health: &Health) -> Counter {
    let admitted = Counter::default();
    health.metrics(|registry| registry.register("lab_admitted", "Devices enrolled", admitted.clone()));
    admitted
}

/// A device that asks for enrolment, with its public key.
type Request = (DeviceKey, String);

/// The refused requests.
#[derive(Debug, Default)]
struct Refused(BTreeMap<Request, Refusal>);

/// Why a request was refused, and when to repeat it.
#[derive(Debug)]
struct Refusal {
    reason: String,
    again: Instant,
    delays: FullJitter,
}

impl Refused {
    /// The requests to handle now: first those never refused, then those that have waited longest. Forgets the refusals of
    /// devices that no longer ask. `asking` is sorted.
    fn turn(&mut self, asking: Vec<Request>, now: Instant) -> Vec<Request> {
        self.0.retain(|request, _| asking.binary_search(request).is_ok());
        let again = |request: &Request| self.0.get(request).map(|refusal| refusal.again);
        let mut due: Vec<_> =
            asking.into_iter().filter(|request| again(request).is_none_or(|again| again <= now)).collect();
        due.sort_by_key(again);
        due.truncate(BATCH_MAX);
        due
    }

    /// Records a refusal, and logs it unless the last one of the request had the same reason.
    fn note(&mut self, request: Request, error: &Error, now: Instant, rng: &mut Rng) {
        let reason = chain(error);
        let (device, delays) = (request.0.clone(), FullJitter::new(RETRY_MIN, RETRY_MAX));
        let first = Refusal { reason: String::new(), again: now, delays };
        let refusal = self.0.entry(request).or_insert(first);
        refusal.again = now + refusal.delays.next(rng);
        if refusal.reason != reason {
            tracing::warn!(device = %device, error = reason, "cannot enrol a device yet");
            refusal.reason = reason;
        }
    }
}

/// Enrols the devices that ask now; returns their number.
async fn enroll_requests(
    config: &Admit,
    refused: &mut Refused,
    now: Instant,
    rng: &mut Rng,
) -> Result<u64, Error> {
    let lab = &config.lab;
    let mut enrolled = Vec::new();
    for (device, key) in refused.turn(requests(&lab.join())?, now) {
        match enrol(lab, &device, &key, &config.scratch).await {
            Ok(token) => enrolled.push((device, token)),
            Err(error) => refused.note((device, key), &error, now, rng),
        }
    }
    if enrolled.is_empty() {
        return Ok(0);
    }
    let devices: Vec<_> = enrolled.iter().map(|(device, _)| device.clone()).collect();
    add_folders(config, &devices).await?;
    for (device, token) in &enrolled {
        write_token(token, &lab.join().join(format!("{}_{}.jwt", device.site, device.device)))?;
        tracing::info!(device = %device, "enrolled device");
    }
    Ok(enrolled.len() as u64)
}

/// Devices with a key and no JWT.
fn requests(join: &Path) -> Result<Vec<Request>, Error> {
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
fn write_token(token: &Path, to: &Path) -> Result<(), Error> {
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
    use clap::Parser as _;

    use super::super::prepare;
    use super::*;
    use crate::config::{Cli, Settings};

    /// A public key of a user.
    const KEY: &str = "UBMGMZTGMZTGMZTGMZTGMZTGMZTGMZTGMZTGMZTGMZTGMZTGMZTGNGPY";

    fn settings(words: &[&str]) -> Settings {
        let words = [&["muster-simulator", "lab"], words].concat();
        Cli::try_parse_from(words).unwrap().check(7, PathBuf::new()).unwrap()
    }

    fn request(device: &str) -> Request {
        (format!("harbour/{device}").parse().unwrap(), KEY.to_owned())
    }

    #[tokio::test]
    async fn a_device_whose_enrolment_failed_once_is_enrolled_when_that_is_mended() {
        let (dir, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = dir.path().to_str().unwrap();
        let Settings::Prepare(config) = settings(&["prepare", "--dir", path]) else { panic!() };
        prepare::run_once(&config).await.unwrap();
        let repository = config.lab.repository().display().to_string();
        let scratch = scratch.path().to_str().unwrap();
        let words = ["admit", "--dir", path, "--repository", &repository, "--scratch", scratch];
        let Settings::Admit(config) = settings(&words) else { panic!() };
        let (auth, away) = (config.lab.auth(), dir.path().join("away"));
        std::fs::write(config.lab.join().join("harbour_crane.key"), KEY).unwrap();
        let (mut refused, mut rng, begin) = (Refused::default(), Rng::with_seed(1), Instant::now());

        std::fs::rename(&auth, &away).unwrap();
        assert_eq!(enroll_requests(&config, &mut refused, begin, &mut rng).await.unwrap(), 0);
        assert_eq!(refused.0.len(), 1);
        std::fs::rename(&away, &auth).unwrap();
        assert_eq!(enroll_requests(&config, &mut refused, begin + RETRY_MIN, &mut rng).await.unwrap(), 1);
        assert!(config.lab.join().join("harbour_crane.jwt").is_file());
    }

    #[test]
    fn refused_devices_delay_no_other_and_are_tried_again_and_again() {
        let (mut refused, mut rng, mut now) = (Refused::default(), Rng::with_seed(1), Instant::now());
        let error = Error::Refused { what: "muster enroll".to_owned(), said: "another key".to_owned() };
        let bad: Vec<_> = (0..2 * BATCH_MAX).map(|at| request(&format!("bad-{at:04}"))).collect();
        let all = [bad.clone(), vec![request("good")]].concat();
        let (mut turns, mut good_at) = (BTreeMap::<Request, u32>::new(), None);
        for round in 0..200 {
            for request in refused.turn(all.clone(), now) {
                if request == *all.last().unwrap() {
                    good_at = good_at.or(Some(round));
                } else {
                    *turns.entry(request.clone()).or_default() += 1;
                    refused.note(request, &error, now, &mut rng);
                }
            }
            now += RETRY_MAX;
        }
        assert!(good_at.is_some_and(|round| round <= 2), "{good_at:?}");
        assert!(bad.iter().all(|request| turns[request] > 50), "{turns:?}");
        assert!(refused.turn(vec![request("good")], now).len() == 1 && refused.0.is_empty());
    }

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
