//! The deployment that hosts a device: a package that makes the device's cluster, or the machine that it runs on, is itself a
//! deployment on other devices. So what happens to it explains that the device is silent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::DeploymentId;
use crate::view::Verdict;

/// The label of a device whose value is the deployment that hosts it.
pub const HOSTED_BY: &str = "hosted-by";

/// The deployment that hosts a device, as the hub of the device sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// The deployment, from the device's label `hosted-by`.
    pub deployment: DeploymentId,
    /// The verdict on it; `empty` if no device of this hub should run it.
    pub verdict: Verdict,
}

impl Host {
    /// Whether the host gives no reason for a silence: it is installed everywhere, fresh and known.
    pub fn is_well(&self) -> bool {
        self.verdict == Verdict::Converged
    }

    /// `cluster-4, which is failing: some device failed to apply its target`.
    pub fn format(&self) -> String {
        let Self { deployment, verdict } = self;
        format!("{deployment}, which is {}: {}", verdict.as_str(), verdict.rule())
    }
}
