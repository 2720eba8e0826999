//! The real processes that devices run, found by the identity in their environment: each deployment that shall run does
//! so once, and no other.

use std::collections::BTreeMap;
use std::path::Path;

use muster_contract::DeviceKey;

use crate::child::is_of;

/// Names a unit in the environment of its processes: `site/device/deployment/component/version`.
const UNIT_VARIABLE: &str = "MUSTER_UNIT=";

/// What is different between what devices shall run and what is there.
pub(super) fn differences(fleet: &Path, devices: &[(&DeviceKey, &BTreeMap<String, u64>)]) -> Vec<String> {
    let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
    for (device, apps) in devices {
        wanted.extend(apps.keys().map(|id| (format!("{device}/{id}/main"), 1)));
    }
    let found = running(fleet);
    let units = wanted.keys().chain(found.keys()).collect::<std::collections::BTreeSet<_>>();
    let differ = units.into_iter().filter(|unit| wanted.get(*unit) != found.get(*unit));
    differ
        .map(|unit| {
            let count = |counts: &BTreeMap<String, usize>| counts.get(unit).copied().unwrap_or_default();
            format!("{unit} runs {} times and shall run {} times", count(&found), count(&wanted))
        })
        .collect()
}

/// The main processes of units of a fleet, by unit without its version.
fn running(fleet: &Path) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // The rest of a group are children of its first.
        if group(&entry.path()) != Some(pid) {
            continue;
        }
        let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
        if !is_of(&environment, fleet) {
            continue;
        }
        let mut variables = environment.split(|byte| *byte == 0);
        let unit = variables.find_map(|variable| variable.strip_prefix(UNIT_VARIABLE.as_bytes()));
        let unit = unit.map(|unit| String::from_utf8_lossy(unit).into_owned());
        if let Some((name, _version)) = unit.as_deref().and_then(|unit| unit.rsplit_once('/')) {
            *found.entry(name.to_owned()).or_default() += 1;
        }
    }
    found
}

/// The process group of a process that is not a zombie.
fn group(process: &Path) -> Option<u32> {
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
    fn a_unit_that_runs_twice_or_should_not_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let start = |unit: &str| {
            Command::new("sleep")
                .arg("600")
                .env("MUSTER_UNIT", unit)
                .env("MUSTER_DATA_DIR", dir.path().join("device"))
                .process_group(0)
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        };
        let key: DeviceKey = "site-1/device-1".parse().unwrap();
        let apps = BTreeMap::from([("web".to_owned(), 3), ("log".to_owned(), 1)]);
        let mut children =
            vec![start("site-1/device-1/web/main/0123"), start("site-1/device-1/log/main/0123")];
        let look = || differences(dir.path(), &[(&key, &apps)]);
        // A child carries its environment from its exec on.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !look().is_empty() {
            assert!(std::time::Instant::now() < deadline, "{:?}", look());
            std::thread::yield_now();
        }
        children.push(start("site-1/device-1/web/main/4567"));
        children.push(start("site-1/device-1/old/main/0123"));
        while look().len() < 2 {
            assert!(std::time::Instant::now() < deadline, "{:?}", look());
            std::thread::yield_now();
        }
        let said = look().join("\n");
        assert!(said.contains("web/main runs 2 times") && said.contains("old/main runs 1 times"), "{said}");
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
