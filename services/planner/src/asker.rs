//! Asks one check, or one hook of a plan, over NATS or https, and reads its answer. No answer, a late one and a foreign one are inconclusive.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use muster_contract::canonical::Digest;
use muster_contract::limits::HOOK_ANSWER_BYTES_MAX;
use muster_contract::plans::{HookAnswer, HookRequest, PlanHook};
use muster_contract::rollout::{
    CHECK_ANSWER_BYTES_MAX, CHECK_TIMEOUT, Check, CheckAnswer, CheckRequest, CheckResult, CheckTarget,
};
use muster_contract::state::cut;
use muster_service::error::chain;
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::services::Requests;
use crate::webhook::Webhooks;

/// Questions of checks at once. Those of hooks are bounded by the plans whose hooks are asked at once, so that hooks without an
/// answer delay no check.
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
        match self.answer(check.target(), question, CHECK_ANSWER_BYTES_MAX).await {
            Ok(answer) => CheckOutcome::read(&answer, question.digest),
            Err(reason) => CheckOutcome::inconclusive(&reason),
        }
    }

    /// Asks a hook of a plan. No answer, a late one and a foreign one are inconclusive.
    pub(crate) async fn ask_hook(&self, hook: &PlanHook, question: &HookRequest) -> HookAnswer {
        let answer = self.answer(hook.target(), question, HOOK_ANSWER_BYTES_MAX).await;
        let read = answer.and_then(|answer| {
            serde_json::from_slice::<HookAnswer>(&answer)
                .map_err(|error| format!("an answer that is no HookAnswer: {error}"))
        });
        match read {
            Ok(answer) => HookAnswer { reason: shown(&answer.reason), ..answer },
            Err(reason) => HookAnswer {
                result: CheckResult::Inconclusive,
                reason: shown(&reason),
                nodes: None,
                coordinates: BTreeMap::new(),
            },
        }
    }

    /// The answer to a question.
    ///
    /// # Errors
    /// The reason why there is none in time, or none of so few bytes.
    async fn answer(
        &self,
        target: Option<CheckTarget<'_>>,
        question: &impl Serialize,
        bytes_max: usize,
    ) -> Result<Bytes, String> {
        let target = target.ok_or("it names nobody to ask")?;
        let payload = Bytes::from(serde_json::to_vec(question).map_err(|error| chain(&error))?);
        let answer = async {
            match target {
                CheckTarget::Request(subject) => {
                    let answer = self.bus.request(subject.as_str(), payload, CHECK_TIMEOUT).await;
                    answer.map_err(|error| chain(&error))
                }
                CheckTarget::Webhook(url) => {
                    self.webhooks.post(url, payload, bytes_max).await.map_err(|error| chain(&error))
                }
            }
        };
        let answer = tokio::time::timeout(CHECK_TIMEOUT, answer)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {CHECK_TIMEOUT:?}")))?;
        let bytes = answer.len();
        if bytes > bytes_max {
            return Err(format!("an answer of {bytes} bytes; {bytes_max} are allowed"));
        }
        Ok(answer)
    }
}

impl CheckOutcome {
    pub(crate) fn inconclusive(reason: &str) -> Self {
        Self { result: CheckResult::Inconclusive, reason: shown(reason) }
    }

    /// Reads an answer to a question about a content.
    fn read(answer: &[u8], digest: Digest) -> Self {
        match serde_json::from_slice::<CheckAnswer>(answer) {
            Err(error) => Self::inconclusive(&format!("an answer that is no HookAnswer: {error}")),
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
    use std::time::Duration;

    use muster_bus::RequestError;
    use serde_json::json;

    use super::*;
    use crate::webhook::WebhookConfig;

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
        ] {
            assert_eq!(result(foreign), CheckResult::Inconclusive, "{foreign:.60}");
        }
    }

    /// A bus that answers each question with this text.
    #[derive(Clone)]
    struct FixedReply(String);

    impl Requests for FixedReply {
        async fn request(&self, _: &str, _: Bytes, _: Duration) -> Result<Bytes, RequestError> {
            Ok(Bytes::from(self.0.clone()))
        }
    }

    fn asker(answer: String) -> Asker<FixedReply> {
        Asker::new(FixedReply(answer), Webhooks::new(WebhookConfig::default()).unwrap())
    }

    fn hook_question() -> HookRequest {
        let question = json!({
            "plan": "web", "revision": "r1", "instances": 1, "coordinates": {}, "candidates": [], "candidatesCount": 0 });
        serde_json::from_value(question).unwrap()
    }

    fn check_and_question() -> (Check, CheckRequest) {
        let check = json!({ "request": "muster.check.a" });
        let question = json!({ "deployment": "web", "digest": Digest::of_bytes(b"v2"), "rollout": "rollout.yaml",
            "wave": "canary", "ledgerSeq": 9, "targets": 2, "lo": 1, "hi": 2 });
        (serde_json::from_value(check).unwrap(), serde_json::from_value(question).unwrap())
    }

    #[tokio::test]
    async fn a_long_or_foreign_answer_of_a_check_or_a_hook_is_inconclusive() {
        let hook = json!({ "before": "placement", "request": "muster.check.a" });
        let hook: PlanHook = serde_json::from_value(hook).unwrap();
        let question = hook_question();
        let long = |bytes: usize| json!({ "result": "pass", "reason": "x".repeat(bytes) }).to_string();
        for (answer, result) in [
            (long(CHECK_ANSWER_BYTES_MAX), CheckResult::Pass),
            (long(HOOK_ANSWER_BYTES_MAX), CheckResult::Inconclusive),
            (r#"{"result":"pass","nodes":["no node"]}"#.to_owned(), CheckResult::Inconclusive),
            ("{}".to_owned(), CheckResult::Inconclusive),
        ] {
            let answer = asker(answer).ask_hook(&hook, &question).await;
            assert_eq!(answer.result, result);
            assert!(answer.reason.len() <= REASON_BYTES_MAX && answer.nodes.is_none());
        }
        let (check, question) = check_and_question();
        let outcome = asker(long(CHECK_ANSWER_BYTES_MAX)).ask(&check, &question).await;
        assert_eq!(outcome.result, CheckResult::Inconclusive);
    }

    #[tokio::test(start_paused = true)]
    async fn hooks_without_an_answer_delay_no_check() {
        /// A bus on which checks alone are answered.
        #[derive(Clone)]
        struct NoHooks;

        impl Requests for NoHooks {
            async fn request(&self, subject: &str, _: Bytes, _: Duration) -> Result<Bytes, RequestError> {
                if subject == "muster.check.hook" {
                    std::future::pending::<()>().await;
                }
                Ok(Bytes::from_static(br#"{"result":"pass"}"#))
            }
        }

        let asker = Asker::new(NoHooks, Webhooks::new(WebhookConfig::default()).unwrap());
        let hook = json!({ "before": "placement", "request": "muster.check.hook" });
        let hook: PlanHook = serde_json::from_value(hook).unwrap();
        let question = hook_question();
        for _ in 0..2 * QUESTIONS_MAX {
            let (asker, hook, question) = (asker.clone(), hook.clone(), question.clone());
            tokio::spawn(async move { asker.ask_hook(&hook, &question).await });
        }
        tokio::task::yield_now().await;
        let begun = tokio::time::Instant::now();
        let (check, question) = check_and_question();
        assert_eq!(asker.ask(&check, &question).await.result, CheckResult::Pass);
        assert!(begun.elapsed() < CHECK_TIMEOUT, "{:?}", begun.elapsed());
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
