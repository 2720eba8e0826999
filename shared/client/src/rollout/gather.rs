//! Gathers the rollouts of a deployment: its targets from the publisher, and the lines of its devices from the query service.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use muster_contract::canonical::Digest;
use muster_contract::query::{
    DevicesAnswer, GitStatus, Output, PAGE_MAX, PublisherQuery, PublisherStatus, Query,
};
use muster_contract::rollout::{
    HeldChange, OpenRollout, Rollout, RolloutPhase, RolloutRecord, TargetsAnswer, TargetsQuery,
};
use muster_contract::status::StatusQuery;
use muster_contract::view::Freshness;
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_domain::rollout::{Lines, RolloutProgress, progress};
use serde::Serialize;
use serde_json::{Value, json};

use crate::ask::{AskError, Hub, PAGES_MAX, understood};

/// Deployments that are asked about at the same time: a third of the requests of one requester that a service answers at once.
const DEPLOYMENTS_AT_ONCE: usize = 8;

/// The rollouts of a deployment, with what they were judged by.
#[derive(Debug)]
pub struct Gathered {
    /// The rollouts.
    pub rollouts: Vec<RolloutProgress>,
    /// The last accepted commit.
    pub revision: String,
    /// Each `rollout.yaml`, by its path.
    pub files: BTreeMap<String, Rollout>,
    /// The lines of the deployment's view.
    pub lines: Lines,
}

/// Changes that wait for a release, and rollouts under way.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldChanges {
    /// The changes.
    pub held: Vec<HeldChange>,
    /// Further ones that the publisher does not list.
    pub omitted: u64,
    /// Rollouts that have begun and not ended.
    pub open: Vec<OpenRollout>,
    /// Further ones that the publisher does not list.
    pub open_omitted: u64,
}

/// The held changes, by the publisher's status: those first that only a person or a commit continues, then those of most devices.
///
/// # Errors
/// No publisher answers, or it has no commit yet.
pub async fn held_changes(hub: &Hub) -> Result<HeldChanges, AskError> {
    let status: PublisherStatus = understood(&hub.publisher("status", &PublisherQuery::default()).await?)?;
    let mut changes = git_of(status)?.map_or_else(HeldChanges::default, |git| HeldChanges {
        held: git.held,
        omitted: git.held_omitted,
        open: git.open_rollouts,
        open_omitted: git.open_omitted,
    });
    changes.sort_worst_first();
    Ok(changes)
}

impl HeldChanges {
    /// Sorts for people. The publisher sorts for planners, which cannot continue a change that a decision holds.
    fn sort_worst_first(&mut self) {
        let is_under_way = |phase: RolloutPhase| phase.continued_by().is_none();
        self.held.sort_by_key(|change| (is_under_way(change.phase), Reverse(change.devices.count)));
        self.open.sort_by_key(|open| is_under_way(open.phase));
    }
}

/// The publisher's status of Git; `None` if it has no Git source.
///
/// # Errors
/// It has not published a commit whole yet: its empty list of held changes would be no evidence.
pub(super) fn git_of(status: PublisherStatus) -> Result<Option<GitStatus>, AskError> {
    let Some(git) = status.git else { return Ok(None) };
    if git.applied.is_some() {
        return Ok(Some(git));
    }
    let cause = git.error.or_else(|| {
        let since = git.hanging_since?;
        Some(format!("{} accepts requests and does not answer since {since}", git.url))
    });
    Err(AskError::NoCommit(cause.unwrap_or_else(|| format!("it reads {}; ask again", git.url))))
}

/// The rollouts of a deployment as of `now`; none if no rollout governs it.
///
/// # Errors
/// No publisher or query service answers, or the query service lags behind LEDGER.
pub async fn rollouts_at(
    hub: &Hub,
    id: &DeploymentId,
    now: Timestamp,
) -> Result<Vec<RolloutProgress>, AskError> {
    gathered(hub, id, now).await.map(|gathered| gathered.rollouts)
}

/// The rollouts of several deployments as of `now`, in the order of the deployments.
///
/// # Errors
/// As [`rollouts_at`]: the first error in that order.
pub async fn rollouts_of(
    hub: &Hub,
    deployments: impl IntoIterator<Item = DeploymentId>,
    now: Timestamp,
) -> Result<Vec<RolloutProgress>, AskError> {
    ask_each(deployments, |id| async move { rollouts_at(hub, &id, now).await }).try_concat().await
}

/// Asks about each deployment, several at the same time. The answers come in the order of the deployments.
pub(super) fn ask_each<F: Future>(
    deployments: impl IntoIterator<Item = DeploymentId>,
    ask: impl FnMut(DeploymentId) -> F,
) -> impl Stream<Item = F::Output> {
    stream::iter(deployments.into_iter().map(ask)).buffered(DEPLOYMENTS_AT_ONCE)
}

/// The rollouts of a deployment with waves that need approvals; their evidence is read only if there are some.
///
/// # Errors
/// As [`rollouts_at`].
pub async fn approvable(
    hub: &Hub,
    id: &DeploymentId,
    now: Timestamp,
) -> Result<Vec<RolloutProgress>, AskError> {
    let targets = targets(hub, id).await?;
    let needs_approval = |rollout: &Rollout| rollout.waves.iter().any(|wave| !wave.approval.is_none());
    if !targets.rollouts.values().any(needs_approval) {
        return Ok(Vec::new());
    }
    let lines = lines(hub, id, &targets).await?;
    Ok(progress(id, targets, &lines, now))
}

/// The rollouts of a deployment, with what they were judged by.
///
/// # Errors
/// As [`rollouts_at`].
pub async fn gathered(hub: &Hub, id: &DeploymentId, now: Timestamp) -> Result<Gathered, AskError> {
    let targets = targets(hub, id).await?;
    let lines = lines(hub, id, &targets).await?;
    let (revision, files) = (targets.revision.clone(), targets.rollouts.clone());
    Ok(Gathered { rollouts: progress(id, targets, &lines, now), revision, files, lines })
}

/// The version of a deployment's rollouts: their commit, contents and decisions. Evidence is no part of it, so it changes only by a
/// commit or a decision.
pub fn version(rollouts: &[RolloutProgress]) -> String {
    let part = |rollout: &RolloutProgress| {
        let RolloutProgress { revision, digest, file, record, .. } = rollout;
        json!({ "revision": revision, "digest": digest, "rollout": file, "record": record })
    };
    Digest::of_value(&rollouts.iter().map(part).collect::<Value>()).to_string()
}

/// All targets of a deployment that a rollout governs.
///
/// # Errors
/// No publisher answers, a new commit is accepted meanwhile, or the list does not end.
pub async fn targets(hub: &Hub, id: &DeploymentId) -> Result<TargetsAnswer, AskError> {
    targets_by(hub, id, None).await
}

/// The same by an earlier commit, or by the last accepted one.
///
/// # Errors
/// As [`targets`], or the publisher cannot read the commit.
pub async fn targets_by(
    hub: &Hub,
    id: &DeploymentId,
    revision: Option<String>,
) -> Result<TargetsAnswer, AskError> {
    let mut query = TargetsQuery { deployment: id.clone(), limit: Some(PAGE_MAX), after: None, revision };
    let mut whole: TargetsAnswer = understood(&hub.publisher("targets", &query).await?)?;
    for _ in 0..PAGES_MAX {
        let Some(next) = whole.next.take() else { return Ok(whole) };
        if query.after.as_ref() == Some(&next) {
            break;
        }
        query.after = Some(next);
        let page: TargetsAnswer = understood(&hub.publisher("targets", &query).await?)?;
        if !whole.append(page) {
            return Err(AskError::CommitChanged);
        }
    }
    Err(AskError::Endless { what: "targets" })
}

/// The recorded decisions about the rollouts of a deployment; `None` if no rollout governs it.
///
/// # Errors
/// As [`targets`].
pub(super) async fn recorded_decisions(
    hub: &Hub,
    id: &DeploymentId,
) -> Result<Option<Vec<RolloutRecord>>, AskError> {
    let TargetsAnswer { targets, decisions, .. } = targets(hub, id).await?;
    Ok((!targets.is_empty() || !decisions.is_empty()).then_some(decisions))
}

/// The line of each device of a deployment, and how targets without a line are heard.
async fn lines(hub: &Hub, id: &DeploymentId, targets: &TargetsAnswer) -> Result<Lines, AskError> {
    let mut lines = reported_lines(hub, id).await?;
    let keys = targets.targets.iter().map(|target| &target.key);
    let without: Vec<_> = keys.filter(|key| !lines.of_devices.contains_key(key)).collect();
    if without.is_empty() {
        return Ok(lines);
    }
    let hub = hub.fresh();
    let answer: DevicesAnswer = understood(&hub.pages("devices", "devices", Query::default()).await?)?;
    if hub.lag().is_some() {
        return Err(AskError::Lagging);
    }
    let heard = answer.devices.into_iter().map(|line| (line.key, (line.freshness, line.last_heard_at)));
    let heard: BTreeMap<_, _> = heard.collect();
    // LEDGER does not know a device that it does not list, so the device was never heard.
    let hearing = |key: &DeviceKey| heard.get(key).copied().unwrap_or((Freshness::Never, None));
    lines.hearings = without.into_iter().map(|key| (key.clone(), hearing(key))).collect();
    Ok(lines)
}

/// The line of each device of a deployment; none before LEDGER knows of the deployment.
async fn reported_lines(hub: &Hub, id: &DeploymentId) -> Result<Lines, AskError> {
    let (output, limit) = (Output::Brief, Some(PAGE_MAX));
    let mut query = StatusQuery { id: Some(id.clone()), output, limit, ..StatusQuery::default() };
    let (hub, mut lines) = (hub.fresh(), Lines::default());
    for _ in 0..PAGES_MAX {
        let page = match hub.status(&query).await {
            Ok(page) => page,
            Err(error) if error.not_found().is_some() => return Ok(lines),
            Err(error) => return Err(error),
        };
        if hub.lag().is_some() {
            return Err(AskError::Lagging);
        }
        lines.read_page(page.as_of.ledger_seq, query.after.is_none());
        lines.of_devices.extend(page.targets.into_iter().map(|line| (line.key.clone(), line)));
        if page.next.is_none() {
            return Ok(lines);
        }
        if page.next == query.after {
            break;
        }
        query.after = page.next;
    }
    Err(AskError::Endless { what: "devices" })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::task::yield_now;

    use super::*;

    #[test]
    fn what_only_a_person_continues_is_listed_first() {
        let held = |name: &str, count: u64, phase: &str| {
            json!({ "deployment": name, "rollout": "f", "since": "2026-11-24T00:00:00Z", "phase": phase,
                "devices": { "count": count, "first": [] } })
        };
        let of = |documents: Vec<serde_json::Value>| {
            documents.into_iter().map(|one| serde_json::from_value(one).unwrap())
        };
        let mut changes = HeldChanges {
            held: of(vec![held("a", 9, "running"), held("b", 1, "stopped"), held("c", 5, "paused")])
                .collect(),
            ..HeldChanges::default()
        };
        changes.sort_worst_first();
        let names: Vec<_> = changes.held.iter().map(|change| change.deployment.as_str()).collect();
        assert_eq!(names, ["c", "b", "a"]);
    }

    #[tokio::test]
    async fn deployments_are_asked_about_together_and_answer_in_order() {
        let (running, most) = (&Cell::new(0), &Cell::new(0));
        let all: Vec<DeploymentId> =
            (0..3 * DEPLOYMENTS_AT_ONCE).map(|at| format!("d{at}").parse().unwrap()).collect();
        // Each answers sooner than the one before.
        let mut turns = all.len();
        let answers = ask_each(all.clone(), |id| {
            turns -= 1;
            let turns = turns;
            async move {
                running.set(running.get() + 1);
                most.set(most.get().max(running.get()));
                for _ in 0..turns {
                    yield_now().await;
                }
                running.set(running.get() - 1);
                id
            }
        });
        assert_eq!(answers.collect::<Vec<_>>().await, all);
        assert_eq!((most.get(), running.get()), (DEPLOYMENTS_AT_ONCE, 0));
    }

    #[test]
    fn a_publisher_without_a_commit_gives_an_error_and_no_empty_list() {
        let example =
            include_bytes!("../../../../schemas/examples/good/PublisherStatus.holding-a-change.json");
        let status = |change: &dyn Fn(&mut GitStatus)| {
            let mut status: PublisherStatus = serde_json::from_slice(example).unwrap();
            status.git.iter_mut().for_each(change);
            git_of(status)
        };
        assert!(status(&|_| {}).unwrap().is_some());
        let without = |error: Option<&str>, hanging_since| {
            let refused = status(&|git| {
                git.applied = None;
                git.error = error.map(str::to_owned);
                git.hanging_since = hanging_since;
            });
            let error = refused.unwrap_err();
            assert!(error.may_pass(), "{error}");
            error.to_string()
        };
        assert!(without(Some("no such branch"), None).ends_with("no such branch"));
        let since = Timestamp::from_second(0).unwrap();
        assert!(without(None, Some(since)).ends_with("does not answer since 1970-01-01T00:00:00Z"));
        assert!(without(None, None).ends_with("ask again"));
        let mut none: PublisherStatus = serde_json::from_slice(example).unwrap();
        none.git = None;
        assert!(git_of(none).unwrap().is_none(), "without Git there are no rollouts");
    }
}
