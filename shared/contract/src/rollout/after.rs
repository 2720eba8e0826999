//! The order of the rollouts under one `rollout.yaml`: which deployments a deployment comes after. The publisher computes which of
//! their rollouts have not succeeded yet.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RolloutPhase;
use crate::decode::Violation;
use crate::ids::DeploymentId;

/// Deployments that come after others, and deployments that one of them comes after, at most.
pub const AFTER_MAX: usize = 32;

/// A rollout that another one waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitsFor {
    /// Its deployment.
    pub deployment: DeploymentId,
    /// Its phase by decisions.
    #[serde(default, skip_serializing_if = "RolloutPhase::is_running")]
    pub phase: RolloutPhase,
}

/// Checks the numbers of entries, and that no deployment comes after itself, directly or by others.
pub(super) fn check(after: &BTreeMap<DeploymentId, BTreeSet<DeploymentId>>) -> Result<(), Violation> {
    if after.len() > AFTER_MAX {
        let rule = format!("has {} deployments; {AFTER_MAX} are allowed", after.len());
        return Err(Violation::at("after", rule));
    }
    for (id, others) in after {
        let refused = |rule| Err(Violation::at(format!("after.{id}"), rule));
        if others.is_empty() {
            return refused("names no deployment".to_owned());
        }
        if others.len() > AFTER_MAX {
            return refused(format!("names {} deployments; {AFTER_MAX} are allowed", others.len()));
        }
        if comes_after(after, id).contains(id) {
            return refused(format!("is a cycle: {id} would wait for itself"));
        }
    }
    Ok(())
}

/// The deployments that a deployment comes after, directly or by others.
fn comes_after<'a>(
    after: &'a BTreeMap<DeploymentId, BTreeSet<DeploymentId>>,
    id: &'a DeploymentId,
) -> BTreeSet<&'a DeploymentId> {
    let (mut found, mut next) = (BTreeSet::new(), vec![id]);
    while let Some(id) = next.pop() {
        next.extend(after.get(id).into_iter().flatten().filter(|other| found.insert(*other)));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::Rollout;
    use super::AFTER_MAX;

    fn refusal(after: &Value) -> Option<String> {
        let document = json!({ "apiVersion": "muster/v1", "kind": "Rollout", "after": after });
        let parsed = crate::decode::parse::<Rollout>(document.to_string().as_bytes());
        parsed.err().map(|error| error.to_string())
    }

    #[test]
    fn an_order_of_deployments_has_no_cycle_and_few_entries() {
        let many = |count: usize| (0..count).map(|at| format!("d{at}")).collect::<Vec<_>>();
        assert_eq!(refusal(&json!({ "proxy": ["green"], "green": many(AFTER_MAX) })), None);
        for (after, words) in [
            (json!({ "a": ["a"] }), "after.a: is a cycle: a would wait for itself"),
            (json!({ "a": ["b"], "b": ["c"], "c": ["a"] }), "after.a: is a cycle"),
            (json!({ "a": [] }), "after.a: names no deployment"),
            (json!({ "a": many(AFTER_MAX + 1) }), "after.a: names 33 deployments; 32 are allowed"),
            (json!({ "a": ["No id"] }), "after.a"),
        ] {
            let refusal = refusal(&after).unwrap_or_default();
            assert!(refusal.contains(words), "{after}: {refusal}");
        }
        let wide = many(AFTER_MAX + 1).into_iter().map(|id| (id, json!(["last"]))).collect();
        assert!(refusal(&Value::Object(wide)).unwrap().contains("after: has 33 deployments"));
    }
}
