//! The services that answer checks: each passes, fails, knows nothing, answers nonsense or not at all. It remembers its answers, so that
//! the law can compare a recorded check with them.

use std::collections::BTreeMap;

use bytes::Bytes;
use muster_bus::RequestError;
use muster_contract::canonical::Digest;
use muster_contract::rollout::{Check, CheckRequest, CheckResult};
use muster_contract::{DeploymentId, WaveName};
use serde_json::json;

use super::wire::{Answer, Process, Request};
use super::world::World;

/// The question of a check: its subject, the rollout and the wave.
type Asked = (String, DeploymentId, Digest, String, WaveName);

/// The answers of all services.
#[derive(Debug, Default)]
pub(crate) struct CheckServices {
    /// The answers to each planner, oldest first.
    answers: BTreeMap<(Asked, Process), Vec<CheckResult>>,
    /// Whether the services follow a script in place of drawn answers: each first knows nothing, and then passes the first content that
    /// they are asked about, and fails every other one.
    pub(crate) is_scripted: bool,
    first_content: Option<Digest>,
}

impl CheckServices {
    /// Whether the services of a wave's checks have given a planner the answers that lead to a result.
    pub(crate) fn gave(
        &self,
        checks: &[Check],
        (id, digest, path, wave): (&DeploymentId, Digest, &str, &WaveName),
        result: CheckResult,
    ) -> bool {
        let is_of = |asked: &Asked, check: &Check| {
            check.request.as_ref().is_some_and(|subject| subject.as_str() == asked.0)
                && (&asked.1, asked.2, asked.3.as_str(), &asked.4) == (id, digest, path, wave)
        };
        let has = |check: &Check, is_enough: &dyn Fn(&[CheckResult]) -> bool| {
            self.answers.iter().any(|((asked, _), given)| is_of(asked, check) && is_enough(given))
        };
        match result {
            CheckResult::Pass => checks.iter().all(|check| {
                let count = check.count.get() as usize;
                has(check, &|given| {
                    given.windows(count).any(|row| row.iter().all(|one| *one == CheckResult::Pass))
                })
            }),
            CheckResult::Fail => {
                checks.iter().any(|check| has(check, &|given| given.contains(&CheckResult::Fail)))
            }
            // A lost question is one too.
            CheckResult::Inconclusive => true,
        }
    }
}

/// Whether a check knows nothing of a content in the calm, however often it is asked.
pub(crate) fn knows_nothing(subject: &str, digest: Digest) -> bool {
    lasting(subject, digest) == CheckResult::Inconclusive
}

/// The answer in the calm.
fn lasting(subject: &str, digest: Digest) -> CheckResult {
    let share = Digest::of_bytes(format!("{subject} {digest}").as_bytes()).to_string();
    match share.as_bytes().last() {
        Some(b'0'..=b'2') => CheckResult::Fail,
        Some(b'3' | b'4') => CheckResult::Inconclusive,
        _ => CheckResult::Pass,
    }
}

impl World {
    /// A question reaches the service of a check.
    pub(crate) fn ask_check(
        &mut self,
        process: Process,
        request: &Request,
        way: Answer<Result<Bytes, RequestError>>,
    ) {
        let question: CheckRequest = serde_json::from_slice(&request.payload).unwrap();
        let CheckRequest { deployment, digest, rollout, wave, .. } = question;
        let asked = (request.subject.clone(), deployment, digest, rollout, wave);
        let drawn = self.rng.u8(0..20);
        let is_first = !self.checks.answers.keys().any(|(of, _)| *of == asked);
        let result = if self.checks.is_scripted {
            match *self.checks.first_content.get_or_insert(digest) {
                _ if is_first => CheckResult::Inconclusive,
                first if first == digest => CheckResult::Pass,
                _ => CheckResult::Fail,
            }
        } else if self.schedule.is_over() {
            lasting(&request.subject, digest)
        } else {
            match drawn {
                0..12 => CheckResult::Pass,
                12..14 => CheckResult::Fail,
                _ => CheckResult::Inconclusive,
            }
        };
        let given = self.checks.answers.entry((asked, process)).or_default();
        given.push(result);
        let answer = json!({ "result": result, "reason": "it was measured" });
        let answer = match (result, drawn) {
            (CheckResult::Inconclusive, 14) => "nonsense".to_owned(),
            (CheckResult::Inconclusive, 15) => {
                json!({ "result": "pass", "digest": Digest::of_bytes(b"other") }).to_string()
            }
            (CheckResult::Inconclusive, 16) => return,
            _ => answer.to_string(),
        };
        self.answer(way, Ok(Bytes::from(answer)));
    }
}
