//! A commit's files to the fleet they ask for: which devices there are, and what each shall run.
//!
//! ```text
//! fleet/*.yaml                    every device
//! sites/<site>/*.yaml             the devices of a site
//! sites/<site>/<device>/*.yaml    one device, which exists because the folder does
//! …/labels.yaml                   in any of these folders: what groups its devices
//! sites/<site>/<device>/device.yaml    a tombstone: `retired: true` takes the device out of the fleet
//! ```
//!
//! The nearer level wins on the same deployment id, and on the same label. Files elsewhere at the top are nobody's business here. A mistake
//! in what concerns one device alone holds that device back, which keeps what it has; any other mistake refuses the commit as
//! a whole, and so does any mistake where the publisher is strict. Where a commit's bytes come from is not known here.

mod tags;

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use muster_contract::labels::Labels;
use muster_contract::{DeploymentId, DeviceKey, LabelError};

use self::tags::Tags;
use crate::content::{Content, Interner};
use crate::margo::{self, Level, labels, tombstone};
use crate::plan::{TooMuch, also};
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
    /// What is there.
    pub body: Body,
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A file that the publisher reads ([`wants`]).
    Text(Bytes),
    /// A file that it would read, but for its size in bytes.
    TooLong(u64),
    /// A file whose content does not matter: it only makes its folder exist.
    Unread,
    /// A symbolic link.
    Link,
    /// A repository within the repository.
    Submodule,
}

/// How a repository is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Policy {
    /// Any mistake refuses the commit as a whole.
    pub strict: bool,
    /// A device whose folder is gone is retired.
    pub retire_removed: bool,
}

/// What a commit asks for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    /// How it was read.
    pub policy: Policy,
    /// The commit.
    pub revision: String,
    /// What each device shall run, ordered by id. A device without deployments is there with none.
    pub devices: BTreeMap<DeviceKey, Vec<Arc<Content>>>,
    /// The labels of each device that has some.
    pub labels: BTreeMap<DeviceKey, Arc<Labels>>,
    /// Devices that a tombstone takes out of the fleet; they are not among the others.
    pub retired: BTreeSet<DeviceKey>,
    /// Those of the devices that cannot use what is said of them.
    pub held_back: BTreeSet<DeviceKey>,
    /// Why.
    pub withheld: Problems,
}

impl Fleet {
    /// Whether a device has a folder that says what it shall run.
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
    is_ours(path) && is_yaml(path)
}

/// Reads a commit.
///
/// # Errors
/// Everything that is wrong with it, by file, line, field and rule.
pub fn read(tree: &Tree, policy: Policy) -> Result<Fleet, Problems> {
    let mut reading = Reading::default();
    let concerns_us = |file: &&File| is_ours(&file.path) || resembles_ours(&file.path);
    let mut files: Vec<_> = tree.files.iter().filter(concerns_us).collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    for file in files {
        reading.file(file);
    }
    reading.check_tombstones();
    let devices: BTreeMap<_, _> =
        reading.devices.iter().map(|key| (key.clone(), reading.compose(key))).collect();
    reading.check_limits();
    let Reading { tags, devices: keys, interner, own, .. } = &mut reading;
    let labels = tags.compose(keys, interner, own);
    let Reading { retired, own: Own { devices: held_back, problems: withheld }, mut problems, .. } = reading;
    // Where nobody is left, the commit is of no use to anybody.
    if policy.strict || held_back.len() >= devices.len() {
        problems.extend(withheld);
        let revision = tree.revision.clone();
        return problems.or(Fleet { policy, revision, devices, labels, retired, ..Fleet::default() });
    }
    let revision = tree.revision.clone();
    problems.or(Fleet { policy, revision, devices, labels, retired, held_back, withheld })
}

/// Whether a commit may be published although it takes everything from every device: another repository or branch
/// than was meant looks the same.
///
/// # Errors
/// That the commit has no device.
pub fn check_not_empty(fleet: &Fleet) -> Result<(), Problems> {
    let mut problems = Problems::default();
    if fleet.devices.is_empty() {
        let rule = "has no device folder (sites/<site>/<device>/), so that no device would run anything any more: are \
                    repository and branch the right ones? Where it is meant, start the publisher with --allow-empty";
        problems.push("sites", || None, "", rule);
    }
    problems.or(())
}

/// Where a path is: in the folder of a device, and whether documents are read there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    device: Option<DeviceKey>,
    level: Option<Level>,
}

fn place(path: &str) -> Result<Place, LabelError> {
    let folders: Vec<_> = path.split('/').collect();
    match folders[..] {
        ["fleet", _] => Ok(Place { device: None, level: Some(Level::Fleet) }),
        ["sites", site, _] => Ok(Place { device: None, level: Some(Level::Site(site.parse()?)) }),
        ["sites", site, device, _, ..] => {
            let key = DeviceKey { site: site.parse()?, device: device.parse()? };
            let level = (folders.len() == 4).then(|| Level::Device(key.clone()));
            Ok(Place { device: Some(key), level })
        }
        _ => Ok(Place::default()),
    }
}

/// The folders that are read.
const FOLDERS: [&str; 2] = ["fleet", "sites"];

fn is_ours(path: &str) -> bool {
    path.split_once('/').is_some_and(|(top, _)| FOLDERS.contains(&top))
}

/// The name of one of our folders in other letters, or on something that is no folder. Passed over, all that it holds
/// would be taken from every device.
fn resembles_ours(path: &str) -> bool {
    let (top, is_folder) = path.split_once('/').map_or((path, false), |(top, _)| (top, true));
    let folder = FOLDERS.into_iter().find(|folder| top.eq_ignore_ascii_case(folder));
    folder.is_some_and(|folder| top != folder || !is_folder)
}

fn is_yaml(path: &str) -> bool {
    let end = path.rsplit_once('.').map(|(_, end)| end);
    end.is_some_and(|end| end.eq_ignore_ascii_case("yaml") || end.eq_ignore_ascii_case("yml"))
}

/// A deployment, with the file and the document in it that says it.
type Said<'a> = (Arc<Content>, &'a File, usize);
/// The deployments of one level by id.
type Shelf<'a> = BTreeMap<DeploymentId, Said<'a>>;

#[derive(Default)]
struct Reading<'a> {
    shelves: BTreeMap<Level, Shelf<'a>>,
    devices: BTreeSet<DeviceKey>,
    tags: Tags<'a>,
    interner: Interner,
    /// Devices with a tombstone.
    retired: BTreeSet<DeviceKey>,
    /// What is wrong with what concerns one device alone.
    own: Own,
    problems: Problems,
}

/// Devices that cannot use what is said of them, and why.
#[derive(Default)]
struct Own {
    devices: BTreeSet<DeviceKey>,
    problems: Problems,
}

impl Own {
    /// Takes what is wrong with what is said of a device.
    fn take(&mut self, key: &DeviceKey, problems: Problems) {
        if !problems.is_empty() {
            self.devices.insert(key.clone());
            self.problems.extend(problems);
        }
    }
}

impl<'a> Reading<'a> {
    fn file(&mut self, file: &'a File) {
        match place(&file.path) {
            Err(error) => self.refuse(file, format!("folder {error}")),
            Ok(Place { device: Some(key), level }) => {
                self.devices.insert(key.clone());
                // What is wrong with this file concerns nobody else.
                let others = std::mem::take(&mut self.problems);
                self.body(file, level);
                let found = std::mem::replace(&mut self.problems, others);
                self.own.take(&key, found);
            }
            Ok(Place { device: None, level }) => self.body(file, level),
        }
    }

    fn body(&mut self, file: &'a File, level: Option<Level>) {
        match (&file.body, level) {
            (Body::Link, _) => {
                self.refuse(file, "is a symbolic link, and only files are read: put a copy here");
            }
            (Body::Submodule, _) => {
                self.refuse(file, "is a submodule, and its files are not read: copy them");
            }
            _ if resembles_ours(&file.path) => {
                self.refuse(
                    file,
                    "is not read: the folders are named fleet and sites, in these letters; rename it",
                );
            }
            (_, Some(_)) if !is_yaml(&file.path) => {}
            (Body::Text(text), Some(Level::Device(key))) if tombstone::is_one(&file.path) => {
                if tombstone::read(&file.path, text, &mut self.problems) {
                    self.retired.insert(key);
                }
            }
            (Body::Text(text), Some(level)) if labels::is_labels(&file.path) => {
                self.tags.read(&level, &file.path, text, &mut self.problems);
            }
            (Body::TooLong(bytes), Some(_)) => self.refuse(file, margo::too_long(*bytes)),
            (Body::Text(text), Some(level)) => {
                for entry in margo::read(&file.path, text, &level, &mut self.problems) {
                    self.put(&level, file, entry);
                }
            }
            (_, None) if is_yaml(&file.path) => self.refuse(
                file,
                "is not read here: deployments belong into fleet/, sites/<site>/ or sites/<site>/<device>/",
            ),
            (Body::Text(_) | Body::TooLong(_) | Body::Unread, _) => {}
        }
    }

    fn put(&mut self, level: &Level, file: &'a File, entry: margo::Entry) {
        let content = self.interner.share(entry.content);
        match self.shelves.entry(level.clone()).or_default().entry(content.id().clone()) {
            Slot::Vacant(slot) => {
                slot.insert((content, file, entry.document));
            }
            Slot::Occupied(slot) => {
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

    /// What a device shall run: the nearest level's word on each id.
    fn compose(&self, key: &DeviceKey) -> Vec<Arc<Content>> {
        self.nearest(key).into_values().map(|(content, ..)| content.clone()).collect()
    }

    /// The nearest level's word on each id, with the file that says it.
    fn nearest(&self, key: &DeviceKey) -> BTreeMap<&DeploymentId, &Said<'a>> {
        let levels = [Level::Fleet, Level::Site(key.site.clone()), Level::Device(key.clone())];
        let mut nearest = BTreeMap::new();
        for shelf in levels.iter().filter_map(|level| self.shelves.get(level)) {
            nearest.extend(shelf);
        }
        nearest
    }

    /// A device with a tombstone is no part of the fleet any more, and nothing in its folder may say otherwise.
    fn check_tombstones(&mut self) {
        for key in &self.retired {
            let shelf = self.shelves.get(&Level::Device(key.clone()));
            if let Some((_, file, _)) = shelf.and_then(|shelf| shelf.values().next()) {
                let mut problems = Problems::default();
                let rule = "gives something to run to a device that device.yaml retires: remove one of the two files";
                problems.push(&file.path, || None, "", rule);
                self.own.take(key, problems);
            }
        }
        self.retired.retain(|key| !self.own.devices.contains(key));
        self.devices.retain(|key| !self.retired.contains(key));
    }

    /// Devices that would have more than one message can say: one problem for the file that has the greatest part in
    /// it, with the number of devices, not one for each of them.
    fn check_limits(&mut self) {
        let mut over: BTreeMap<&'a str, (DeviceKey, TooMuch, usize, usize)> = BTreeMap::new();
        let mut over_devices = BTreeSet::new();
        for key in &self.devices {
            let said = self.nearest(key);
            let Err(limit) = TooMuch::of(said.values().map(|(content, ..)| &**content)) else { continue };
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
                1 => format!("{key} would have {limit}{}", also(others)),
                files => {
                    format!("with {} more, {key} would have {limit}{}", file_count(files - 1), also(others))
                }
            };
            self.own.problems.push(file, || None, "", rule);
        }
        self.own.devices.extend(over_devices);
    }
}

/// The file with the greatest part in what is over a limit, and the number of files that have one.
fn greatest<'a: 'b, 'b>(said: impl Iterator<Item = &'b Said<'a>>, limit: TooMuch) -> (&'a str, usize) {
    let mut parts: BTreeMap<&'a str, usize> = BTreeMap::new();
    for (content, file, _) in said {
        let part = match limit {
            TooMuch::Deployments(_) => 1,
            TooMuch::Bytes(_) => content.wire_bytes(),
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
