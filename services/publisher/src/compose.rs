//! Composes the desired content of a device from Git and from requests. Pure.
//!
//! A requested deployment stays until a request removes it, and wins over Git on the same id. A device exists if its folder
//! does, or if something was requested for it. Removing a folder leaves an empty document, not a retired device, unless the
//! policy says so; a tombstone in Git retires its device. A device that is held back keeps its desired state. A device that
//! a rollout governs keeps its published deployments from Git; only a release ([`release`]) changes one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_contract::decode::Violation;
use muster_contract::desired::{Source, SourceKind};
use muster_contract::labels::Labels;
use muster_contract::rollout::ReleaseRefusal;
use muster_contract::{DeploymentId, DeviceKey};

use crate::content::Content;
use crate::plan::{DesiredDevice, LimitExceeded, draft, others_over_limit};
use crate::problems::Problems;
use crate::published::{Document, PublishedState};
use crate::source::Fleet;

/// The known content of Git for a device. In all cases but the last the deployments from Git stay as they are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Git<'a> {
    /// There is no Git source.
    Absent,
    /// There was no good commit since the start.
    Unknown,
    /// Another publisher has published a commit for the device that is unknown here.
    Behind,
    /// The last good commit has a mistake for the device.
    HeldBack,
    /// The last good commit.
    Known(&'a Fleet),
}

/// Why a request cannot be met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefused {
    /// The deployment was not applied by request.
    #[error("'{id}' was not applied to {key} by request{}", if *.in_git { "; it comes from Git: remove it there" } else { "" })]
    NotRequested {
        /// The device.
        key: DeviceKey,
        /// The deployment.
        id: DeploymentId,
        /// Git has it.
        in_git: bool,
    },
    /// The device never had a desired state.
    #[error("{0} never had a desired state: check the name")]
    UnknownDevice(DeviceKey),
    /// The device has a folder in Git.
    #[error("{key} is in Git: remove the folder sites/{key} there first, or the next commit brings it back")]
    InGit {
        /// The device.
        key: DeviceKey,
    },
    /// The device has a tombstone in Git.
    #[error(
        "{0} is retired in Git: remove sites/{0}/device.yaml there first, or the next commit retires it again"
    )]
    RetiredInGit(DeviceKey),
    /// There was no good commit since the start.
    #[error(
        "{0} may have a folder in Git, and the publisher has read no good commit since it started; \
         `muster publisher status` says why. Ask again after a good commit"
    )]
    GitUnknown(DeviceKey),
    /// Another publisher knows a commit that is unknown here.
    #[error(
        "another publisher has published a commit for {0} that this one does not know; `muster publisher status` says \
         whether Git answers, and names a refused commit. Ask again after a good commit that is newer"
    )]
    GitBehind(DeviceKey),
    /// A deployment breaks a rule of its application.
    #[error("'{id}' breaks a rule of its application in Git: {violation}")]
    Application {
        /// The deployment.
        id: DeploymentId,
        /// The field and the rule.
        violation: Violation,
    },
    /// The device would have more than a document can say.
    #[error("{0} would have {1}")]
    OverLimit(DeviceKey, LimitExceeded),
}

/// The desired content of a device by a commit; `None` if the commit does not concern it, or has a mistake for it.
pub(crate) fn commit(key: &DeviceKey, fleet: &Fleet, held: &PublishedState) -> Option<DesiredDevice> {
    from_commit(key, fleet, held).filter(|wanted| wanted.check().is_ok())
}

/// The same without a check of limits.
fn from_commit(key: &DeviceKey, fleet: &Fleet, held: &PublishedState) -> Option<DesiredDevice> {
    if fleet.held_back.contains(key) {
        return None;
    }
    if fleet.retired.contains(key) || is_removed(key, fleet, held) {
        let (source, labels) = (git_source(fleet), Arc::default());
        return Some(DesiredDevice { retired: true, source, labels, contents: Vec::new() });
    }
    let known = held.document.as_ref().is_some_and(|document| !document.retired);
    if !fleet.has(key) && !known {
        return None;
    }
    let contents = merge(git_contents(key, Git::Known(fleet), held), held.requested());
    let labels = labels(key, Git::Known(fleet), held);
    Some(DesiredDevice { retired: false, source: git_source(fleet), labels, contents })
}

/// Whether the policy retires a device because its folder is gone.
fn is_removed(key: &DeviceKey, fleet: &Fleet, held: &PublishedState) -> bool {
    let was_gits = held.document.as_ref().is_some_and(|document| document.source.kind == SourceKind::Git);
    fleet.policy.retire_removed && !fleet.has(key) && was_gits && held.requested().next().is_none()
}

/// The published content of a device, to be published again.
pub(crate) fn current(held: &PublishedState) -> Option<DesiredDevice> {
    let Document { retired, source, labels, entries, .. } = held.document.as_ref()?;
    let contents = entries.iter().map(|entry| entry.content.clone()).collect();
    Some(DesiredDevice { retired: *retired, source: source.clone(), labels: labels.clone(), contents })
}

/// The devices that a commit changes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Changes {
    /// Devices that get a new document.
    pub due: BTreeSet<DeviceKey>,
    /// Devices that would exceed a limit with their requested deployments. Devices that exceed it by the commit alone are
    /// held back when the files are read.
    pub over: BTreeMap<DeviceKey, LimitExceeded>,
}

/// The devices that a commit changes.
///
/// # Errors
/// With a strict policy: devices would exceed a limit.
pub(crate) fn changes(
    fleet: &Fleet,
    held: &BTreeMap<DeviceKey, PublishedState>,
) -> Result<Changes, Problems> {
    let (mut changes, nothing) = (Changes::default(), PublishedState::default());
    let keys = fleet.devices.keys().chain(&fleet.retired).chain(held.keys());
    for key in keys.collect::<BTreeSet<_>>() {
        let published = held.get(key).unwrap_or(&nothing);
        let Some(wanted) = from_commit(key, fleet, published) else { continue };
        match wanted.check() {
            Err(limit) => _ = changes.over.insert(key.clone(), limit),
            Ok(()) if draft(published, &wanted).is_some() => _ = changes.due.insert(key.clone()),
            Ok(()) => {}
        }
    }
    let mut problems = if fleet.policy.strict { too_much(&changes.over) } else { Problems::default() };
    problems.extend(immutable_changes(fleet, held));
    problems.or(changes)
}

/// The problem that devices would exceed a limit: one for any number of devices.
pub(crate) fn too_much(over: &BTreeMap<DeviceKey, LimitExceeded>) -> Problems {
    let mut problems = Problems::default();
    if let Some((key, limit)) = over.first_key_value() {
        let others = others_over_limit(over.len() - 1);
        let rule = format!(
            "the device would have {limit}{others}; requested deployments count as well, and `muster remove` removes them"
        );
        problems.push(&format!("sites/{key}"), || None, "", rule);
    }
    problems
}

/// Adds requested deployments to a device. An unchanged one keeps its earlier request.
///
/// # Errors
/// The device would exceed a limit, or is retired in Git.
pub(crate) fn apply(
    key: &DeviceKey,
    git: Git<'_>,
    held: &PublishedState,
    contents: &[Content],
    request: &Source,
) -> Result<DesiredDevice, RequestRefused> {
    if matches!(git, Git::Known(fleet) if fleet.retired.contains(key)) {
        return Err(RequestRefused::RetiredInGit(key.clone()));
    }
    check_applications(git, held, contents)?;
    let mut requested: BTreeMap<_, _> =
        held.requested().map(|content| (content.id().clone(), content.clone())).collect();
    for content in contents {
        let same = requested.get(content.id()).is_some_and(|before| before.same_but_for_source(content));
        if !same {
            requested.insert(content.id().clone(), Arc::new(content.requested_by(request.clone())));
        }
    }
    let wanted = DesiredDevice {
        retired: false,
        source: change_source(key, git, held, request),
        labels: labels(key, git, held),
        contents: merge(git_contents(key, git, held), requested.values()),
    };
    wanted.check().map_err(|over| RequestRefused::OverLimit(key.clone(), over))?;
    Ok(wanted)
}

/// Refuses contents that break a rule of their applications, or change what must not change.
fn check_applications(
    git: Git<'_>,
    held: &PublishedState,
    contents: &[Content],
) -> Result<(), RequestRefused> {
    let Git::Known(fleet) = git else { return Ok(()) };
    for content in contents {
        let violations = fleet.catalogue.check(content).into_iter();
        let mut published = held.requested().chain(held.git_contents());
        let before = published.find(|before| before.id() == content.id());
        let changes = before.map(|before| fleet.catalogue.check_change(before, content)).unwrap_or_default();
        if let Some(violation) = violations.chain(changes).next() {
            return Err(RequestRefused::Application { id: content.id().clone(), violation });
        }
    }
    Ok(())
}

/// Problems of immutable values that a commit changes in published deployments. One refuses the commit: some
/// devices would run the new value and others the old one.
fn immutable_changes(fleet: &Fleet, held: &BTreeMap<DeviceKey, PublishedState>) -> Problems {
    let mut problems = Problems::default();
    if fleet.catalogue.is_empty() {
        return problems;
    }
    for (key, contents) in &fleet.devices {
        let Some(held) = held.get(key) else { continue };
        for content in contents {
            let before = held.git_contents().find(|before| before.id() == content.id());
            let found = before.map(|before| fleet.catalogue.check_change(before, content));
            for violation in found.into_iter().flatten() {
                let file = format!("sites/{key}");
                problems.push(
                    &file,
                    || None,
                    format!("{}: {}", content.id(), violation.path),
                    violation.rule,
                );
            }
        }
    }
    problems
}

/// Replaces one of Git's deployments of a governed device by `content`, or removes it. The caller has checked that the
/// content may be released.
///
/// # Errors
/// No rollout governs the device, it runs another content by request, or it would exceed a limit.
pub(crate) fn release(
    key: &DeviceKey,
    git: Git<'_>,
    held: &PublishedState,
    id: &DeploymentId,
    content: Option<&Arc<Content>>,
    request: &Source,
) -> Result<DesiredDevice, ReleaseRefusal> {
    match git {
        Git::Known(fleet) if !fleet.has(key) => return Err(ReleaseRefusal::NotInGit),
        Git::Known(fleet) if !fleet.rollouts.contains_key(key) => return Err(ReleaseRefusal::NotGoverned),
        Git::Known(_) => {}
        Git::HeldBack => return Err(ReleaseRefusal::HeldBack),
        Git::Absent | Git::Unknown | Git::Behind => return Err(ReleaseRefusal::GitUnknown),
    }
    if held.requested().any(|requested| requested.id() == id) {
        return Err(ReleaseRefusal::AppliedByRequest);
    }
    let others = git_contents(key, git, held).into_iter().filter(|content| content.id() != id);
    let wanted = DesiredDevice {
        retired: false,
        source: change_source(key, git, held, request),
        labels: labels(key, git, held),
        contents: merge(others.chain(content), held.requested()),
    };
    wanted.check().map_err(|_| ReleaseRefusal::OverLimit)?;
    Ok(wanted)
}

/// Removes one requested deployment or all of them. Git's deployment of the same id, if there is one, takes effect again.
///
/// # Errors
/// No such deployment was requested, Git's content is unknown, or the device would exceed a limit.
pub(crate) fn remove(
    key: &DeviceKey,
    git: Git<'_>,
    held: &PublishedState,
    id: Option<&DeploymentId>,
    request: &Source,
) -> Result<DesiredDevice, RequestRefused> {
    let document = held.document.as_ref().ok_or_else(|| RequestRefused::UnknownDevice(key.clone()))?;
    if let Some(id) = id
        && !held.requested().any(|content| content.id() == id)
    {
        let in_git = held.git_contents().any(|content| content.id() == id);
        return Err(RequestRefused::NotRequested { key: key.clone(), id: id.clone(), in_git });
    }
    if document.retired {
        let source = document.source.clone();
        return Ok(DesiredDevice { retired: true, source, labels: Arc::default(), contents: Vec::new() });
    }
    if document.source.kind == SourceKind::Git {
        check_git_known(key, git)?;
    }
    let left = held.requested().filter(|content| id.is_some_and(|id| content.id() != id));
    let contents = merge(git_contents(key, git, held), left);
    let (source, labels) = (change_source(key, git, held, request), labels(key, git, held));
    let wanted = DesiredDevice { retired: false, source, labels, contents };
    // Git's deployment may be larger than the requested one that it replaces.
    wanted.check().map_err(|over| RequestRefused::OverLimit(key.clone(), over))?;
    Ok(wanted)
}

/// Takes a device out of the fleet, with its requested deployments. A device without any document can be retired if it has
/// `reported`.
///
/// # Errors
/// The device is in Git, Git's content is unknown, or the device is unknown.
pub(crate) fn retire(
    key: &DeviceKey,
    git: Git<'_>,
    held: &PublishedState,
    reported: bool,
    request: &Source,
) -> Result<DesiredDevice, RequestRefused> {
    if held.document.as_ref().is_some_and(|document| document.source.kind == SourceKind::Git) {
        check_git_known(key, git)?;
    }
    match git {
        Git::Known(fleet) if fleet.devices.contains_key(key) => {
            Err(RequestRefused::InGit { key: key.clone() })
        }
        Git::HeldBack => Err(RequestRefused::InGit { key: key.clone() }),
        _ if held.generation.is_none() && !reported => Err(RequestRefused::UnknownDevice(key.clone())),
        _ => {
            let (source, labels) = (request.clone(), Arc::default());
            Ok(DesiredDevice { retired: true, source, labels, contents: Vec::new() })
        }
    }
}

/// Refuses a change while Git's content for the device is unknown.
fn check_git_known(key: &DeviceKey, git: Git<'_>) -> Result<(), RequestRefused> {
    match git {
        Git::Unknown => Err(RequestRefused::GitUnknown(key.clone())),
        Git::Behind => Err(RequestRefused::GitBehind(key.clone())),
        Git::Absent | Git::HeldBack | Git::Known(_) => Ok(()),
    }
}

/// The ids of Git's deployments that `contents` would replace.
pub(crate) fn overrides(
    key: &DeviceKey,
    git: Git<'_>,
    held: &PublishedState,
    contents: &[Content],
) -> Vec<DeploymentId> {
    let git_contents: BTreeSet<_> =
        git_contents(key, git, held).into_iter().map(|content| content.id()).collect();
    contents.iter().map(Content::id).filter(|id| git_contents.contains(id)).cloned().collect()
}

/// True if nothing was ever published for a device, and Git does not have it.
pub(crate) fn is_new(key: &DeviceKey, git: Git<'_>, held: &PublishedState) -> bool {
    let in_git = match git {
        Git::Known(fleet) => fleet.devices.contains_key(key),
        Git::HeldBack => true,
        Git::Absent | Git::Unknown | Git::Behind => false,
    };
    held.generation.is_none() && !in_git
}

/// The labels of a device, which only Git defines: its last labels hold if Git is unknown or has the device no more.
fn labels(key: &DeviceKey, git: Git<'_>, held: &PublishedState) -> Arc<Labels> {
    match git {
        Git::Known(fleet) if fleet.devices.contains_key(key) => fleet.labels_of(key),
        Git::Known(_) | Git::Absent | Git::Unknown | Git::Behind | Git::HeldBack => held.labels(),
    }
}

/// Git's deployments of a device: those of the last good commit, or the published ones if a rollout governs the device or
/// the commit says nothing about it.
fn git_contents<'a>(key: &DeviceKey, git: Git<'a>, held: &'a PublishedState) -> Vec<&'a Arc<Content>> {
    match git {
        Git::Known(fleet) if fleet.rollouts.contains_key(key) => held.git_contents().collect(),
        Git::Known(fleet) => fleet.devices.get(key).into_iter().flatten().collect(),
        Git::Absent | Git::Unknown | Git::Behind | Git::HeldBack => held.git_contents().collect(),
    }
}

/// The source of a document after a request: Git's commit if Git has a part in it, else the request; with the requester.
fn change_source(key: &DeviceKey, git: Git<'_>, held: &PublishedState, request: &Source) -> Source {
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

/// The deployments of both sources by id; a request wins over Git.
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
