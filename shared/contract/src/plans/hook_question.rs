//! The question to a hook of a plan, and its answer. `muster-planner` asks hooks as it asks the checks of waves.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answers::Candidate;
use super::plan::Coordinates;
use crate::ids::{ComponentName, DeviceKey, PlanName, RevisionId};
use crate::limits::{HOOK_CANDIDATES_MAX, PLAN_INSTANCES_MAX};
use crate::rollout::CheckResult;

/// The question of a hook, on `muster.check.>` or to a webhook. It may be asked more than once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookRequest {
    /// The plan.
    pub plan: PlanName,
    /// Its newest revision.
    pub revision: RevisionId,
    /// Number of instances that the plan shall have in all.
    #[schemars(range(max = PLAN_INSTANCES_MAX))]
    pub instances: u32,
    /// The coordinates of each payload, with the changes of the hooks before this one.
    pub coordinates: BTreeMap<ComponentName, Coordinates>,
    /// The nodes that may be used, without those that the hooks before this one have left out: the first candidates, the best first.
    #[schemars(length(max = HOOK_CANDIDATES_MAX))]
    pub candidates: Vec<Candidate>,
    /// All nodes that no rule of the plan rejects.
    pub candidates_count: u64,
}

/// The answer of a hook. Anything else counts as `inconclusive`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HookAnswer {
    /// `pass`: the revision may begin. `fail`: it fails. `inconclusive`: it waits, and the hook is asked again.
    pub result: CheckResult,
    /// The reason, in one sentence.
    #[serde(default)]
    pub reason: String,
    /// The candidates that may be used; absent: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = HOOK_CANDIDATES_MAX))]
    pub nodes: Option<Vec<DeviceKey>>,
    /// Coordinates that replace those of these payloads. They count before the revision begins.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub coordinates: BTreeMap<ComponentName, Coordinates>,
}
