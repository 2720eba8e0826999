//! Makes the status of a deployment of its ResourceGroups. Pure.
//!
//! | a member's status | its state |
//! |---|---|
//! | any, with actuation `Failed` | failed: the object is as before the failed write |
//! | any, with actuation `Pending` or `Skipped` | pending |
//! | `Current` | installed |
//! | `InProgress`, `Unknown`, any unknown word | installing: nothing proves success |
//! | `Failed` | failed |
//! | `Terminating` | removing |
//! | `NotFound`, or no status yet | pending |
//! | strategy `Delete`, or no member any more | installing until it is `NotFound`, then it does not count |
//!
//! | the group | its members |
//! |---|---|
//! | has a `deletionTimestamp` | are removing |
//! | has a generation that its controller has not observed | are installing if they are installed: the status is of another content |
//! | has the condition `Reconciling` | the same |
//! | has the condition `Stalled` | fail as a whole if none of them has failed |
//! | has no members | pending: an empty group is no success |
//! | is of another revision than the target | pending, whatever they are |
//!
//! A component has the most severe state of the members with its name and of those with no component's name; a component without
//! a member of its name has that of all members.

use std::collections::{BTreeSet, HashMap};

use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError, cut};
use muster_contract::{ComponentName, DeploymentId, Generation, State};
use muster_domain::aggregate;

use super::group::{Condition, GENERATION, Member, MemberStatus, ResourceGroup};
use crate::margo::problems;
use crate::margo::status::StatusManifest;
use crate::problem::Problem;

/// Bytes of all messages of one report, so that it fits into a message of a device.
const MESSAGES_BYTES_MAX: usize = 16 * 1024;
/// Bytes of one message.
const MESSAGE_BYTES_MAX: usize = 512;
/// Components whose errors a report has.
const ERRORS_MAX: usize = 128;
/// Bytes of a code.
const CODE_BYTES_MAX: usize = 64;
/// Least digits by which a revision names a commit.
const COMMIT_DIGITS_MIN: usize = 7;
/// The code of a member that failed without a reason.
const FAILED: &str = "ResourceFailed";
/// The code of a member that could not be written.
const ACTUATION_FAILED: &str = "ActuationFailed";
/// The component of a deployment that is no target, whose components are not known.
const REMAINDER: &str = "resources";

/// The content that a group was applied with.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AppliedContent {
    /// That of a generation.
    Of(Generation),
    /// Another one than the target: this revision.
    Other(String),
}

/// A member in a state, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MemberState {
    member: Member,
    state: State,
    code: String,
    message: String,
    /// The cluster does not have it.
    is_absent: bool,
}

/// Something of each member, by namespace and name: a search of all members for each one takes seconds for a large group.
struct MembersByName<'a, T>(HashMap<(&'a str, &'a str), Vec<(&'a Member, T)>>);

/// A group as it counts for the components that it covers.
struct CoveredPart<'a> {
    group: &'a ResourceGroup,
    component: Option<ComponentName>,
    members: Vec<MemberState>,
    content: AppliedContent,
}

/// The status of a deployment by its groups; without any, the cluster has none of it.
///
/// # Errors
/// A group does not say which content it has, or names what is none.
pub(crate) fn status(
    id: &DeploymentId,
    groups: &[&ResourceGroup],
    desired: &DesiredState,
) -> Result<StatusManifest, Problem> {
    let entry = desired.deployments.iter().find(|entry| entry.id == *id);
    let parts = groups.iter().map(|group| part(group, entry, desired)).collect::<Result<Vec<_>, _>>()?;
    let generation = parts.iter().filter_map(|part| match part.content {
        AppliedContent::Of(generation) => Some(generation),
        AppliedContent::Other(_) => None,
    });
    let generation =
        generation.min().or(entry.map(|entry| entry.target_generation)).unwrap_or(desired.generation);
    let status = match entry {
        None => leaving(&parts),
        Some(entry) => targeted(entry, &parts),
    };
    Ok(StatusManifest {
        deployment_id: id.clone(),
        device_id: None,
        adopted_manifest_version: generation,
        status: status.0,
        components: status.1,
    })
}

fn part<'a>(
    group: &'a ResourceGroup,
    entry: Option<&DesiredDeployment>,
    desired: &DesiredState,
) -> Result<CoveredPart<'a>, Problem> {
    let content = match entry {
        Some(entry) => applied(group, entry, desired)?,
        None => AppliedContent::Of(desired.generation),
    };
    Ok(CoveredPart { group, component: group.component()?, members: members(group), content })
}

/// The content that a group says it was applied with: by its annotation, or by a revision that the target has.
fn applied(
    group: &ResourceGroup,
    entry: &DesiredDeployment,
    desired: &DesiredState,
) -> Result<AppliedContent, Problem> {
    if let Some(text) = group.text(GENERATION) {
        let generation = text.parse().ok().and_then(Generation::new);
        let rule = || format!("is '{text}'; must be a generation, a whole number from 1 on");
        let field = || format!("metadata.annotations.{GENERATION}");
        let generation = generation.ok_or_else(|| problems::semantic_error(field(), rule()))?;
        if generation > desired.generation {
            let rule = format!("is above {}, the newest generation of the device", desired.generation);
            return Err(problems::semantic_error(field(), rule));
        }
        return Ok(AppliedContent::Of(generation));
    }
    let named = group.spec.descriptor.revision.as_str();
    if named.is_empty() {
        let rule = format!(
            "names no content: set the annotation {GENERATION}, or the revision of the target in spec.descriptor.revision"
        );
        return Err(problems::semantic_error("metadata.annotations", rule));
    }
    if is_of_target(named, entry, desired) {
        return Ok(AppliedContent::Of(entry.target_generation));
    }
    Ok(AppliedContent::Other(cut(named.to_owned(), CODE_BYTES_MAX)))
}

/// Whether a revision is that of the target: of every component that has one, or the commit that the target comes from.
fn is_of_target(named: &str, entry: &DesiredDeployment, desired: &DesiredState) -> bool {
    let mut revisions =
        entry.profile.components.iter().filter_map(|one| one.properties.get("revision")?.as_str());
    let is_of_components =
        revisions.next().is_some_and(|first| first == named && revisions.all(|other| other == named));
    let source = &entry.source.as_ref().unwrap_or(&desired.source).revision;
    is_of_components || source == named || named.len() >= COMMIT_DIGITS_MIN && source.starts_with(named)
}

/// The members of a group that count, with their states.
fn members(group: &ResourceGroup) -> Vec<MemberState> {
    let spec = &group.spec;
    let listed =
        MembersByName::of(spec.resources.iter().chain(&spec.subgroups).map(|member| (member, member)));
    let statuses = MembersByName::of(group.statuses().map(|status| (&status.member, status)));
    let mut all: Vec<_> = spec
        .resources
        .iter()
        .chain(&spec.subgroups)
        .map(|member| {
            let status = statuses.get(member);
            status.map_or_else(|| MemberState::pending(member, "has no status yet"), MemberState::of)
        })
        .collect();
    let pruned = group.statuses().filter(|status| listed.get(&status.member).is_none());
    all.extend(pruned.map(MemberState::of_pruned));
    // A member that is being deleted belongs to an older content.
    all.retain(|member| member.state != State::Removed);
    let is_unobserved = is_unobserved(group);
    for member in &mut all {
        if group.metadata.deletion_timestamp.is_some() {
            member.state = State::Removing;
        } else if member.state == State::Installed
            && (is_unobserved || group.condition("Reconciling").is_some())
        {
            member.state = State::Installing;
        }
    }
    all
}

impl<'a, T: Copy> MembersByName<'a, T> {
    fn of(members: impl Iterator<Item = (&'a Member, T)>) -> Self {
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for (member, of) in members {
            let name = (member.namespace.as_str(), member.name.as_str());
            by_name.entry(name).or_default().push((member, of));
        }
        Self(by_name)
    }

    fn get(&self, wanted: &Member) -> Option<T> {
        let same_name = self.0.get(&(wanted.namespace.as_str(), wanted.name.as_str()))?;
        same_name.iter().find(|(member, _)| member.is(wanted)).map(|(_, of)| *of)
    }
}

/// Whether the status is of another content of the group than the present one.
fn is_unobserved(group: &ResourceGroup) -> bool {
    let observed = group.status.as_ref().map_or(0, |status| status.observed_generation);
    group.metadata.generation.is_some_and(|generation| generation != observed)
}

impl MemberState {
    fn pending(member: &Member, message: &str) -> Self {
        Self {
            member: member.clone(),
            state: State::Pending,
            code: String::new(),
            message: message.to_owned(),
            is_absent: false,
        }
    }

    fn of(status: &MemberStatus) -> Self {
        if status.strategy == "Delete" {
            return Self::of_pruned(status);
        }
        let (state, code) = match (status.actuation.as_str(), status.status.as_str()) {
            ("Failed", _) => (State::Failed, ACTUATION_FAILED),
            ("Pending" | "Skipped", _) | (_, "NotFound" | "") => (State::Pending, ""),
            (_, "Current") => (State::Installed, ""),
            (_, "Failed") => (State::Failed, FAILED),
            (_, "Terminating") => (State::Removing, ""),
            _ => (State::Installing, ""),
        };
        Self::with(status, state, code)
    }

    fn of_pruned(status: &MemberStatus) -> Self {
        let is_gone = status.status == "NotFound";
        Self::with(status, if is_gone { State::Removed } else { State::Installing }, "")
    }

    fn with(status: &MemberStatus, state: State, code: &str) -> Self {
        let said = status.conditions.iter().find(|condition| !condition.message.is_empty());
        let (reason, message) = said.map_or(("", ""), |said| (said.reason.as_str(), said.message.as_str()));
        let code = if state == State::Failed && code == FAILED && !reason.is_empty() { reason } else { code };
        let mut words =
            format!("is {}", if status.status.is_empty() { "without a status" } else { &status.status });
        for (what, word) in [("strategy", &status.strategy), ("actuation", &status.actuation)] {
            if !word.is_empty() && word != "Apply" && word != "Succeeded" {
                words += &format!(", {what} {word}");
            }
        }
        if !message.is_empty() {
            words += &format!(": {message}");
        }
        Self {
            member: status.member.clone(),
            state,
            code: cut(code.to_owned(), CODE_BYTES_MAX),
            message: words,
            is_absent: status.status == "NotFound"
                && !matches!(status.actuation.as_str(), "Pending" | "Skipped"),
        }
    }

    fn words(&self) -> String {
        format!("{} {}", self.member, self.message)
    }
}

/// The status of a target: each of its components.
fn targeted(
    entry: &DesiredDeployment,
    parts: &[CoveredPart<'_>],
) -> (DeploymentStatus, Vec<ComponentStatus>) {
    let targets = &entry.profile.components;
    let names = targets.iter().map(|component| component.name.as_str()).collect();
    let is_whole = |part: &&CoveredPart<'_>| part.component.is_none();
    let of = |name: &ComponentName| -> Vec<&CoveredPart<'_>> {
        let own: Vec<_> = parts.iter().filter(|part| part.component.as_ref() == Some(name)).collect();
        if own.is_empty() { parts.iter().filter(is_whole).collect() } else { own }
    };
    let mut reasons = Vec::new();
    let components: Vec<_> =
        targets.iter().map(|it| component(&it.name, &names, &of(&it.name), &mut reasons)).collect();
    finish(components, parts, reasons)
}

/// The status of a deployment that is no target any more.
fn leaving(parts: &[CoveredPart<'_>]) -> (DeploymentStatus, Vec<ComponentStatus>) {
    let members: Vec<_> = parts.iter().flat_map(|part| &part.members).collect();
    let is_gone = members.iter().all(|member| member.is_absent);
    let is_deleted = parts.iter().any(|part| part.group.metadata.deletion_timestamp.is_some());
    let state = match aggregate::overall(members.iter().map(|member| member.state), None) {
        _ if is_gone && is_deleted => State::Removing,
        _ if is_gone => State::Removed,
        state => state,
    };
    // A constant that is a name.
    let Ok(name) = REMAINDER.parse::<ComponentName>() else { return (plain(state), Vec::new()) };
    let failed: Vec<_> = members.into_iter().filter(|member| member.state == State::Failed).collect();
    let error = error_of(&failed, name.as_str());
    finish(vec![ComponentStatus { name, state, error }], &[], Vec::new())
}

/// The status of one component by the groups that cover it.
fn component(
    name: &ComponentName,
    names: &BTreeSet<&str>,
    parts: &[&CoveredPart<'_>],
    reasons: &mut Vec<String>,
) -> ComponentStatus {
    let other = parts.iter().find_map(|part| match &part.content {
        AppliedContent::Other(revision) => {
            Some(format!("the cluster has revision {revision}, not the target's"))
        }
        AppliedContent::Of(_) => None,
    });
    let all: Vec<&MemberState> = parts.iter().flat_map(|part| &part.members).collect();
    let own = |member: &&&MemberState| member.member.name == name.as_str();
    let is_shared = |member: &&&MemberState| !names.contains(member.member.name.as_str());
    let counted: Vec<&MemberState> = if all.iter().any(|member| own(&member)) {
        all.iter().filter(|member| own(member) || is_shared(member)).copied().collect()
    } else {
        all
    };
    let state = aggregate::overall(counted.iter().map(|member| member.state), None);
    let reason = match (other, parts, counted.is_empty()) {
        (Some(other), ..) => Some((State::Pending, other)),
        (None, [], _) => Some((State::Pending, "the cluster has no ResourceGroup of it".to_owned())),
        (None, [part, ..], true) => {
            let state = if part.group.metadata.deletion_timestamp.is_some() {
                State::Removing
            } else {
                State::Pending
            };
            Some((state, "the ResourceGroup has no resources".to_owned()))
        }
        (None, _, false) => None,
    };
    if let Some((state, reason)) = reason {
        reasons.push(reason);
        return ComponentStatus { name: name.clone(), state, error: None };
    }
    let failed: Vec<_> = counted.iter().filter(|member| member.state == State::Failed).copied().collect();
    if let Some(member) = counted.iter().find(|member| member.state == state && state != State::Installed) {
        reasons.push(member.words());
    }
    ComponentStatus { name: name.clone(), state, error: error_of(&failed, name.as_str()) }
}

/// The error of members that have failed.
fn error_of(failed: &[&MemberState], source: &str) -> Option<StatusError> {
    let first = failed.first()?;
    let more = if failed.len() > 1 { format!(" (and {} more)", failed.len() - 1) } else { String::new() };
    Some(StatusError::new(first.code.clone(), source, first.words() + &more))
}

/// The whole: the most severe of its components, or the group's own failure.
fn finish(
    mut components: Vec<ComponentStatus>,
    parts: &[CoveredPart<'_>],
    reasons: Vec<String>,
) -> (DeploymentStatus, Vec<ComponentStatus>) {
    let share = (MESSAGES_BYTES_MAX / components.len().max(1)).min(MESSAGE_BYTES_MAX);
    let failed = components.iter_mut().filter(|component| component.error.is_some());
    for (at, component) in failed.enumerate() {
        let error = component.error.take().filter(|_| at < ERRORS_MAX);
        component.error = error.map(|error| StatusError { message: cut(error.message, share), ..error });
    }
    let state = aggregate::overall(components.iter().map(|component| component.state), None);
    let is_of_target = |part: &&CoveredPart<'_>| matches!(part.content, AppliedContent::Of(_));
    let stalled = parts.iter().filter(is_of_target).find_map(|part| part.group.condition("Stalled"));
    let error = stalled.filter(|_| state != State::Failed).map(stalled_error);
    let state = if error.is_some() { State::Failed } else { state };
    let reason = reasons.into_iter().next().filter(|_| !matches!(state, State::Failed | State::Installed));
    let reason = reason.map(|reason| cut(reason, MESSAGE_BYTES_MAX));
    (DeploymentStatus { state, error, reason }, components)
}

fn stalled_error(condition: &Condition) -> StatusError {
    let code = if condition.reason.is_empty() { "Stalled" } else { &condition.reason };
    let message = if condition.message.is_empty() { "the group is stalled" } else { &condition.message };
    let message = cut(message.to_owned(), MESSAGE_BYTES_MAX);
    StatusError::new(cut(code.to_owned(), CODE_BYTES_MAX), "", message)
}

const fn plain(state: State) -> DeploymentStatus {
    DeploymentStatus { state, error: None, reason: None }
}

#[cfg(test)]
mod tests;
