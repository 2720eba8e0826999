//! The settings of the reconciler. No behaviour.

use std::sync::Arc;
use std::time::Duration;

use muster_contract::DeviceKey;
use muster_contract::desired::{DesiredState, RetryDelays};
use muster_domain::eligibility::Capabilities;

use crate::attempts::CrashLoopRule;

/// Operations at a time.
pub(crate) const OPERATIONS_MAX: usize = 16;

/// The retries of failed deployments: the bounds of the delay, and the rule of crash loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Longest delay before the first retry.
    pub min: Duration,
    /// Longest delay before any retry.
    pub max: Duration,
    /// When a component that fails repeatedly counts as failed.
    pub crash_loop: CrashLoopRule,
}

impl RetryPolicy {
    /// The policy with the delays of a document, if it has some.
    #[must_use]
    pub(crate) fn with_delays(self, delays: Option<RetryDelays>) -> Self {
        delays.map_or(self, |RetryDelays { min, max }| Self { min, max, ..self })
    }
}

/// Workloads when the agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnExit {
    /// They keep running; the next agent adopts them.
    Keep,
    /// They are stopped; the next agent starts them again.
    Stop,
}

/// The settings of the reconciler.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The device.
    pub device: DeviceKey,
    /// The retries of failed deployments.
    pub retry: RetryPolicy,
    /// Workloads when the agent ends.
    pub on_exit: OnExit,
    /// The capabilities of the device, which a deployment may exceed.
    pub capabilities: Arc<Capabilities>,
}

/// The document to apply; `None` before the first was accepted.
pub(crate) type CurrentDesired = Option<Arc<DesiredState>>;
