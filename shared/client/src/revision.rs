//! Finds a revision of a deployment by name, and the last point of LEDGER at which it was in force. The actions come from
//! `muster.query.actions`; this module sends no request.

use muster_contract::actions::{ACTIONS_MAX, Action, ActionsAnswer};

/// Revisions that a refusal lists.
const NEAR_MAX: usize = 4;

/// No revision or more than one has the name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UnknownRevision {
    /// The reason.
    pub message: String,
    /// The newest revisions.
    pub near: Vec<String>,
}

/// The sequence of LEDGER at which a revision was last in force; `None` if it still is. `instance` is a commit or request, the
/// beginning of one, or the sequence of its action in LEDGER.
///
/// # Errors
/// No revision or more than one has this name.
pub fn last_of(answer: &ActionsAnswer, instance: &str) -> Result<Option<u64>, UnknownRevision> {
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
        (Some(_), Some(_)) => return Err("more than one revision of"),
        (None, None) => {}
    }
    let named = |action: &&Action| revision(action).is_some_and(|revision| revision.starts_with(instance));
    let mut revisions: Vec<_> = actions.iter().filter(named).filter_map(revision).collect();
    revisions.sort_unstable();
    revisions.dedup();
    let revision_of = match revisions.as_slice() {
        [only] => *only,
        [] => return Err("no revision of"),
        _ => return Err("more than one revision of"),
    };
    let newest = actions.iter().rposition(|action| revision(action) == Some(revision_of));
    newest.ok_or("no revision of")
}

fn revision(action: &Action) -> Option<&str> {
    action.source.as_ref().map(|source| source.revision.as_str())
}

fn unknown(answer: &ActionsAnswer, instance: &str, why: &str) -> UnknownRevision {
    let message = format!(
        "{why} '{}' is '{instance}' or begins with it, among the newest {ACTIONS_MAX} in LEDGER; show an older one by its time",
        answer.deployment
    );
    let newest = answer.actions.iter().rev().take(NEAR_MAX);
    let near = newest.map(|action| match revision(action) {
        Some(revision) => format!("{revision} ({})", action.ledger_seq),
        None => format!("{} (removed)", action.ledger_seq),
    });
    UnknownRevision { message, near: near.collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer() -> ActionsAnswer {
        let action = |action: &str, seq: u64, revision: Option<&str>| {
            let source = revision.map(|revision| json!({"kind": "git", "revision": revision}));
            let at = "2026-11-20T10:00:00Z";
            let mut action = json!({"action": action, "at": at, "ledgerSeq": seq});
            if let Some(source) = source {
                action["source"] = source;
            }
            action
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
            assert_eq!(last_of(&answer(), instance).unwrap(), last, "{instance}");
        }
    }

    #[test]
    fn q10_a_request_that_is_named_like_a_place_in_ledger_is_not_taken_for_it() {
        let mut answer = answer();
        answer.actions[0].source.as_mut().unwrap().revision = "20".to_owned();
        assert!(last_of(&answer, "20").is_err(), "the request, and where another stands");
        assert_eq!(last_of(&answer, "10").unwrap(), Some(19));
    }

    #[test]
    fn q10_an_unknown_or_ambiguous_instance_is_refused_with_the_known_ones() {
        for (instance, why) in
            [("a", "more than one revision of"), ("cc", "no revision of"), ("11", "no revision of")]
        {
            let UnknownRevision { message, near } = last_of(&answer(), instance).unwrap_err();
            assert!(message.starts_with(why) && message.contains(&format!("'{instance}'")), "{message}");
            assert_eq!(near, ["40 (removed)", "aa11 (30)", "ab22 (20)", "aa11 (10)"]);
        }
    }
}
