//! `muster rollout`: what waits for a release, how far each wave is, releases, and decisions.
//!
//! It holds no state. The publisher knows the content of each device, the query service the evidence about it, and
//! [`muster_domain::rollout`] decides; so a command that is interrupted, or run twice, releases nothing twice.

pub mod approvals;
mod gather;
mod point_in_time;
mod screen;
mod verify;
mod watch;

use std::collections::BTreeMap;

use muster_client::rollout::{DecisionRequest, explain, previewed, release_all};
use muster_contract::canonical::Digest;
use muster_contract::limits::RELEASE_DEVICES_MAX;
use muster_contract::plans::OperationState;
use muster_contract::rollout::{ReleaseAnswer, ReleaseRequest, RolloutRecord, RolloutTarget, RolloutVerb};
use muster_contract::{DeploymentId, DeviceKey, WaveName};
use muster_domain::rollout::RolloutProgress;
use serde::Serialize;

use crate::config::{DecisionArgs, DeviceArg, PauseArgs, ReleaseArgs, RolloutCommand};
use crate::error::{CtlError, settled};
use crate::names::ShownNames;
use crate::render;
use crate::session::Session;

use self::gather::{governed, rollouts, ungoverned};

pub use self::approvals::{ApprovalEvent, ApprovalEventKind};
pub use muster_client::operations::{PendingApproval, PendingOperation};
pub use muster_client::rollout::{
    ApprovalRequest, BlockingRule, Decided, DeviceGroup, HeldChanges, Predicate, Previewed, RolloutDeadline,
    RolloutOperations, RolloutSnapshot, RolloutWhy, RolloutsFrame, RolloutsThen, StepTaken, Verification,
    VerifiedDecision, VerifiedRollout, VerifyResult, WaveBar, held_changes, rollouts_at, targets,
};

/// The decisions about the rollouts of a deployment.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct History {
    /// The deployment.
    pub deployment: DeploymentId,
    /// Its rollouts, the one that was decided about last at the end.
    pub rollouts: Vec<RolloutRecord>,
}

/// Runs a command; true if it did all that it was asked for.
///
/// # Errors
/// No publisher or query service answers, or the request is not possible.
pub async fn run(session: &mut Session<'_>, command: RolloutCommand) -> Result<bool, CtlError> {
    match command {
        RolloutCommand::List => list(session).await.map(|()| true),
        RolloutCommand::Show { deployment, at: None } => show(session, deployment).await.map(|()| true),
        RolloutCommand::Show { deployment, at: Some(at) } => {
            point_in_time::show(session, deployment, at).await.map(|()| true)
        }
        RolloutCommand::Watch(args) => watch::run(session, args).await,
        RolloutCommand::Preview { deployment } => preview(session, deployment).await.map(|()| true),
        RolloutCommand::Next { deployment, reason, .. } => next(session, deployment, reason).await,
        RolloutCommand::Approve { decision, wave } => approve(session, decision, wave).await,
        RolloutCommand::Reject { decision, wave } => reject(session, decision, wave).await,
        RolloutCommand::Pause(args) => pause(session, args).await,
        RolloutCommand::Resume(decision) => decide(session, decision, RolloutVerb::Resume).await,
        RolloutCommand::Stop(decision) => decide(session, decision, RolloutVerb::Stop).await,
        RolloutCommand::Abort(decision) => decide(session, decision, RolloutVerb::Abort).await,
        RolloutCommand::Rollback(decision) => decide(session, decision, RolloutVerb::Rollback).await,
        RolloutCommand::Retry(decision) => decide(session, decision, RolloutVerb::Retry).await,
        RolloutCommand::History { deployment } => history(session, deployment).await,
        RolloutCommand::Verify { deployment } => verify::run(session, deployment).await,
        RolloutCommand::Release(args) => release(session, args).await,
    }
}

/// Shows the held changes.
///
/// # Errors
/// No publisher answers.
async fn list(session: &mut Session<'_>) -> Result<(), CtlError> {
    let changes = held_changes(&session.hub).await?;
    let held = changes.held.iter().map(|change| &change.deployment);
    let names = ShownNames::of(session, held.chain(changes.open.iter().map(|open| &open.deployment))).await;
    session.show_own(&changes, |changes, now| {
        let mut shown = changes.clone();
        shown.held.iter_mut().for_each(|change| names.rename(&mut change.deployment));
        shown.open.iter_mut().for_each(|open| names.rename(&mut open.deployment));
        render::rollout::list(&shown, now)
    })
}

/// The rollouts with the name of their deployment, for people.
fn named(rollouts: &[RolloutProgress], names: &ShownNames) -> Vec<RolloutProgress> {
    let mut shown = rollouts.to_vec();
    shown.iter_mut().for_each(|rollout| names.rename(&mut rollout.deployment));
    shown
}

/// Shows the rollouts of a deployment.
///
/// # Errors
/// No publisher or query service answers, or no rollout governs the deployment.
async fn show(session: &mut Session<'_>, id: DeploymentId) -> Result<(), CtlError> {
    let found = rollouts(session, &id).await?;
    let (names, frame) = (ShownNames::of(session, [&id]).await, session.frame());
    session.show_own(&found, |found, _| render::rollout::show(&named(found, &names), frame))
}

/// Shows the releases of a deployment's rollouts as operations, of some states or of all.
///
/// # Errors
/// As [`show`].
pub async fn operations(
    session: &mut Session<'_>,
    id: DeploymentId,
    states: &[OperationState],
) -> Result<(), CtlError> {
    let found = rollouts(session, &id).await?;
    let all: Vec<_> = found.iter().flat_map(muster_client::rollout::operations).collect();
    let all = of_states(all, states);
    let frame = session.frame();
    session.show_own(&all, |all, _| render::rollout::operations(all, frame))
}

fn of_states(mut all: Vec<RolloutOperations>, states: &[OperationState]) -> Vec<RolloutOperations> {
    all.retain(|one| states.is_empty() || states.contains(&one.state));
    all
}

/// Says why each rollout of a deployment stands where it does.
///
/// # Errors
/// As [`show`].
pub async fn why(session: &mut Session<'_>, id: DeploymentId) -> Result<(), CtlError> {
    let found = governed(session, &id).await?;
    let all: Vec<_> = found.rollouts.iter().map(explain).collect();
    session.show_own(&all, |all, _| render::rollout::why(all))
}

/// Shows the wave of each device, the ones that are not heard, groups without room in the budget, and the earliest end.
///
/// # Errors
/// As [`show`].
async fn preview(session: &mut Session<'_>, id: DeploymentId) -> Result<(), CtlError> {
    let now = session.clock.now();
    let found = governed(session, &id).await?;
    let found = previewed(found, now);
    let frame = session.frame();
    session.show_own(&found, |found, now| render::rollout::preview(found, frame, now))
}

/// Takes the next step of each rollout of a deployment, with the approval that it needs, and past a gate if there is a reason to force
/// it; true if each was taken or is done.
///
/// # Errors
/// As [`show`]; a release that was made before stands.
async fn next(session: &mut Session<'_>, id: DeploymentId, force: Option<String>) -> Result<bool, CtlError> {
    let now = session.clock.now();
    let steps = muster_client::rollout::next(&session.hub, &id, force.as_deref(), now).await?;
    if steps.is_empty() {
        return Err(ungoverned(session, &id).await);
    }
    let is_well = steps.iter().all(StepTaken::is_well);
    let shown = session.show_own(&steps, |steps, _| render::rollout::steps(steps));
    settled(shown).map(|()| is_well)
}

/// Records a decision about each rollout of a deployment, or about one of them; true if each was recorded and no device was
/// refused.
///
/// # Errors
/// No publisher answers, or no rollout governs the deployment.
async fn decide(session: &mut Session<'_>, args: DecisionArgs, verb: RolloutVerb) -> Result<bool, CtlError> {
    let request = request(args);
    let all = muster_client::rollout::decide(&session.hub, &request, verb, session.clock.now()).await?;
    match (all.is_empty(), request.file) {
        (false, _) => decided(session, &all),
        (true, None) => Err(ungoverned(session, &request.deployment).await),
        (true, Some(file)) => {
            let message = format!("no rollout of '{}' is governed by '{file}'", request.deployment);
            Err(CtlError::Unknown { message, near: Vec::new() })
        }
    }
}

/// Pauses the rollouts of a deployment, or every rollout of the hub that may be paused; true if each is paused.
///
/// # Errors
/// As [`decide`].
async fn pause(session: &mut Session<'_>, args: PauseArgs) -> Result<bool, CtlError> {
    let PauseArgs { deployment, all: _, file, reason } = args;
    if let Some(deployment) = deployment {
        return decide(session, DecisionArgs { deployment, file, reason }, RolloutVerb::Pause).await;
    }
    let all = muster_client::rollout::pause_all(&session.hub, reason.as_ref(), session.clock.now()).await?;
    if all.is_empty() {
        session.terminal.print_note("muster: no rollout of the hub is to be paused\n");
    }
    decided(session, &all)
}

/// Approves a wave of each rollout of a deployment that has one, or of one of them.
///
/// # Errors
/// As [`decide`], or no wave waits for approval.
async fn approve(
    session: &mut Session<'_>,
    args: DecisionArgs,
    wave: Option<WaveName>,
) -> Result<bool, CtlError> {
    let (request, now) = (request(args), session.clock.now());
    let all = muster_client::rollout::approve(&session.hub, &request, wave.as_ref(), now).await?;
    if all.is_empty() {
        return Err(nothing_waits(session, &request, wave).await);
    }
    decided(session, &all)
}

/// Stops each rollout of a deployment, or one of them, with a wave that waits for approval.
///
/// # Errors
/// As [`approve`].
async fn reject(
    session: &mut Session<'_>,
    args: DecisionArgs,
    wave: Option<WaveName>,
) -> Result<bool, CtlError> {
    let (request, now) = (request(args), session.clock.now());
    let all = muster_client::rollout::reject(&session.hub, &request, wave.as_ref(), now).await?;
    if all.is_empty() {
        return Err(nothing_waits(session, &request, wave).await);
    }
    decided(session, &all)
}

/// The error of a decision about approvals if no wave waits for one.
async fn nothing_waits(session: &Session<'_>, request: &DecisionRequest, wave: Option<WaveName>) -> CtlError {
    let id = &request.deployment;
    match targets(&session.hub, id).await {
        Ok(answer) if answer.targets.is_empty() => return ungoverned(session, id).await,
        Ok(_) => {}
        Err(error) => return error.into(),
    }
    let what = wave.map_or_else(|| "no wave".to_owned(), |wave| format!("no wave '{wave}'"));
    CtlError::Name(format!("{what} of '{id}' waits for approval: `muster rollout show` lists the waves"))
}

fn request(args: DecisionArgs) -> DecisionRequest {
    let DecisionArgs { deployment, file, reason } = args;
    DecisionRequest { deployment, file, reason, versions: Vec::new() }
}

fn decided(session: &mut Session<'_>, all: &[Decided]) -> Result<bool, CtlError> {
    let is_well = all.iter().all(Decided::is_well);
    settled(session.show_own(&all, |all, _| render::rollout::decided(all))).map(|()| is_well)
}

/// Shows the decisions about the rollouts of a deployment.
///
/// # Errors
/// No publisher answers.
async fn history(session: &mut Session<'_>, deployment: DeploymentId) -> Result<bool, CtlError> {
    let rollouts = targets(&session.hub, &deployment).await?.decisions;
    let (names, frame) = (ShownNames::of(session, [&deployment]).await, session.frame());
    session.show_own(&History { deployment, rollouts }, |history, _| {
        let mut shown = history.clone();
        names.rename(&mut shown.deployment);
        render::rollout::history(&shown, frame)
    })?;
    Ok(true)
}

/// Releases to devices without regard to gates; true if no device was refused.
///
/// # Errors
/// The digest is unknown, or no publisher answers.
async fn release(session: &mut Session<'_>, args: ReleaseArgs) -> Result<bool, CtlError> {
    let targets = targets(&session.hub, &args.deployment).await?.targets;
    let digest = args.digest.as_deref().map(|text| digest_of(text, &targets)).transpose()?;
    let devices = if args.all {
        targets.iter().map(|target| target.key.clone()).collect()
    } else {
        args.devices.into_iter().map(DeviceArg::resolved).collect::<Result<_, _>>()?
    };
    let mut answer = ReleaseAnswer { released: Vec::new(), refused: Vec::new() };
    for (digest, devices) in by_digest(digest, devices, &targets) {
        let request = ReleaseRequest {
            digest,
            force: args.force,
            ..ReleaseRequest::new(args.deployment.clone(), devices)
        };
        let part = release_all(&session.hub, request, RELEASE_DEVICES_MAX).await?;
        answer.released.extend(part.released);
        answer.refused.extend(part.refused);
    }
    let is_well = answer.refused.is_empty();
    let shown = session.show_own(&answer, |answer, _| render::rollout::released(&args.deployment, answer));
    settled(shown).map(|()| is_well)
}

/// The devices by the content that each gets: the one asked for, or the one that Git wants for it.
fn by_digest(
    digest: Option<Digest>,
    devices: Vec<DeviceKey>,
    targets: &[RolloutTarget],
) -> BTreeMap<Option<Digest>, Vec<DeviceKey>> {
    let wanted: BTreeMap<_, _> = targets.iter().map(|target| (&target.key, target.wanted)).collect();
    let mut by_digest: BTreeMap<Option<Digest>, Vec<DeviceKey>> = BTreeMap::new();
    for key in devices {
        let content = digest.or_else(|| wanted.get(&key).copied().flatten());
        by_digest.entry(content).or_default().push(key);
    }
    by_digest
}

/// The digest that a text names: a whole one, or the beginning of one of the targets.
fn digest_of(text: &str, targets: &[RolloutTarget]) -> Result<Digest, CtlError> {
    if let Ok(digest) = text.parse() {
        return Ok(digest);
    }
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    let of_targets = targets.iter().flat_map(|target| [target.wanted, target.published]).flatten();
    let start = format!("sha256:{digits}");
    let mut found: Vec<_> = of_targets.filter(|digest| digest.to_string().starts_with(&start)).collect();
    found.sort_unstable();
    found.dedup();
    match found[..] {
        [digest] if !digits.is_empty() => Ok(digest),
        [] => Err(CtlError::Name(format!(
            "no target has the content '{text}', and Git wants it for none; name an earlier content by its whole digest"
        ))),
        _ => Err(CtlError::Name(format!("'{text}' is the beginning of several digests: name more of it"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(key: &str, wanted: &str) -> RolloutTarget {
        RolloutTarget {
            key: key.parse().unwrap(),
            labels: Default::default(),
            rollout: "fleet/rollout.yaml".to_owned(),
            wanted: Some(Digest::of_bytes(wanted.as_bytes())),
            published: None,
            target_generation: None,
            published_at: None,
            refused: None,
        }
    }

    #[test]
    fn a_digest_is_named_by_a_beginning_that_one_target_has() {
        let targets = [target("a/one", "v1"), target("a/two", "v2"), target("a/three", "v1")];
        let digest = Digest::of_bytes(b"v1");
        let text = digest.to_string();
        for name in [&text[..], &text[..14], &text[7..14]] {
            assert_eq!(digest_of(name, &targets).unwrap(), digest, "{name}");
        }
        for (name, words) in [("", "several digests"), ("sha256:zz", "whole digest")] {
            assert!(digest_of(name, &targets).unwrap_err().to_string().contains(words), "{name}");
        }
        let earlier = Digest::of_bytes(b"v0");
        assert_eq!(digest_of(&earlier.to_string(), &targets).unwrap(), earlier, "only the publisher knows");
    }

    #[test]
    fn without_a_digest_each_device_gets_what_git_wants_for_it() {
        let targets = [target("a/one", "v1"), target("a/two", "v2")];
        let keys = || targets.iter().map(|target| target.key.clone()).collect::<Vec<_>>();
        assert_eq!(by_digest(None, keys(), &targets).len(), 2);
        assert_eq!(by_digest(targets[0].wanted, keys(), &targets)[&targets[0].wanted], keys());
    }
}
