//! Hooks of a plan: who is asked before the planner places instances of a revision, and what PLANS keeps of the answers.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checks::check_length;
use crate::decode::Violation;
use crate::ids::{ComponentName, DeviceKey, RevisionId};
use crate::limits::{HOOK_CANDIDATES_MAX, PLAN_HOOKS_MAX};
use crate::rollout::{CheckSubject, CheckTarget};
use crate::webhook_url::WebhookUrl;

/// A hook of a plan. Exactly one of `request` and `webhook` says who is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanHook {
    /// The step that waits for its answer.
    pub before: HookStep,
    /// The subject of a request over NATS: muster.check.sites.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<CheckSubject>,
    /// The address of a webhook: `https://hooks.example/sites`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookUrl>,
}

/// Steps that wait for hooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum HookStep {
    /// The choice of nodes for the instances of a revision.
    Placement,
}

/// The answers of all hooks of a plan, for its newest revision. Instances are placed by them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookAnswers {
    /// The revision.
    pub revision: RevisionId,
    /// Time of the last answer.
    pub at: Timestamp,
    /// The nodes that may be used.
    #[schemars(length(max = HOOK_CANDIDATES_MAX))]
    pub nodes: Vec<DeviceKey>,
    /// The answer of each hook, in the order in which they were asked.
    #[schemars(length(max = PLAN_HOOKS_MAX))]
    pub hooks: Vec<AnsweredHook>,
}

/// The answer of one hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AnsweredHook {
    /// The hook: a subject, or the host of a webhook.
    pub hook: String,
    /// Its reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The nodes that it left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = HOOK_CANDIDATES_MAX))]
    pub left_out: Vec<DeviceKey>,
    /// The payloads whose coordinates it has replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<ComponentName>,
}

impl PlanHook {
    /// Who is asked.
    pub fn target(&self) -> Option<CheckTarget<'_>> {
        CheckTarget::of(self.request.as_ref(), self.webhook.as_ref())
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        self.target().map_or_else(String::new, |target| target.to_string())
    }
}

/// Checks the rules that a JSON schema cannot express.
pub(super) fn check_all(hooks: &[PlanHook]) -> Result<(), Violation> {
    check_length("hooks", hooks.len(), PLAN_HOOKS_MAX)?;
    let at = hooks.iter().position(|hook| hook.target().is_none());
    let rule = "needs exactly one of request and webhook";
    at.map_or(Ok(()), |at| Err(Violation::at(format!("hooks[{at}]"), rule)))
}
