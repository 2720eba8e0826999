//! When a removal job runs: a component that runs once when its deployment is removed, and not while it is installed. EMCO and Helm
//! call it a hook.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// When a removal job runs, in the words of Helm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RemovalPhase {
    /// Before any component is stopped.
    PreDelete,
    /// After all components are gone.
    PostDelete,
}

impl RemovalPhase {
    /// Reads `runsAt`.
    ///
    /// # Errors
    /// The value is not a phase.
    pub fn read(value: &Value) -> Result<Self, String> {
        serde_json::from_value(value.clone())
            .map_err(|_| format!("{value} is not known; allowed are: pre-delete, post-delete"))
    }
}
