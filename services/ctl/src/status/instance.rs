//! `--instance`: an older revision of a deployment, as it stood when the next one took its place. Which ones there were is
//! asked of `muster.query.actions`; what was true of one is a point of the past like any other. Whether LEDGER or a checkpoint
//! still leads to that point is known to whoever is asked for it.

use muster_contract::DeploymentId;
use muster_contract::actions::{ACTIONS_MAX, Action, ActionsAnswer};
use muster_contract::query::Query;

use crate::ask::{AskError, understood};
use crate::error::CtlError;
use crate::history::patiently;
use crate::session::Session;

/// Revisions that are named where none is the one that was asked for.
const NEAR_MAX: usize = 4;

/// The words if no service answers.
const OF_ONE_HUB: &str = "no muster-rollup tells the revisions of a deployment: is one running? --instance is of one hub, because \
                          each has a LEDGER of its own; over several hubs name a time (--at)";

/// The sequence of LEDGER at which an instance was last in force; none where it is in force still.
///
/// # Errors
/// When nobody answers, or no action or more than one goes by this name.
pub(super) async fn ended(
    session: &mut Session<'_>,
    id: &DeploymentId,
    instance: &str,
) -> Result<Option<u64>, CtlError> {
    let query = Query { id: Some(id.clone()), ..Query::default() };
    let answer = match patiently(session, "actions", &query).await {
        Ok(answer) => understood::<ActionsAnswer>(&answer)?,
        // A federation has no such question.
        Err(AskError::NoService { .. }) => return Err(CtlError::Usage(OF_ONE_HUB.to_owned())),
        Err(error) => return Err(super::with_near_deployments(session, error, id).await),
    };
    last_of(&answer, instance)
}

fn last_of(answer: &ActionsAnswer, instance: &str) -> Result<Option<u64>, CtlError> {
    let at = find_action(&answer.actions, instance).map_err(|why| unknown(answer, instance, why))?;
    Ok(answer.actions.get(at + 1).map(|next| next.ledger_seq.saturating_sub(1)))
}

/// Which action it is: the newest of this revision, the one at this place of LEDGER, or the newest of the only revision that
/// begins so.
fn find_action(actions: &[Action], instance: &str) -> Result<usize, &'static str> {
    let seq = instance.parse::<u64>().ok();
    let whole = actions.iter().rposition(|action| revision(action) == Some(instance));
    let placed = actions.iter().position(|action| Some(action.ledger_seq) == seq);
    match (whole, placed) {
        (Some(at), None) | (None, Some(at)) => return Ok(at),
        (Some(_), Some(_)) => return Err("more than one"),
        (None, None) => {}
    }
    let named = |action: &&Action| revision(action).is_some_and(|revision| revision.starts_with(instance));
    let mut revisions: Vec<_> = actions.iter().filter(named).filter_map(revision).collect();
    revisions.sort_unstable();
    revisions.dedup();
    let revision_of = match revisions.as_slice() {
        [only] => *only,
        [] => return Err("none"),
        _ => return Err("more than one"),
    };
    let newest = actions.iter().rposition(|action| revision(action) == Some(revision_of));
    newest.ok_or("none")
}

fn revision(action: &Action) -> Option<&str> {
    action.source.as_ref().map(|source| source.revision.as_str())
}

fn unknown(answer: &ActionsAnswer, instance: &str, why: &str) -> CtlError {
    let message = format!(
        "{why} of the revisions of '{}' that are told is '{instance}' or begins with it: the newest {ACTIONS_MAX} that LEDGER \
         holds; what is older a time leads to (--at)",
        answer.deployment
    );
    let told = answer.actions.iter().rev().take(NEAR_MAX);
    let near = told.map(|action| match revision(action) {
        Some(revision) => format!("{revision} ({})", action.ledger_seq),
        None => format!("{} (removed)", action.ledger_seq),
    });
    CtlError::Unknown { message, near: near.collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told() -> ActionsAnswer {
        let action = |action: &str, seq: u64, revision: Option<&str>| {
            let source = revision.map(|revision| json!({"kind": "git", "revision": revision}));
            let at = "2026-11-20T10:00:00Z";
            let mut told = json!({"action": action, "at": at, "ledgerSeq": seq});
            if let Some(source) = source {
                told["source"] = source;
            }
            told
        };
        let actions = [
            action("published", 10, Some("aa11")),
            action("changed", 20, Some("ab22")),
            action("changed", 30, Some("aa11")),
            action("removed", 40, None),
        ];
        let answer = json!({"deployment": "web", "ledgerSeq": 50, "actions": actions});
        serde_json::from_value(answer).unwrap()
    }

    #[test]
    fn q10_an_instance_is_as_of_the_last_fact_before_the_next_one() {
        for (instance, last) in [
            ("10", Some(19)),
            ("ab22", Some(29)),
            ("ab", Some(29)),
            // Gone back to: the newest of the two.
            ("aa11", Some(39)),
            ("30", Some(39)),
            ("40", None),
        ] {
            assert_eq!(last_of(&told(), instance).unwrap(), last, "{instance}");
        }
    }

    #[test]
    fn q10_a_request_that_is_named_like_a_place_in_ledger_is_not_taken_for_it() {
        let mut answer = told();
        answer.actions[0].source.as_mut().unwrap().revision = "20".to_owned();
        assert!(last_of(&answer, "20").is_err(), "the request, and where another stands");
        assert_eq!(last_of(&answer, "10").unwrap(), Some(19));
    }

    #[test]
    fn q10_an_instance_that_is_none_or_several_is_refused_with_those_there_are() {
        for (instance, why) in [("a", "more than one of"), ("cc", "none of"), ("11", "none of")] {
            let Err(CtlError::Unknown { message, near }) = last_of(&told(), instance) else {
                panic!("{instance}")
            };
            assert!(message.starts_with(why) && message.contains(&format!("'{instance}'")), "{message}");
            assert_eq!(near, ["40 (removed)", "aa11 (30)", "ab22 (20)", "aa11 (10)"]);
        }
    }
}
