//! Asks one check over NATS or https, and reads its answer. No answer, a late one and a foreign one are inconclusive.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muster_contract::canonical::Digest;
use muster_contract::rollout::{CHECK_ANSWER_BYTES_MAX, Check, CheckAnswer, CheckRequest, CheckResult};
use muster_contract::state::cut;
use muster_service::error::chain;
use tokio::sync::Semaphore;

use crate::services::Requests;
use crate::webhook::Webhooks;

/// Longest time for one answer.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Questions at once.
const QUESTIONS_MAX: usize = 32;
/// Bytes of a reason that are kept.
const REASON_BYTES_MAX: usize = 200;

/// The outcome of a question to a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckOutcome {
    pub(crate) result: CheckResult,
    pub(crate) reason: String,
}

/// Asks checks.
#[derive(Debug, Clone)]
pub struct Asker<R> {
    bus: R,
    webhooks: Webhooks,
    room: Arc<Semaphore>,
}

impl<R: Requests> Asker<R> {
    /// An asker over a bus, and by webhooks.
    pub fn new(bus: R, webhooks: Webhooks) -> Self {
        Self { bus, webhooks, room: Arc::new(Semaphore::new(QUESTIONS_MAX)) }
    }

    /// Asks a check.
    pub(crate) async fn ask(&self, check: &Check, question: &CheckRequest) -> CheckOutcome {
        let Ok(_room) = self.room.acquire().await else {
            return CheckOutcome::inconclusive("the planner stops");
        };
        match tokio::time::timeout(CHECK_TIMEOUT, self.answer(check, question)).await {
            Ok(Ok(answer)) => CheckOutcome::read(&answer, question.digest),
            Ok(Err(reason)) => CheckOutcome::inconclusive(&reason),
            Err(_) => CheckOutcome::inconclusive(&format!("no answer within {CHECK_TIMEOUT:?}")),
        }
    }

    async fn answer(&self, check: &Check, question: &CheckRequest) -> Result<Bytes, String> {
        let payload = Bytes::from(serde_json::to_vec(question).map_err(|error| chain(&error))?);
        match (&check.request, &check.webhook) {
            (Some(subject), _) => {
                let answer = self.bus.request(subject.as_str(), payload, CHECK_TIMEOUT).await;
                answer.map_err(|error| chain(&error))
            }
            (None, Some(url)) => self.webhooks.post(url, payload).await.map_err(|error| chain(&error)),
            (None, None) => Err("it names nobody to ask".to_owned()),
        }
    }
}

impl CheckOutcome {
    pub(crate) fn inconclusive(reason: &str) -> Self {
        Self { result: CheckResult::Inconclusive, reason: shown(reason) }
    }

    /// Reads an answer to a question about a content.
    fn read(answer: &[u8], digest: Digest) -> Self {
        if answer.len() > CHECK_ANSWER_BYTES_MAX {
            let bytes = answer.len();
            return Self::inconclusive(&format!(
                "an answer of {bytes} bytes; {CHECK_ANSWER_BYTES_MAX} are allowed"
            ));
        }
        match serde_json::from_slice::<CheckAnswer>(answer) {
            Err(error) => Self::inconclusive(&format!("an answer that is none: {error}")),
            Ok(answer) if answer.digest.is_some_and(|of| of != digest) => {
                Self::inconclusive("an answer about another content")
            }
            Ok(CheckAnswer { result, reason, .. }) => Self { result, reason: shown(&reason) },
        }
    }
}

/// A foreign text as the log, DOWNLINK and a terminal may have it.
fn shown(text: &str) -> String {
    let text: String =
        text.chars().take(2 * REASON_BYTES_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    cut(text, REASON_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_answer_is_inconclusive() {
        let digest = Digest::of_bytes(b"v2");
        let result = |answer: &str| CheckOutcome::read(answer.as_bytes(), digest).result;
        assert_eq!(result(r#"{"result":"pass"}"#), CheckResult::Pass);
        assert_eq!(result(r#"{"result":"fail","reason":"slow"}"#), CheckResult::Fail);
        assert_eq!(result(&format!(r#"{{"result":"pass","digest":"{digest}"}}"#)), CheckResult::Pass);
        let other = Digest::of_bytes(b"v1");
        for foreign in [
            "",
            "pass",
            "{}",
            "[]",
            "<html>200 OK</html>",
            r#"{"error":{"code":"internal","message":"x"}}"#,
            r#"{"result":"PASS"}"#,
            r#"{"result":true}"#,
            &format!(r#"{{"result":"pass","digest":"{other}"}}"#),
            &format!(r#"{{"result":"pass","reason":"{}"}}"#, "x".repeat(CHECK_ANSWER_BYTES_MAX)),
        ] {
            assert_eq!(result(foreign), CheckResult::Inconclusive, "{foreign:.60}");
        }
    }

    #[test]
    fn a_reason_has_no_control_characters_and_a_bounded_length() {
        let answer =
            serde_json::json!({ "result": "fail", "reason": format!("a\u{1b}[31m\n{}", "ä".repeat(500)) });
        let said = CheckOutcome::read(answer.to_string().as_bytes(), Digest::of_bytes(b"v2"));
        assert!(
            said.reason.len() <= REASON_BYTES_MAX && !said.reason.contains(char::is_control),
            "{}",
            said.reason
        );
    }
}
