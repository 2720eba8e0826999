//! `muster watch approvals`: the waves that wait for an approval, each told once, and what became of it. It begins with all
//! that wait, so a start after an interruption misses none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_client::rollout::approvable;
use muster_contract::canonical::Digest;
use muster_contract::query::{PublisherQuery, PublisherStatus};
use muster_contract::rollout::Approval;
use muster_contract::{DeploymentId, Timestamp};
use muster_domain::rollout::{ApprovalCount, Blocked, Gate, RolloutProgress, Step};
use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::screen::Screen;
use super::watch::{is_waited_for, until_over};
use crate::ask::{AskError, Hub, PAGES_MAX, understood};
use crate::config::Format;
use crate::error::CtlError;
use crate::render;
use crate::session::Session;
use crate::watch::is_redrawn;

/// Time between two questions.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// A wave that waits for an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalRequest {
    /// The deployment.
    pub deployment: DeploymentId,
    /// The content.
    pub digest: Digest,
    /// Path of the `rollout.yaml`.
    pub rollout: String,
    /// The wave.
    pub wave: String,
    /// Devices of the wave.
    pub devices: u64,
    /// Its approvals.
    pub approvals: ApprovalCount,
}

/// An event of an approval, as `muster watch approvals` prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalEvent {
    /// The kind of event.
    pub event: ApprovalEventKind,
    /// The request.
    #[serde(flatten)]
    pub request: ApprovalRequest,
    /// Time at which this program has seen it.
    pub at: Timestamp,
}

/// A kind of event of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ApprovalEventKind {
    /// The wave waits, or its number of approvals has changed.
    Waiting,
    /// The wave has begun, or may begin.
    Approved,
    /// The rollout is paused, has ended, or waits for something else.
    Ended,
}

/// The key of a request: deployment, content, path and wave.
type RequestKey = (DeploymentId, Digest, String, String);

/// The requests that were printed.
#[derive(Default)]
struct Requests {
    waiting: BTreeMap<RequestKey, ApprovalRequest>,
    has_answered: bool,
    screen: Screen,
}

/// The requests for approval at one moment, and the state of the other waves.
struct ApprovalState {
    waiting: BTreeMap<RequestKey, ApprovalRequest>,
    /// Waves that have begun or may begin.
    approved: BTreeSet<RequestKey>,
    /// Deployments that could not be judged now.
    unknown: BTreeSet<DeploymentId>,
}

/// Follows the approvals that are waited for.
///
/// # Errors
/// Nobody answers the first question, or the output cannot be written.
pub async fn run(session: &mut Session<'_>, within: Option<Duration>) -> Result<(), CtlError> {
    let over = within.map(|within| Instant::now() + within);
    let mut requests = Requests::default();
    let mut ticks = interval(ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    loop {
        let question = async {
            ticks.tick().await;
            read_approvals(session, &requests.waiting).await
        };
        let answer = tokio::select! {
            answer = question => answer,
            () = until_over(over) => return Ok(()),
            _ = &mut interrupted => return Ok(()),
        };
        match answer {
            Ok(state) => requests.show(session, state)?,
            Err(error) if is_waited_for(&error, requests.has_answered) => requests.fail(session, &error)?,
            Err(error) => return Err(error),
        }
    }
}

/// Asks once about every rollout that is under way or holds a change.
async fn read_approvals(
    session: &Session<'_>,
    before: &BTreeMap<RequestKey, ApprovalRequest>,
) -> Result<ApprovalState, CtlError> {
    let mut deployments = under_way(&session.hub).await?;
    deployments.extend(before.keys().map(|(deployment, ..)| deployment.clone()));
    let mut state =
        ApprovalState { waiting: BTreeMap::new(), approved: BTreeSet::new(), unknown: BTreeSet::new() };
    for id in deployments {
        match approvable(&session.hub, &id, session.clock.now()).await {
            Ok(rollouts) => rollouts.iter().for_each(|rollout| state.add(rollout)),
            // A commit that comes in between concerns one deployment.
            Err(AskError::CommitChanged) => _ = state.unknown.insert(id),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(state)
}

/// The deployments with a held change or an open rollout.
async fn under_way(hub: &Hub) -> Result<BTreeSet<DeploymentId>, AskError> {
    let (mut deployments, mut after) = (BTreeSet::new(), String::new());
    for _ in 0..PAGES_MAX {
        let query = PublisherQuery { rollouts_after: Some(after), ..PublisherQuery::default() };
        let status: PublisherStatus = understood(&hub.publisher("status", &query).await?)?;
        let Some(git) = status.git else { return Ok(deployments) };
        after = git.rollout_deployments.last().map(ToString::to_string).unwrap_or_default();
        deployments.extend(git.rollout_deployments);
        if !git.has_more_deployments {
            return Ok(deployments);
        }
    }
    Err(AskError::Endless { what: "rollouts" })
}

impl ApprovalState {
    fn add(&mut self, rollout: &RolloutProgress) {
        let RolloutProgress { deployment, digest, file, record, policy, .. } = rollout;
        let key = |wave: &str| (deployment.clone(), *digest, file.clone(), wave.to_owned());
        for (at, wave) in rollout.state.waves.iter().enumerate() {
            let Some(count) = wave.approvals else { continue };
            let is_after = policy.waves.get(at).is_some_and(|wave| wave.approval == Approval::After);
            let has_begun = || record.as_ref().is_some_and(|record| record.began(&wave.name).is_some());
            let has_passed = if is_after { wave.gate == Gate::Open } else { has_begun() };
            if has_passed || count.given >= count.needed {
                self.approved.insert(key(&wave.name));
            }
        }
        if let Step::Release { wave, needs_approval: true, .. }
        | Step::Wait { wave, because: Blocked::Approval } = rollout.state.step
            && let Some(wave) = rollout.state.waves.get(wave)
            && let Some(approvals) = wave.approvals
        {
            let request = ApprovalRequest {
                deployment: deployment.clone(),
                digest: *digest,
                rollout: file.clone(),
                wave: wave.name.clone(),
                devices: wave.tally.targets,
                approvals,
            };
            self.waiting.insert(key(&wave.name), request);
        }
    }
}

impl Requests {
    /// Applies an answer; returns the events since the last one.
    fn events(&mut self, state: ApprovalState, at: Timestamp) -> Vec<ApprovalEvent> {
        let ApprovalState { mut waiting, approved, unknown } = state;
        let mut events = Vec::new();
        for (key, request) in std::mem::take(&mut self.waiting) {
            if unknown.contains(&key.0) {
                waiting.insert(key, request);
            } else if !waiting.contains_key(&key) {
                let is_approved = approved.contains(&key);
                let event = if is_approved { ApprovalEventKind::Approved } else { ApprovalEventKind::Ended };
                events.push(ApprovalEvent { event, request, at });
            } else {
                self.waiting.insert(key, request);
            }
        }
        for (key, request) in &waiting {
            if self.waiting.get(key) != Some(request) && !unknown.contains(&key.0) {
                let event = ApprovalEventKind::Waiting;
                events.push(ApprovalEvent { event, request: request.clone(), at });
            }
        }
        self.waiting = waiting;
        events
    }

    fn show(&mut self, session: &mut Session<'_>, state: ApprovalState) -> Result<(), CtlError> {
        let is_first = !std::mem::replace(&mut self.has_answered, true);
        self.screen.answer(session);
        let events = self.events(state, session.clock.now());
        if is_redrawn(session) {
            return self.redraw(session);
        }
        if is_first && events.is_empty() {
            session.terminal.print_note("muster: no wave waits for an approval; waiting for one\n");
        }
        for event in events {
            match session.format {
                Format::Json => {
                    let json = serde_json::to_string(&event).unwrap_or_default();
                    session.terminal.print_json(&(json + "\n"))?;
                }
                Format::Table => session.terminal.print(&render::rollout::approval(&event))?,
            }
        }
        Ok(())
    }

    /// Records that there is no answer.
    fn fail(&mut self, session: &mut Session<'_>, error: &CtlError) -> Result<(), CtlError> {
        self.screen.fail(session, error);
        if is_redrawn(session) { self.redraw(session) } else { Ok(()) }
    }

    fn redraw(&mut self, session: &mut Session<'_>) -> Result<(), CtlError> {
        let text = render::rollout::approvals(self.waiting.values(), session.frame());
        self.screen.redraw(session, &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(given: usize) -> (RequestKey, ApprovalRequest) {
        let request = ApprovalRequest {
            deployment: "web".parse().unwrap(),
            digest: Digest::of_bytes(b"v2"),
            rollout: "fleet/rollout.yaml".to_owned(),
            wave: "quarter".to_owned(),
            devices: 3,
            approvals: ApprovalCount { given, needed: 2 },
        };
        let ApprovalRequest { deployment, digest, rollout, wave, .. } = request.clone();
        ((deployment, digest, rollout, wave), request)
    }

    fn state(waiting: &[usize], is_approved: bool, is_unknown: bool) -> ApprovalState {
        let key = request(0).0;
        ApprovalState {
            waiting: waiting.iter().map(|given| request(*given)).collect(),
            approved: is_approved.then(|| key.clone()).into_iter().collect(),
            unknown: is_unknown.then_some(key.0).into_iter().collect(),
        }
    }

    #[test]
    fn a_request_is_told_once_then_when_it_changes_and_how_it_ends() {
        use ApprovalEventKind::{Approved, Ended, Waiting};
        let mut requests = Requests::default();
        let mut events = |state| {
            let events = requests.events(state, Timestamp::UNIX_EPOCH);
            events.iter().map(|event| event.event).collect::<Vec<_>>()
        };
        for (what, expected) in [
            (state(&[0], false, false), vec![Waiting]),
            (state(&[0], false, false), vec![]),
            (state(&[], false, true), vec![]),
            (state(&[1], false, false), vec![Waiting]),
            (state(&[], true, false), vec![Approved]),
            (state(&[], true, false), vec![]),
            (state(&[0], false, false), vec![Waiting]),
            (state(&[], false, false), vec![Ended]),
        ] {
            assert_eq!(events(what), expected);
        }
    }
}
