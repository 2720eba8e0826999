//! Reads the rollout of each level of a commit, and finds the one that governs each device. The nearer level wins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_contract::DeviceKey;
use muster_contract::labels::Labels;
use muster_contract::rollout::{Rollout, Wave};
use muster_domain::rollout::{group, matches};

use super::device_problems::DeviceProblems;
use crate::content::Content;
use crate::margo::{Level, rollout};
use crate::problems::Problems;

/// A `rollout.yaml` of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolloutFile {
    /// Its path from the root of the repository.
    pub path: String,
    /// Its content.
    pub rollout: Rollout,
}

/// All rollouts of a commit, each with the text of its file.
#[derive(Debug, Default)]
pub(super) struct LevelRollouts<'a>(BTreeMap<Level, (Arc<RolloutFile>, &'a [u8])>);

impl<'a> LevelRollouts<'a> {
    /// Reads a rollout.
    pub(super) fn read(&mut self, level: &Level, path: &str, text: &'a [u8], problems: &mut Problems) {
        if let Some((other, _)) = self.0.get(level) {
            problems.push(
                path,
                || None,
                "",
                format!("{} is there already, for the same devices", other.path),
            );
            return;
        }
        if let Some(rollout) = rollout::read(path, text, problems) {
            let file = RolloutFile { path: path.to_owned(), rollout };
            self.0.insert(level.clone(), (Arc::new(file), text));
        }
    }

    /// The rollout that governs each device, if one does. A wave that names devices, a site or labels and matches none of
    /// the governed devices is a problem: of the device if the rollout is in its folder, else of the commit. So is an order that names
    /// a deployment that none of them has.
    pub(super) fn compose(
        &self,
        devices: &BTreeSet<DeviceKey>,
        labels: &BTreeMap<DeviceKey, Arc<Labels>>,
        contents: &BTreeMap<DeviceKey, Vec<Arc<Content>>>,
        own: &mut DeviceProblems,
        problems: &mut Problems,
    ) -> BTreeMap<DeviceKey, Arc<RolloutFile>> {
        let (mut governed, mut members_of) =
            (BTreeMap::new(), BTreeMap::<&Level, BTreeSet<&DeviceKey>>::new());
        for key in devices {
            let levels = [Level::Device(key.clone()), Level::Site(key.site.clone()), Level::Fleet];
            if let Some((level, (file, _))) = levels.iter().find_map(|level| self.0.get_key_value(level)) {
                members_of.entry(level).or_default().insert(key);
                governed.insert(key.clone(), file.clone());
            }
        }
        for (level, (file, text)) in &self.0 {
            let members = members_of.remove(level).unwrap_or_default();
            let mut found = Problems::default();
            for (at, wave) in file.rollout.waves.iter().enumerate() {
                check_matches(file, text, at, wave, &members, labels, &mut found);
            }
            check_budget(file, text, &members, labels, &mut found);
            // A deployment of a device with a mistake may be missing here. The order then holds until the mistake is mended.
            if members.iter().all(|key| !own.devices.contains(*key)) {
                check_after(file, text, &members, contents, &mut found);
            }
            match level {
                // Without members: a tombstone has taken the device out of the fleet.
                Level::Device(_) if members.is_empty() => {}
                Level::Device(key) => own.add(key, found),
                Level::Site(_) | Level::Fleet => problems.extend(found),
            }
        }
        governed
    }
}

/// Refuses a budget that leaves a group nothing: its devices would never get a content.
fn check_budget(
    file: &RolloutFile,
    text: &[u8],
    members: &BTreeSet<&DeviceKey>,
    labels: &BTreeMap<DeviceKey, Arc<Labels>>,
    problems: &mut Problems,
) {
    let Some(budget) = &file.rollout.budget else { return };
    let none = Labels::new();
    let mut groups = BTreeMap::<&str, usize>::new();
    for key in members {
        let labels = labels.get(*key).map_or(&none, |labels| labels);
        *groups.entry(group(budget, labels)).or_default() += 1;
    }
    let Some((name, devices)) = groups.iter().find(|(_, devices)| budget.most_unavailable(**devices) == 0)
    else {
        return;
    };
    let label = &budget.group_by;
    let name = if name.is_empty() { format!("without {label}") } else { format!("with {label}={name}") };
    let rule = format!(
        "leaves no device of the group {name}, which has {devices}: its devices could never get a content"
    );
    let field = "budget.minAvailable";
    problems.push(&file.path, || rollout::line_of(text, field), field, rule);
}

/// Refuses an order that names a deployment that no governed device has: a misspelt name would order nothing.
fn check_after(
    file: &RolloutFile,
    text: &[u8],
    members: &BTreeSet<&DeviceKey>,
    contents: &BTreeMap<DeviceKey, Vec<Arc<Content>>>,
    problems: &mut Problems,
) {
    // A file that governs no device orders nothing.
    if file.rollout.after.is_empty() || members.is_empty() {
        return;
    }
    let of_members = members.iter().filter_map(|key| contents.get(*key)).flatten();
    let known: BTreeSet<_> = of_members.map(|content| content.id()).collect();
    for (id, others) in &file.rollout.after {
        for named in others.iter().chain([id]).filter(|named| !known.contains(named)) {
            let field = format!("after.{id}");
            let rule = format!(
                "'{named}' is no deployment of a device that this file governs: correct it, or take it out of `after`"
            );
            problems.push(&file.path, || rollout::line_of(text, &field), &field, rule);
        }
    }
}

/// Refuses a wave that names a device outside `members`, or a site or labels that no member has, unless it may be empty.
fn check_matches(
    file: &RolloutFile,
    text: &[u8],
    at: usize,
    wave: &Wave,
    members: &BTreeSet<&DeviceKey>,
    labels: &BTreeMap<DeviceKey, Arc<Labels>>,
    problems: &mut Problems,
) {
    let none = Labels::new();
    let matches = |key: &&&DeviceKey| matches(wave, key, labels.get(**key).map_or(&none, |labels| labels));
    let refuse = |problems: &mut Problems, field: &str, rule: String| {
        let field = format!("waves[{at}].{field}");
        problems.push(&file.path, || rollout::line_of(text, &field), &field, rule);
    };
    if wave.allow_empty || wave.percent.is_some() || wave.count.is_some() {
        return;
    }
    if let Some(stranger) = wave.devices.iter().find(|key| !members.contains(key)) {
        refuse(
            problems,
            "devices",
            format!("{stranger} is no device that this file governs; correct it, or set allowEmpty: true"),
        );
    } else if members.iter().find(matches).is_none() {
        let field = if wave.site.is_some() { "site" } else { "selector" };
        refuse(
            problems,
            field,
            "matches no device that this file governs; correct it, or set allowEmpty: true".to_owned(),
        );
    }
}
