//! Reads the files of a commit into a fleet: its devices, and the deployments of each.
//!
//! ```text
//! fleet/*.yaml                    every device
//! sites/<site>/*.yaml             the devices of a site
//! sites/<site>/<device>/*.yaml    one device, which exists because the folder does
//! …/labels.yaml                   in any of these folders: the labels of its devices
//! …/rollout.yaml                  in any of these folders: holds changes of its devices until they are released
//! applications/…/margo.yaml       the catalogue: rules of the deployments that name an application
//! sites/<site>/<device>/device.yaml    a tombstone: `retired: true` takes the device out of the fleet
//! ```
//!
//! The nearer level wins on the same deployment id, and on the same label; of several rollouts the nearest governs a device.
//! Other folders at the top are ignored. A mistake that concerns one device holds that device back, which keeps its desired
//! state; any other mistake refuses the whole commit, and with a strict policy every mistake does. This module does no I/O.

mod device_problems;
mod level_labels;
mod level_rollouts;

use std::collections::btree_map::Entry as MapEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use muster_contract::application::is_catalogue_file;
use muster_contract::labels::Labels;
use muster_contract::{DeploymentId, DeviceKey, LabelError};
use muster_domain::plans::is_of_plan;

use self::device_problems::DeviceProblems;
use self::level_labels::LevelLabels;
use self::level_rollouts::LevelRollouts;
pub(crate) use self::level_rollouts::RolloutFile;
use crate::content::{Content, Interner, OF_A_PLAN};
use crate::margo::application::{self, Catalogue};
use crate::margo::{self, Level, labels, rollout, tombstone};
use crate::plan::{LimitExceeded, others_over_limit};
use crate::problems::Problems;

/// Files of one commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// The commit's id.
    pub revision: String,
    /// Its files, by path.
    pub files: Vec<File>,
}

/// One file of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its path from the root of the repository, `/` between folders.
    pub path: String,
    /// Its content.
    pub body: Body,
}

/// The content at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A file that the publisher reads ([`wants`]).
    Text(Bytes),
    /// A file that it would read if it were not so large; its size in bytes.
    TooLong(u64),
    /// A file that it does not read: the file only makes its folder exist.
    Unread,
    /// A symbolic link.
    Link,
    /// A repository within the repository.
    Submodule,
}

/// How mistakes and removed folders are handled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// Any mistake refuses the whole commit.
    pub strict: bool,
    /// A device whose folder is gone is retired.
    pub retire_removed: bool,
    /// No rollout holds a change.
    pub ignore_rollouts: bool,
}

/// The fleet of a commit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    /// The policy of the reading.
    pub policy: Policy,
    /// The commit.
    pub revision: String,
    /// The deployments of each device, ordered by id; empty for a device without deployments.
    pub devices: BTreeMap<DeviceKey, Vec<Arc<Content>>>,
    /// The labels of each device that has some.
    pub labels: BTreeMap<DeviceKey, Arc<Labels>>,
    /// The rollout that governs a device, if one does.
    pub rollouts: BTreeMap<DeviceKey, Arc<RolloutFile>>,
    /// Devices with a tombstone; they are not in `devices`.
    pub retired: BTreeSet<DeviceKey>,
    /// Devices of `devices` with a mistake that concerns only them.
    pub held_back: BTreeSet<DeviceKey>,
    /// Those mistakes.
    pub withheld: Problems,
    /// The applications.
    pub catalogue: Arc<Catalogue>,
}

impl Fleet {
    /// Whether a device has a folder without a tombstone.
    pub fn has(&self, key: &DeviceKey) -> bool {
        self.devices.contains_key(key)
    }

    /// The labels of a device.
    pub fn labels_of(&self, key: &DeviceKey) -> Arc<Labels> {
        self.labels.get(key).cloned().unwrap_or_default()
    }
}

/// True for a path whose content [`read`] needs.
pub fn wants(path: &str) -> bool {
    is_catalogue_file(path) || is_in_fleet_folder(path) && is_yaml(path)
}

/// Reads a commit.
///
/// # Errors
/// All problems of the commit, by file, line, field and rule.
pub fn read(tree: &Tree, policy: Policy) -> Result<Fleet, Problems> {
    let mut reader = TreeReader::default();
    let is_relevant = |file: &&File| {
        let is_at_top = !file.path.contains('/');
        is_in_fleet_folder(&file.path)
            || is_catalogue_file(&file.path)
            || resembles_fleet_folder(&file.path)
            || (is_at_top && rollout::is_one(&file.path))
    };
    let mut files: Vec<_> = tree.files.iter().filter(is_relevant).collect();
    // The catalogue comes first: its rules hold for the deployments.
    let rank = |file: &File| !is_catalogue_file(&file.path);
    files.sort_by(|one, other| (rank(one), &one.path).cmp(&(rank(other), &other.path)));
    for file in files {
        reader.file(file);
    }
    reader.check_tombstones();
    let devices: BTreeMap<_, _> =
        reader.devices.iter().map(|key| (key.clone(), reader.compose(key))).collect();
    reader.check_limits();
    let TreeReader { level_labels, level_rollouts, devices: keys, interner, own, problems, .. } = &mut reader;
    let labels = level_labels.compose(keys, interner, own);
    let governed = level_rollouts.compose(keys, &labels, &devices, own, problems);
    let rollouts = if policy.ignore_rollouts { BTreeMap::new() } else { governed };
    let TreeReader {
        retired,
        own: DeviceProblems { devices: held_back, problems: withheld },
        mut problems,
        catalogue,
        ..
    } = reader;
    let catalogue = Arc::new(catalogue);
    // If every device is held back, the commit is refused.
    if policy.strict || held_back.len() >= devices.len() {
        problems.extend(withheld);
        let revision = tree.revision.clone();
        return problems.or(Fleet {
            policy,
            revision,
            devices,
            labels,
            rollouts,
            retired,
            catalogue,
            ..Fleet::default()
        });
    }
    let revision = tree.revision.clone();
    problems.or(Fleet {
        policy,
        revision,
        devices,
        labels,
        rollouts,
        retired,
        held_back,
        withheld,
        catalogue,
    })
}

/// Refuses a commit without devices, which would empty the fleet: a wrong repository or branch looks like one.
///
/// # Errors
/// The commit has no device.
pub(crate) fn check_not_empty(fleet: &Fleet) -> Result<(), Problems> {
    let mut problems = Problems::default();
    if fleet.devices.is_empty() {
        let rule = "has no device folder (sites/<site>/<device>/), so no device would run anything any more: check the \
                    repository and the branch; if it is intended, start the publisher with --allow-empty";
        problems.push("sites", || None, "", rule);
    }
    problems.or(())
}

/// The device whose folder has a path, and the level of its documents if documents are read there.
#[derive(Debug, Default, PartialEq, Eq)]
struct PathScope {
    device: Option<DeviceKey>,
    level: Option<Level>,
}

fn scope(path: &str) -> Result<PathScope, LabelError> {
    let folders: Vec<_> = path.split('/').collect();
    match folders[..] {
        ["fleet", _] => Ok(PathScope { device: None, level: Some(Level::Fleet) }),
        ["sites", site, _] => Ok(PathScope { device: None, level: Some(Level::Site(site.parse()?)) }),
        ["sites", site, device, _, ..] => {
            let key = DeviceKey { site: site.parse()?, device: device.parse()? };
            let level = (folders.len() == 4).then(|| Level::Device(key.clone()));
            Ok(PathScope { device: Some(key), level })
        }
        _ => Ok(PathScope::default()),
    }
}

/// The folders that the publisher reads.
const FOLDERS: [&str; 2] = ["fleet", "sites"];

fn is_in_fleet_folder(path: &str) -> bool {
    path.split_once('/').is_some_and(|(top, _)| FOLDERS.contains(&top))
}

/// Whether a path is one of the folders in other letters, or a file of that name. Ignoring it would remove its deployments
/// from every device.
fn resembles_fleet_folder(path: &str) -> bool {
    let (top, is_folder) = path.split_once('/').map_or((path, false), |(top, _)| (top, true));
    let folder = FOLDERS.into_iter().find(|folder| top.eq_ignore_ascii_case(folder));
    folder.is_some_and(|folder| top != folder || !is_folder)
}

fn is_yaml(path: &str) -> bool {
    let end = path.rsplit_once('.').map(|(_, end)| end);
    end.is_some_and(|end| end.eq_ignore_ascii_case("yaml") || end.eq_ignore_ascii_case("yml"))
}

/// A deployment, with its file and the index of its document there.
type SourcedContent<'a> = (Arc<Content>, &'a File, usize);
/// The deployments of one level by id.
type LevelDeployments<'a> = BTreeMap<DeploymentId, SourcedContent<'a>>;

#[derive(Default)]
struct TreeReader<'a> {
    levels: BTreeMap<Level, LevelDeployments<'a>>,
    devices: BTreeSet<DeviceKey>,
    level_labels: LevelLabels<'a>,
    level_rollouts: LevelRollouts<'a>,
    interner: Interner,
    /// Devices with a tombstone.
    retired: BTreeSet<DeviceKey>,
    /// Mistakes that concern one device.
    own: DeviceProblems,
    problems: Problems,
    catalogue: Catalogue,
}

impl<'a> TreeReader<'a> {
    fn file(&mut self, file: &'a File) {
        if is_catalogue_file(&file.path) {
            return self.application(file);
        }
        match scope(&file.path) {
            Err(error) => self.refuse(file, format!("folder {error}")),
            Ok(PathScope { device: Some(key), level }) => {
                self.devices.insert(key.clone());
                // The problems of this file concern only this device.
                let others = std::mem::take(&mut self.problems);
                self.body(file, level);
                let found = std::mem::replace(&mut self.problems, others);
                self.own.add(&key, found);
            }
            Ok(PathScope { device: None, level }) => self.body(file, level),
        }
    }

    fn body(&mut self, file: &'a File, level: Option<Level>) {
        match (&file.body, level) {
            (Body::Link, _) => {
                self.refuse(file, "is a symbolic link, and only files are read: replace it by a copy");
            }
            (Body::Submodule, _) => {
                self.refuse(file, "is a submodule, and its files are not read: copy them");
            }
            _ if resembles_fleet_folder(&file.path) => {
                self.refuse(
                    file,
                    "is not read: the folders are named fleet and sites, in lower case; rename it",
                );
            }
            (_, Some(_)) if !is_yaml(&file.path) => {}
            (Body::Text(text), Some(Level::Device(key))) if tombstone::is_one(&file.path) => {
                if tombstone::read(&file.path, text, &mut self.problems) {
                    self.retired.insert(key);
                }
            }
            (Body::Text(text), Some(level)) if labels::is_labels(&file.path) => {
                self.level_labels.read(&level, &file.path, text, &mut self.problems);
            }
            (Body::Text(text), Some(level)) if rollout::is_one(&file.path) => {
                self.level_rollouts.read(&level, &file.path, text, &mut self.problems);
            }
            (Body::TooLong(bytes), Some(_)) => self.refuse(file, margo::too_long(*bytes)),
            (Body::Text(text), Some(level)) => {
                for entry in margo::read(&file.path, text, &level, &mut self.problems) {
                    self.insert(&level, file, entry);
                }
            }
            (_, None) if rollout::is_one(&file.path) => self.refuse(
                file,
                "is not read here: a rollout governs the devices of fleet/, sites/<site>/ or sites/<site>/<device>/; move it",
            ),
            (_, None) if is_yaml(&file.path) => self.refuse(
                file,
                "is not read here: deployments belong in fleet/, sites/<site>/ or sites/<site>/<device>/",
            ),
            (Body::Text(_) | Body::TooLong(_) | Body::Unread, _) => {}
        }
    }

    fn application(&mut self, file: &'a File) {
        match &file.body {
            Body::Text(text) => self.catalogue.read(&file.path, text, &mut self.problems),
            Body::TooLong(bytes) => self.refuse(file, margo::too_long(*bytes)),
            Body::Link | Body::Submodule => self.refuse(file, "is no file, and only files are read: copy it"),
            Body::Unread => {}
        }
    }

    fn insert(&mut self, level: &Level, file: &'a File, entry: margo::Entry) {
        let broken = self.catalogue.check(&entry.content);
        if let Body::Text(text) = &file.body {
            application::push(&file.path, text, entry.document, broken, &mut self.problems);
            if is_of_plan(entry.content.application_id()) {
                let line = || margo::line_of_document(text, entry.document);
                self.problems.push(&file.path, line, "spec.applicationId", OF_A_PLAN);
            }
        }
        let content = self.interner.share(entry.content);
        match self.levels.entry(level.clone()).or_default().entry(content.id().clone()) {
            MapEntry::Vacant(slot) => {
                slot.insert((content, file, entry.document));
            }
            MapEntry::Occupied(slot) => {
                let (_, other, document) = slot.get();
                let line = |file: &File, document| match &file.body {
                    Body::Text(text) => margo::line_of_document(text, document),
                    _ => None,
                };
                let place = line(other, *document).map_or_else(String::new, |line| format!(":{line}"));
                let rule =
                    format!("'{}' is in {}{place} already, for the same devices", slot.key(), other.path);
                self.problems.push(&file.path, || line(file, entry.document), "id", rule);
            }
        }
    }

    fn refuse(&mut self, file: &File, rule: impl Display) {
        self.problems.push(&file.path, || None, "", rule);
    }

    /// The deployments of a device: for each id that of the nearest level.
    fn compose(&self, key: &DeviceKey) -> Vec<Arc<Content>> {
        self.nearest(key).into_values().map(|(content, ..)| content.clone()).collect()
    }

    /// The deployments of a device with their files: for each id that of the nearest level.
    fn nearest(&self, key: &DeviceKey) -> BTreeMap<&DeploymentId, &SourcedContent<'a>> {
        let levels = [Level::Fleet, Level::Site(key.site.clone()), Level::Device(key.clone())];
        let mut nearest = BTreeMap::new();
        for level in levels.iter().filter_map(|level| self.levels.get(level)) {
            nearest.extend(level);
        }
        nearest
    }

    /// Removes devices with a tombstone from the fleet. A tombstone beside deployments is a problem of the device.
    fn check_tombstones(&mut self) {
        for key in &self.retired {
            let level = self.levels.get(&Level::Device(key.clone()));
            if let Some((_, file, _)) = level.and_then(|level| level.values().next()) {
                let mut problems = Problems::default();
                let rule =
                    "has a deployment for a device that device.yaml retires: remove one of the two files";
                problems.push(&file.path, || None, "", rule);
                self.own.add(key, problems);
            }
        }
        self.retired.retain(|key| !self.own.devices.contains(key));
        self.devices.retain(|key| !self.retired.contains(key));
    }

    /// Checks the limits of documents. A limit is one problem of the file with the largest part in it, with the number of
    /// devices, not one for each device.
    fn check_limits(&mut self) {
        let mut over: BTreeMap<&'a str, (DeviceKey, LimitExceeded, usize, usize)> = BTreeMap::new();
        let mut over_devices = BTreeSet::new();
        for key in &self.devices {
            let said = self.nearest(key);
            let Err(limit) = LimitExceeded::of(said.values().map(|(content, ..)| &**content)) else {
                continue;
            };
            let (file, files) = greatest(said.into_values(), limit);
            over_devices.insert(key.clone());
            over.entry(file).and_modify(|(.., others)| *others += 1).or_insert((
                key.clone(),
                limit,
                files,
                0,
            ));
        }
        for (file, (key, limit, files, others)) in over {
            let rule = match files {
                1 => format!("{key} would have {limit}{}", others_over_limit(others)),
                files => {
                    format!(
                        "with {} more, {key} would have {limit}{}",
                        file_count(files - 1),
                        others_over_limit(others)
                    )
                }
            };
            self.own.problems.push(file, || None, "", rule);
        }
        self.own.devices.extend(over_devices);
    }
}

/// The file with the largest part in an exceeded limit, and the number of files with a part.
fn greatest<'a: 'b, 'b>(
    said: impl Iterator<Item = &'b SourcedContent<'a>>,
    limit: LimitExceeded,
) -> (&'a str, usize) {
    let mut parts: BTreeMap<&'a str, usize> = BTreeMap::new();
    for (content, file, _) in said {
        let part = match limit {
            LimitExceeded::Deployments(_) => 1,
            LimitExceeded::Bytes(_) => content.wire_bytes(),
        };
        *parts.entry(&file.path).or_default() += part;
    }
    let files = parts.len();
    let greatest = parts.into_iter().max_by_key(|(_, part)| *part);
    (greatest.map_or("", |(file, _)| file), files)
}

fn file_count(files: usize) -> String {
    if files == 1 { "1 file".to_owned() } else { format!("{files} files") }
}

#[cfg(test)]
mod tests;
