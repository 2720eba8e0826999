//! Decisions on the page of a rollout: the confirmation that a key asks for, the request after it, and the text of the outcome.
//! [`send`] asks the publisher; the rest is pure.
//!
//! A request names the version of the rollouts that the person saw. If another commit or decision has come since, nothing is decided.

use muster_client::ask::{AskError, Hub};
use muster_client::rollout::{Decided, DecisionRequest, approve, decide, reject, version, waiting_wave};
use muster_contract::rollout::{RolloutPhase, RolloutVerb};
use muster_contract::{Timestamp, WaveName};
use muster_domain::rollout::RolloutProgress;
use muster_service::error::chain;

use crate::render::format::{clean, plural};

/// Keys of decisions: approve, reject, and pause or resume.
pub(super) const KEYS: [char; 3] = ['a', 'x', 'p'];

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Approve,
    Reject,
    Pause,
    Resume,
}

/// A decision that the person has not confirmed yet.
#[derive(Debug, Clone)]
pub struct Question {
    /// The text of the question.
    pub(super) words: String,
    verb: Verb,
    wave: Option<WaveName>,
    request: DecisionRequest,
}

impl Question {
    /// The question of a key about the rollouts of a page.
    ///
    /// # Errors
    /// Why the key decides nothing here.
    pub(super) fn of(key: char, rollouts: &[RolloutProgress]) -> Result<Self, String> {
        let Some(first) = rollouts.first() else {
            return Err("no rollout governs the deployment any more".to_owned());
        };
        let id = &first.deployment;
        let request = |file: Option<String>| DecisionRequest {
            deployment: id.clone(),
            file,
            reason: None,
            versions: vec![version(rollouts)],
        };
        if key == 'p' {
            let is_in = |phase| move |rollout: &RolloutProgress| rollout.phase() == phase;
            let (verb, word) = match rollouts {
                all if all.iter().any(is_in(RolloutPhase::Running)) => (Verb::Pause, "pause"),
                all if all.iter().any(is_in(RolloutPhase::Paused)) => (Verb::Resume, "resume"),
                _ => return Err(format!("the rollout of {id} {}", first.phase().words())),
            };
            let words = format!("{word} the rollout of {id}?");
            return Ok(Self { words, verb, wave: None, request: request(None) });
        }
        let waiting = rollouts.iter().find_map(|rollout| Some((rollout, waiting_wave(rollout)?)));
        let (rollout, wave) = waiting.ok_or_else(|| format!("no wave of {id} waits for an approval"))?;
        let (verb, words) = match key {
            'a' => {
                let devices = plural(wave.tally.targets, "device");
                let given = wave.approvals.map_or_else(String::new, |count| {
                    format!(", {} of {} approvals", count.given, count.needed)
                });
                (Verb::Approve, format!("approve wave {} of {id} ({devices}{given})?", clean(&wave.name)))
            }
            _ => {
                (Verb::Reject, format!("reject wave {} of {id}, and so stop its rollout?", clean(&wave.name)))
            }
        };
        let wave = wave.name.parse().ok();
        Ok(Self { words, verb, wave, request: request(Some(rollout.file.clone())) })
    }
}

/// Sends a confirmed decision; words about its outcome.
pub(super) async fn send(hub: &Hub, question: &Question, now: Timestamp) -> String {
    let Question { verb, wave, request, .. } = question;
    let decided = match verb {
        Verb::Approve => Box::pin(approve(hub, request, wave.as_ref(), now)).await,
        Verb::Reject => Box::pin(reject(hub, request, wave.as_ref(), now)).await,
        Verb::Pause => Box::pin(decide(hub, request, RolloutVerb::Pause, now)).await,
        Verb::Resume => Box::pin(decide(hub, request, RolloutVerb::Resume, now)).await,
    };
    outcome(*verb, decided)
}

fn outcome(verb: Verb, decided: Result<Vec<Decided>, AskError>) -> String {
    let all = match decided {
        Ok(all) => all,
        Err(AskError::VersionChanged(_)) => {
            return "NOT DONE: the rollout has changed since this page was read; look again".to_owned();
        }
        Err(error) => return format!("NOT DONE: {}", clean(&chain(&error))),
    };
    if let Some(reason) = all.iter().find_map(|one| one.refused.as_ref()) {
        return format!("NOT DONE: {}", clean(reason));
    }
    let is_new = all.iter().any(|one| one.answer.as_ref().is_some_and(|answer| answer.changed));
    let approvals = all.iter().find_map(|one| one.approvals.as_ref());
    match (verb, approvals) {
        _ if all.is_empty() => "NOT DONE: no such wave waits for an approval any more".to_owned(),
        (Verb::Approve, _) if !is_new => "you have approved this wave already".to_owned(),
        (Verb::Approve, Some(count)) => format!("approved: {} of {} approvals", count.given, count.needed),
        (Verb::Approve, None) => "approved".to_owned(),
        (Verb::Reject, _) => "rejected: the rollout is stopped".to_owned(),
        (Verb::Pause, _) => "paused".to_owned(),
        (Verb::Resume, _) => "resumed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_decision_is_never_shown_as_made() {
        let changed = AskError::VersionChanged("web".parse().unwrap());
        assert!(outcome(Verb::Approve, Err(changed)).starts_with("NOT DONE: the rollout has changed"));
        assert!(outcome(Verb::Pause, Err(AskError::CommitChanged)).starts_with("NOT DONE"));
        assert!(outcome(Verb::Approve, Ok(Vec::new())).starts_with("NOT DONE"));
        assert_eq!(Question::of('a', &[]).unwrap_err(), "no rollout governs the deployment any more");
    }
}
