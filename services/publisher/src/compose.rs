//! What a device shall be, put together from its two sources: Git and requests. Pure.
//!
//! What was asked for by request stays until it is taken back and wins over Git on the same id. A device exists when
//! its folder does, or when something was asked for it. A folder that goes leaves an empty document behind, not a
//! retired device, unless the publisher was told to retire such devices; a tombstone in Git retires its device. A device
//! that is held back keeps what it has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_contract::desired::{Source, SourceKind};
use muster_contract::labels::Labels;
use muster_contract::{DeploymentId, DeviceKey};

use crate::content::Content;
use crate::held::{Document, Held};
use crate::plan::{TooMuch, Wanted, also, draft};
use crate::problems::Problems;
use crate::source::Fleet;

/// What is known of the Git source.
#[derive(Debug, Clone, Copy)]
pub enum Git<'a> {
    /// There is none: what came from Git once stays as it is.
    Absent,
    /// There is one, and it has not had a good commit since the start: what came from it stays as it is.
    Unknown,
    /// There is one, and another publisher has published a commit of it for the device that is not known here: what came
    /// from it stays as it is.
    Behind,
    /// The device cannot use what the last good commit says of it: what came from Git before stays as it is.
    HeldBack,
    /// Its last good commit.
    Known(&'a Fleet),
}

/// Why a request cannot be met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefused {
    /// It was never applied by request.
    #[error("'{id}' was not applied to {key} by request{}", if *.in_git { "; it comes from Git: remove it there" } else { "" })]
    NotRequested {
        /// The device.
        key: DeviceKey,
        /// The deployment.
        id: DeploymentId,
        /// Git has it.
        in_git: bool,
    },
    /// Nobody has ever published anything for the device.
    #[error("{0} never had a desired state: check the name")]
    UnknownDevice(DeviceKey),
    /// Git says that the device is there.
    #[error("{key} is in Git: remove the folder sites/{key} there first, or the next commit brings it back")]
    InGit {
        /// The device.
        key: DeviceKey,
    },
    /// A tombstone in Git says that the device is retired.
    #[error(
        "{0} is retired in Git: remove sites/{0}/device.yaml there first, or the next commit retires it again"
    )]
    RetiredInGit(DeviceKey),
    /// Whether Git has something to say is not known.
    #[error(
        "Git may have a say on {0}, and no commit of it was good since the publisher started; \
         `muster publisher status` says why. Ask again once it is"
    )]
    GitUnknown(DeviceKey),
    /// What Git has to say is known to another publisher.
    #[error(
        "another publisher has published a commit for {0} that this one has not seen; `muster publisher status` says whether \
         Git answers, and names a commit that was refused. Ask again once a good one has come that follows it"
    )]
    GitBehind(DeviceKey),
    /// The device would have more than a document can say.
    #[error("{0} would have {1}")]
    TooMuch(DeviceKey, TooMuch),
}

/// What a commit makes of a device; none if it has no say on it, or if the device cannot use what it says.
pub fn commit(key: &DeviceKey, fleet: &Fleet, held: &Held) -> Option<Wanted> {
    asked(key, fleet, held).filter(|wanted| wanted.check().is_ok())
}

/// The same, however much that is.
fn asked(key: &DeviceKey, fleet: &Fleet, held: &Held) -> Option<Wanted> {
    if fleet.held_back.contains(key) {
        return None;
    }
    if fleet.retired.contains(key) || is_removed(key, fleet, held) {
        let (source, labels) = (git_source(fleet), Arc::default());
        return Some(Wanted { retired: true, source, labels, contents: Vec::new() });
    }
    let git = fleet.devices.get(key);
    let known = held.document.as_ref().is_some_and(|document| !document.retired);
    if git.is_none() && !known {
        return None;
    }
    let contents = merge(git.into_iter().flatten(), held.requested());
    let labels = labels(key, Git::Known(fleet), held);
    Some(Wanted { retired: false, source: git_source(fleet), labels, contents })
}

/// Whether a device's folder is gone, with all that it shall run, where that retires it.
fn is_removed(key: &DeviceKey, fleet: &Fleet, held: &Held) -> bool {
    let was_gits = held.document.as_ref().is_some_and(|document| document.source.kind == SourceKind::Git);
    fleet.policy.retire_removed && !fleet.has(key) && was_gits && held.requested().next().is_none()
}

/// What is published for a device already, to be said again.
pub fn again(held: &Held) -> Option<Wanted> {
    let Document { retired, source, labels, entries, .. } = held.document.as_ref()?;
    let contents = entries.iter().map(|entry| entry.content.clone()).collect();
    Some(Wanted { retired: *retired, source: source.clone(), labels: labels.clone(), contents })
}

/// What a commit changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Changes {
    /// The devices for which it makes a new document.
    pub due: BTreeSet<DeviceKey>,
    /// Those that would get more than a document can say: with what was applied to them by request, because a device for
    /// which the commit alone is too much is held back where its files are read.
    pub over: BTreeMap<DeviceKey, TooMuch>,
}

/// What a commit changes.
///
/// # Errors
/// That devices would get more than a document can say, where the publisher is strict.
pub fn changes(fleet: &Fleet, held: &BTreeMap<DeviceKey, Held>) -> Result<Changes, Problems> {
    let (mut changes, nothing) = (Changes::default(), Held::default());
    let keys = fleet.devices.keys().chain(&fleet.retired).chain(held.keys());
    for key in keys.collect::<BTreeSet<_>>() {
        let held = held.get(key).unwrap_or(&nothing);
        let Some(wanted) = asked(key, fleet, held) else { continue };
        match wanted.check() {
            Err(limit) => _ = changes.over.insert(key.clone(), limit),
            Ok(()) if draft(held, &wanted).is_some() => _ = changes.due.insert(key.clone()),
            Ok(()) => {}
        }
    }
    let problems = if fleet.policy.strict { too_much(&changes.over) } else { Problems::default() };
    problems.or(changes)
}

/// That devices would get more than a document can say: one problem, however many there are.
pub fn too_much(over: &BTreeMap<DeviceKey, TooMuch>) -> Problems {
    let mut problems = Problems::default();
    if let Some((key, limit)) = over.first_key_value() {
        let others = also(over.len() - 1);
        let rule = format!(
            "the device would have {limit}{others}; what was applied by request counts as well, and `muster remove` \
             takes it back"
        );
        problems.push(&format!("sites/{key}"), || None, "", rule);
    }
    problems
}

/// The device shall run `contents` as well. One that it runs already by request, unchanged, keeps its place.
///
/// # Errors
/// [`RequestRefused::TooMuch`]; and where Git says that the device is retired.
pub fn apply(
    key: &DeviceKey,
    git: Git<'_>,
    held: &Held,
    contents: &[Content],
    request: &Source,
) -> Result<Wanted, RequestRefused> {
    if matches!(git, Git::Known(fleet) if fleet.retired.contains(key)) {
        return Err(RequestRefused::RetiredInGit(key.clone()));
    }
    let mut requested: BTreeMap<_, _> =
        held.requested().map(|content| (content.id().clone(), content.clone())).collect();
    for content in contents {
        let same = requested.get(content.id()).is_some_and(|before| before.same_but_for_source(content));
        if !same {
            requested.insert(content.id().clone(), Arc::new(content.requested_by(request.clone())));
        }
    }
    let wanted = Wanted {
        retired: false,
        source: base(key, git, held, request),
        labels: labels(key, git, held),
        contents: merge(git_part(key, git, held), requested.values()),
    };
    wanted.check().map_err(|over| RequestRefused::TooMuch(key.clone(), over))?;
    Ok(wanted)
}

/// What was applied by request is taken back: one deployment or all. What Git says of the id holds again.
///
/// # Errors
/// Where nothing of that name was applied, or where it is not known what Git says.
pub fn remove(
    key: &DeviceKey,
    git: Git<'_>,
    held: &Held,
    id: Option<&DeploymentId>,
    request: &Source,
) -> Result<Wanted, RequestRefused> {
    let document = held.document.as_ref().ok_or_else(|| RequestRefused::UnknownDevice(key.clone()))?;
    if let Some(id) = id
        && !held.requested().any(|content| content.id() == id)
    {
        let in_git = held.from_git().any(|content| content.id() == id);
        return Err(RequestRefused::NotRequested { key: key.clone(), id: id.clone(), in_git });
    }
    if document.retired {
        let source = document.source.clone();
        return Ok(Wanted { retired: true, source, labels: Arc::default(), contents: Vec::new() });
    }
    if document.source.kind == SourceKind::Git {
        may_say(key, git)?;
    }
    let left = held.requested().filter(|content| id.is_some_and(|id| content.id() != id));
    let contents = merge(git_part(key, git, held), left);
    let (source, labels) = (base(key, git, held, request), labels(key, git, held));
    let wanted = Wanted { retired: false, source, labels, contents };
    // What a request stood in for may be larger than it was.
    wanted.check().map_err(|over| RequestRefused::TooMuch(key.clone(), over))?;
    Ok(wanted)
}

/// The device leaves the fleet, with everything applied to it. One that nothing was ever published for may leave too,
/// if it has `reported` all the same.
///
/// # Errors
/// Where Git has the device, or where it is not known whether it has; and where nobody has ever heard of it.
pub fn retire(
    key: &DeviceKey,
    git: Git<'_>,
    held: &Held,
    reported: bool,
    request: &Source,
) -> Result<Wanted, RequestRefused> {
    if held.document.as_ref().is_some_and(|document| document.source.kind == SourceKind::Git) {
        may_say(key, git)?;
    }
    match git {
        Git::Known(fleet) if fleet.devices.contains_key(key) => {
            Err(RequestRefused::InGit { key: key.clone() })
        }
        Git::HeldBack => Err(RequestRefused::InGit { key: key.clone() }),
        _ if held.generation.is_none() && !reported => Err(RequestRefused::UnknownDevice(key.clone())),
        _ => {
            let (source, labels) = (request.clone(), Arc::default());
            Ok(Wanted { retired: true, source, labels, contents: Vec::new() })
        }
    }
}

/// Whether it is known what Git says of a device that it has a say on.
fn may_say(key: &DeviceKey, git: Git<'_>) -> Result<(), RequestRefused> {
    match git {
        Git::Unknown => Err(RequestRefused::GitUnknown(key.clone())),
        Git::Behind => Err(RequestRefused::GitBehind(key.clone())),
        Git::Absent | Git::HeldBack | Git::Known(_) => Ok(()),
    }
}

/// What a request for `contents` puts in the place of what Git says.
pub fn overrides(key: &DeviceKey, git: Git<'_>, held: &Held, contents: &[Content]) -> Vec<DeploymentId> {
    let from_git: BTreeSet<_> = git_part(key, git, held).into_iter().map(|content| content.id()).collect();
    contents.iter().map(Content::id).filter(|id| from_git.contains(id)).cloned().collect()
}

/// True where nothing was ever published for a device, and Git does not have it.
pub fn is_new(key: &DeviceKey, git: Git<'_>, held: &Held) -> bool {
    let in_git = match git {
        Git::Known(fleet) => fleet.devices.contains_key(key),
        Git::HeldBack => true,
        Git::Absent | Git::Unknown | Git::Behind => false,
    };
    held.generation.is_none() && !in_git
}

/// What groups a device: only Git can say it, and what it said last holds where it cannot be asked or has the device no
/// more.
fn labels(key: &DeviceKey, git: Git<'_>, held: &Held) -> Arc<Labels> {
    match git {
        Git::Known(fleet) if fleet.devices.contains_key(key) => fleet.labels_of(key),
        Git::Known(_) | Git::Absent | Git::Unknown | Git::Behind | Git::HeldBack => held.labels(),
    }
}

/// What Git says of a device: its last good commit, or what came from Git before.
fn git_part<'a>(key: &DeviceKey, git: Git<'a>, held: &'a Held) -> Vec<&'a Arc<Content>> {
    match git {
        Git::Known(fleet) => fleet.devices.get(key).into_iter().flatten().collect(),
        Git::Absent | Git::Unknown | Git::Behind | Git::HeldBack => held.from_git().collect(),
    }
}

/// Where a document comes from whose entries do not all come by request: from Git, if that has a part in it; and in any case
/// who asked for the change.
fn base(key: &DeviceKey, git: Git<'_>, held: &Held, request: &Source) -> Source {
    let base = match (git, &held.document) {
        (Git::Known(fleet), _) if fleet.devices.contains_key(key) => git_source(fleet),
        (Git::Absent | Git::Unknown | Git::Behind | Git::HeldBack, Some(document))
            if document.source.kind == SourceKind::Git =>
        {
            document.source.clone()
        }
        _ => request.clone(),
    };
    Source { requested_by: request.requested_by.clone(), ..base }
}

fn git_source(fleet: &Fleet) -> Source {
    Source::new(SourceKind::Git, fleet.revision.clone())
}

/// Both sources by id, a request before Git.
fn merge<'a>(
    git: impl IntoIterator<Item = &'a Arc<Content>>,
    requested: impl IntoIterator<Item = &'a Arc<Content>>,
) -> Vec<Arc<Content>> {
    let by_id: BTreeMap<_, _> =
        git.into_iter().chain(requested).map(|content| (content.id(), content)).collect();
    by_id.into_values().cloned().collect()
}

#[cfg(test)]
mod tests;
