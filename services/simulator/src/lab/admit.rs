//! Lets devices in that ask: enrols the key that a device left, adds the device's folder to the fleet by a commit, then
//! leaves the JWT. In this order, so that a device that is in is also in the fleet; whatever is cut short is done again,
//! because a request stays until its JWT is there. One that is refused is tried again as well, ever more rarely: what was
//! in its way may be gone, and it is never in the way of others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use muster_contract::DeviceKey;
use muster_service::backoff::FullJitter;
use muster_service::error::chain;
use muster_service::health::Health;
use muster_service::life::{Life, Stage};
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, sleep};

use super::{Lab, muster, run};
use crate::config::lab::Admit;
use crate::error::Error;
use crate::repository::BRANCH;

/// Time between two looks for requests.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most devices let in at once: one commit for all of them.
const BATCH_MAX: usize = 256;
/// Bounds of the time before one that was refused is tried again.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// See [`AGAIN_MIN`]. Whoever mends what was wrong may wait for it.
const AGAIN_MAX: Duration = Duration::from_secs(30);
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
        let (mut refused, mut chance) = (Refused::default(), Rng::new());
        while stop.run_until_cancelled(sleep(LOOK_EVERY)).await.is_some() {
            let look = look(&config, &mut refused, Instant::now(), &mut chance);
            match stop.run_until_cancelled(look).await {
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

/// Somebody with a key.
type Request = (DeviceKey, String);

/// Those that were refused.
#[derive(Debug, Default)]
struct Refused(BTreeMap<Request, Refusal>);

/// Why somebody was refused, and when that is tried again.
#[derive(Debug)]
struct Refusal {
    words: String,
    again: Instant,
    delays: FullJitter,
}

impl Refused {
    /// Whose turn it is of those that ask: first who was never refused, then who has waited longest. Who asks no more is
    /// forgotten. `asking` is sorted.
    fn turn(&mut self, asking: Vec<Request>, now: Instant) -> Vec<Request> {
        self.0.retain(|request, _| asking.binary_search(request).is_ok());
        let again = |request: &Request| self.0.get(request).map(|refusal| refusal.again);
        let mut due: Vec<_> =
            asking.into_iter().filter(|request| again(request).is_none_or(|again| again <= now)).collect();
        due.sort_by_key(again);
        due.truncate(BATCH_MAX);
        due
    }

    /// Somebody was refused; says so unless it is what was said last.
    fn note(&mut self, request: Request, error: &Error, now: Instant, chance: &mut Rng) {
        let words = chain(error);
        let (device, delays) = (request.0.clone(), FullJitter::new(AGAIN_MIN, AGAIN_MAX));
        let first = Refusal { words: String::new(), again: now, delays };
        let refusal = self.0.entry(request).or_insert(first);
        refusal.again = now + refusal.delays.next(chance);
        if refusal.words != words {
            tracing::warn!(device = %device, error = words, "a device is not let in yet: tried again");
            refusal.words = words;
        }
    }
}

/// Lets in who asks now.
async fn look(config: &Admit, refused: &mut Refused, now: Instant, chance: &mut Rng) -> Result<u64, Error> {
    let lab = &config.lab;
    let mut let_in = Vec::new();
    for (device, key) in refused.turn(requests(&lab.join())?, now) {
        match enrol(lab, &device, &key, &config.scratch).await {
            Ok(token) => let_in.push((device, token)),
            Err(error) => refused.note((device, key), &error, now, chance),
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
    async fn a_device_whose_enrolment_failed_once_is_let_in_when_that_is_mended() {
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
        let (mut refused, mut chance, begin) = (Refused::default(), Rng::with_seed(1), Instant::now());

        std::fs::rename(&auth, &away).unwrap();
        assert_eq!(look(&config, &mut refused, begin, &mut chance).await.unwrap(), 0);
        assert_eq!(refused.0.len(), 1);
        std::fs::rename(&away, &auth).unwrap();
        assert_eq!(look(&config, &mut refused, begin + AGAIN_MIN, &mut chance).await.unwrap(), 1);
        assert!(config.lab.join().join("harbour_crane.jwt").is_file());
    }

    #[test]
    fn those_that_are_refused_take_nobodys_turn_and_have_their_own_again_and_again() {
        let (mut refused, mut chance, mut now) = (Refused::default(), Rng::with_seed(1), Instant::now());
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
                    refused.note(request, &error, now, &mut chance);
                }
            }
            now += AGAIN_MAX;
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
