//! `states` of a plan, as EMCO writes its history, from the versions of the plan that PLANS still has.
//!
//! A revision is `Instantiated` once it begins, and its predecessor then `Updated`; one that is refused or cancelled before has no
//! entry. A revision of 0 instances is `Terminated` once it is completed, or leaves its predecessor `Updated` if it ends a migration. A
//! person's stop gives `InstantiateStopped` or `TerminateStopped`, unless a later revision has begun. The approval of a whole revision
//! is `Approved`; approvals of single operations, and of a termination, have no entry.
//!
//! `instance` is the id of a revision, `revision` the sequence of PLANS at which the entry was made, 0 where EMCO has 0. Earlier
//! versions than those of `actionsSince` are not kept.

use muster_contract::Timestamp;
use muster_contract::limits::PLANS_HISTORY;
use muster_contract::plans::{
    Plan, PlanRevision, PlansChangesAnswer, PlansChangesQuery, RevisionState, StoredPlansChange,
};
use muster_domain::plans::REVISION_STOPPED;
use serde_json::{Value, json};

use crate::ask::{AskError, Hub, understood};

/// The history of a plan.
///
/// # Errors
/// The planner refuses or does not answer.
pub(super) async fn read(hub: &Hub, plan: &Plan) -> Result<Value, AskError> {
    let subject = vec![format!("muster.plan.{}", plan.spec.name)];
    let mut query = PlansChangesQuery { subject, limit: None, after: None };
    let mut versions = Vec::new();
    // A page has one version at least.
    for _ in 0..=PLANS_HISTORY {
        let page: PlansChangesAnswer = understood(&hub.planner("change-list", &query).await?)?;
        versions.extend(page.changes.into_iter().filter_map(|change| version_of(plan, change)));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    Ok(states(plan, &versions))
}

/// A version with its sequence, if it is of this plan: an earlier plan of the same name has another id.
fn version_of(plan: &Plan, change: StoredPlansChange) -> Option<(u64, Plan)> {
    let version = serde_json::from_value::<Plan>(Value::Object(change.document)).ok()?;
    (version.uid == plan.uid).then_some((change.seq, version))
}

fn states(plan: &Plan, versions: &[(u64, Plan)]) -> Value {
    let mut history = History { actions: vec![action("Created", plan.created_at, "", 0)], running: None };
    let mut before: Option<&Plan> = None;
    for (seq, version) in versions {
        if before.is_some() || version.version == 0 {
            version.revisions.iter().for_each(|revision| {
                let was = before.and_then(|before| before.revisions.iter().find(|was| was.id == revision.id));
                history.add(was, revision, version.change.at, *seq);
            });
        } else {
            let begun = version.revisions.iter().rfind(|one| has_begun(one.state) || is_stopped(one));
            history.running = begun.filter(|revision| revision.instances > 0).map(|of| of.id.to_string());
        }
        before = Some(version);
    }
    let has_any = versions.iter().any(|(_, version)| !version.revisions.is_empty());
    let mut states =
        json!({ "statusctxid": if has_any { &*plan.uid } else { "" }, "actions": history.actions });
    let oldest = versions.first().filter(|(_, oldest)| oldest.version > 0);
    if let Some((_, oldest)) = oldest {
        states["actionsSince"] = oldest.change.at.to_string().into();
    }
    states
}

/// Whether a revision makes operations, or has completed them. A cancelled or failed revision may have made none.
const fn has_begun(state: RevisionState) -> bool {
    matches!(state, RevisionState::InProgress | RevisionState::Paused | RevisionState::Completed)
}

/// The entries so far, and the revision that runs.
struct History {
    actions: Vec<Value>,
    running: Option<String>,
}

impl History {
    /// Adds the entries of a revision that stands otherwise than before, at this time and sequence.
    fn add(&mut self, was: Option<&PlanRevision>, is: &PlanRevision, at: Timestamp, seq: u64) {
        let is_approved_now = is.approval.is_some() && was.is_none_or(|was| was.approval.is_none());
        if is.instances > 0 && is_approved_now {
            self.actions.push(action("Approved", at, "", 0));
        }
        let had_begun = was.is_some_and(|was| was.state != RevisionState::Pending);
        if is.instances > 0 && !had_begun && has_begun(is.state) {
            if let Some(before) = self.running.replace(is.id.to_string()) {
                self.actions.push(action("Updated", at, &before, seq));
            }
            self.actions.push(action("Instantiated", at, is.id.as_str(), seq));
        }
        let was_completed = was.is_some_and(|was| was.state == RevisionState::Completed);
        if is.instances == 0 && is.state == RevisionState::Completed && !was_completed {
            let is_migration = is.migrated_to.is_some();
            let (state, number) = if is_migration { ("Updated", seq) } else { ("Terminated", 0) };
            let ended = self.running.take();
            self.actions.extend(ended.map(|before| action(state, at, &before, number)));
        }
        let was_stopped = was.is_some_and(is_stopped);
        if is_stopped(is) && !was_stopped {
            match &self.running {
                Some(running) if is.instances == 0 && is.migrated_to.is_none() => {
                    self.actions.push(action("TerminateStopped", at, running, seq));
                }
                Some(running) if *running == is.id.as_str() => {
                    self.actions.push(action("InstantiateStopped", at, running, seq));
                }
                _ => {}
            }
        }
    }
}

fn is_stopped(revision: &PlanRevision) -> bool {
    revision.state == RevisionState::Failed && revision.message == REVISION_STOPPED
}

fn action(state: &str, at: Timestamp, instance: &str, revision: u64) -> Value {
    json!({ "state": state, "instance": instance, "time": at.to_string(), "revision": revision })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions of a plan, each with its revisions: id, instances and state. A failed one was stopped.
    fn versions(of: &[&[(&str, u32, RevisionState)]], from: u64) -> Vec<(u64, Plan)> {
        let example = include_bytes!("../../../../../schemas/examples/good/Plan.in-progress.json");
        let plan: Plan = serde_json::from_slice(example).unwrap();
        let revision = |(id, instances, state): &(&str, u32, RevisionState)| PlanRevision {
            id: id.parse().unwrap(),
            instances: *instances,
            state: *state,
            message: if *state == RevisionState::Failed {
                REVISION_STOPPED.to_owned()
            } else {
                String::new()
            },
            ..plan.revisions[0].clone()
        };
        let version = |(at, revisions): (usize, &&[_])| {
            let version = from + at as u64;
            let revisions = revisions.iter().map(revision).collect();
            (10 + version, Plan { version, revisions, ..plan.clone() })
        };
        of.iter().enumerate().map(version).collect()
    }

    fn entries(of: &[&[(&str, u32, RevisionState)]], from: u64) -> Vec<String> {
        let versions = versions(of, from);
        let states = states(&versions[0].1, &versions);
        assert_eq!(states["actionsSince"].is_string(), from > 0, "{states}");
        let actions = states["actions"].as_array().unwrap().iter();
        let words = |one: &Value| {
            format!("{} {} {}", one["state"], one["instance"], one["revision"]).replace('"', "")
        };
        actions.map(words).collect()
    }

    #[test]
    fn a_history_has_what_began_ended_or_was_stopped() {
        use RevisionState::{Cancelled, Completed, Failed, InProgress, Pending};
        let whole = entries(
            &[
                &[],
                &[("a", 2, Pending)],
                &[("a", 2, InProgress)],
                &[("a", 2, Completed)],
                &[("a", 2, Completed), ("b", 2, Pending)],
                &[("a", 2, Completed), ("b", 2, Cancelled)],
                &[("a", 2, Completed), ("b", 2, Cancelled), ("c", 3, InProgress)],
                &[("a", 2, Completed), ("b", 2, Cancelled), ("c", 3, Failed)],
                &[("c", 3, Failed), ("d", 0, InProgress)],
                &[("c", 3, Failed), ("d", 0, Cancelled)],
                &[("c", 3, Failed), ("e", 0, InProgress)],
                &[("c", 3, Failed), ("e", 0, Completed)],
            ],
            0,
        );
        assert_eq!(
            whole,
            [
                "Created  0",
                "Instantiated a 12",
                "Updated a 16",
                "Instantiated c 16",
                "InstantiateStopped c 17",
                "Terminated c 0"
            ]
        );
    }

    #[test]
    fn a_history_whose_begin_is_not_kept_says_since_when_it_is_whole() {
        use RevisionState::{Completed, Failed, InProgress};
        let rest = entries(
            &[
                &[("a", 2, Completed)],
                &[("a", 2, Completed), ("b", 2, InProgress)],
                &[("a", 2, Completed), ("b", 2, InProgress), ("c", 0, InProgress)],
                &[("a", 2, Completed), ("b", 2, Failed), ("c", 0, Failed)],
            ],
            7,
        );
        assert_eq!(
            rest,
            [
                "Created  0",
                "Updated a 18",
                "Instantiated b 18",
                "InstantiateStopped b 20",
                "TerminateStopped b 20"
            ]
        );
    }
}
