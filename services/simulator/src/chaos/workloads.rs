//! Checks the real processes of devices, which it finds by the identity in their environment: each desired deployment runs
//! once, in the release that was published last, and no other process runs. It does not ask the agents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use muster_contract::DeviceKey;
use rustix::process::Pid;

use crate::child::is_of;

/// Names a unit in the environment of its processes: `site/device/deployment/component/version`.
const UNIT_VARIABLE: &str = "MUSTER_UNIT=";
/// The parameter with which every release starts its processes.
const RELEASE_VARIABLE: &str = "RELEASE=";

/// A unit without its version, and the release that its process was started with.
type Running = (String, String);

/// The differences between the workloads that devices should run and those that run.
pub(super) fn differences(fleet: &Path, devices: &[(&DeviceKey, &BTreeMap<String, u64>)]) -> Vec<String> {
    let mut wanted: BTreeMap<Running, usize> = BTreeMap::new();
    for (device, apps) in devices {
        let unit = |(id, release): (&String, &u64)| ((format!("{device}/{id}/main"), release.to_string()), 1);
        wanted.extend(apps.iter().map(unit));
    }
    let found = running(fleet);
    let all = wanted.keys().chain(found.keys()).collect::<BTreeSet<_>>();
    let differ = all.into_iter().filter(|unit| wanted.get(*unit) != found.get(*unit));
    differ
        .map(|unit| {
            let count = |counts: &BTreeMap<Running, usize>| counts.get(unit).copied().unwrap_or_default();
            let (name, release) = unit;
            let (runs, shall) = (count(&found), count(&wanted));
            format!("{name} at release {release} runs {runs} times and shall run {shall} times")
        })
        .collect()
}

/// The main processes of all units of a fleet.
pub(super) fn pids(fleet: &Path) -> Vec<Pid> {
    main_processes(fleet).into_iter().map(|(pid, _)| pid).collect()
}

/// How often each unit of a fleet runs, by its main processes.
fn running(fleet: &Path) -> BTreeMap<Running, usize> {
    let mut found = BTreeMap::new();
    for (_, unit) in main_processes(fleet) {
        *found.entry(unit).or_default() += 1;
    }
    found
}

fn main_processes(fleet: &Path) -> Vec<(Pid, Running)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // The rest of a group are children of its first.
        if group(&entry.path()) != Some(number) {
            continue;
        }
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        let unit = is_of(&environment, fleet).then(|| unit(&environment)).flatten();
        found.extend(Pid::from_raw(number).zip(unit));
    }
    found
}

/// The deployment that an environment names; `None` if it names none. Without a release, the release is "".
fn unit(environment: &[u8]) -> Option<Running> {
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        let value = variables.find_map(|variable| variable.strip_prefix(name.as_bytes()));
        value.map(|value| String::from_utf8_lossy(value).into_owned())
    };
    let unit = value(UNIT_VARIABLE)?;
    let (name, _version) = unit.rsplit_once('/')?;
    Some((name.to_owned(), value(RELEASE_VARIABLE).unwrap_or_default()))
}

/// The process group of a process that is not a zombie.
fn group(process: &Path) -> Option<i32> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    // The name may hold anything, a parenthesis too: it ends at the last one.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    (state != "Z").then_some(())?;
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_unit_that_runs_twice_or_should_not_or_in_an_old_release_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let start = |unit: &str, release: &str| {
            Command::new("sleep")
                .arg("600")
                .env("MUSTER_UNIT", unit)
                .env("RELEASE", release)
                .env("MUSTER_DATA_DIR", dir.path().join("device"))
                .process_group(0)
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        };
        let key: DeviceKey = "site-1/device-1".parse().unwrap();
        let mut apps = BTreeMap::from([("web".to_owned(), 3), ("log".to_owned(), 1)]);
        let mut children =
            vec![start("site-1/device-1/web/main/0123", "3"), start("site-1/device-1/log/main/0123", "1")];
        let look_for = |apps: &BTreeMap<String, u64>| differences(dir.path(), &[(&key, apps)]);
        let look = || look_for(&apps);
        // A child carries its environment from its exec on.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !look().is_empty() {
            assert!(std::time::Instant::now() < deadline, "{:?}", look());
            std::thread::yield_now();
        }
        children.push(start("site-1/device-1/web/main/4567", "3"));
        children.push(start("site-1/device-1/old/main/0123", "2"));
        while look().len() < 2 {
            assert!(std::time::Instant::now() < deadline, "{:?}", look());
            std::thread::yield_now();
        }
        let said = look().join("\n");
        for part in ["web/main at release 3 runs 2 times", "old/main at release 2 runs 1 times"] {
            assert!(said.contains(part), "{part} is missing: {said}");
        }
        apps.insert("log".to_owned(), 2);
        let said = look_for(&apps).join("\n");
        for part in ["log/main at release 1 runs 1 times", "log/main at release 2 runs 0 times"] {
            assert!(said.contains(part), "{part} is missing: {said}");
        }
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
