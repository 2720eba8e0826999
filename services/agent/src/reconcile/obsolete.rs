//! The obsolete components of a deployment: those that run and that the desired version lacks. This module says when they are removed
//! while their successors start in a cluster. It does not decide what is desired, and starts nothing by itself.
//!
//! ```text
//! successors start ─┬─ all are ready ────────────────────► remove
//!                   ├─ one is not ready for a while ─────► remove, and go on waiting
//!                   ├─ one fails as another may cause ───► remove, and start it once more
//!                   └─ one fails for a reason of its own ► leave: the next attempt tells
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join;
use muster_contract::ComponentName;
use muster_contract::state::StatusError;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::operation::Operation;
use crate::runtime::{Running, Started, Unit, code};

/// Longest time for which obsolete components stay while a successor is not ready: they may hold the port, the volume or the capacity
/// that it waits for.
const KEPT_MAX: Duration = Duration::from_secs(30);
/// They stay for one part in so many of a successor's `timeout`, if that is less: it must also have time without them.
const TIMEOUT_PARTS: u32 = 2;

/// The components that are left to be removed.
#[derive(Debug)]
pub(super) struct ObsoleteComponents {
    left: Mutex<BTreeSet<ComponentName>>,
}

impl ObsoleteComponents {
    /// Those of the running components that are not desired.
    pub(super) fn among(running: &[Running], is_desired: impl Fn(&ComponentName) -> bool) -> Self {
        let names = running.iter().map(|found| &found.name.component);
        Self { left: Mutex::new(names.filter(|name| !is_desired(name)).cloned().collect()) }
    }
}

impl Operation {
    /// Removes the obsolete components that are left, unless the operation is cancelled. The first failure ends it; calling it again
    /// tries again.
    pub(super) async fn prune(&self, obsolete: &ObsoleteComponents) -> Result<(), StatusError> {
        let mut left = obsolete.left.lock().await;
        while let Some(component) = left.first().cloned() {
            if self.cancel.is_cancelled() {
                break;
            }
            self.remove_component(&component).await?;
            left.remove(&component);
        }
        Ok(())
    }

    /// Has the runtime start a unit, and removes obsolete components if they may be in its way.
    pub(super) async fn run_beside(
        &self,
        unit: &Unit,
        obsolete: &ObsoleteComponents,
    ) -> Result<Started, StatusError> {
        if obsolete.left.lock().await.is_empty() {
            return self.run(unit).await;
        }
        let mut start = std::pin::pin!(self.run(unit));
        let Ok(outcome) = timeout(kept_beside(unit), &mut start).await else {
            // A failed removal is tried again, and reported, at the end of the operation.
            return join(start, self.prune(obsolete)).await.0;
        };
        match outcome {
            Err(error) if !code::UNRELATED_TO_OTHERS.contains(&error.code.as_str()) => {
                match self.prune(obsolete).await {
                    Ok(()) if !self.cancel.is_cancelled() => self.run(unit).await,
                    _ => Err(error),
                }
            }
            outcome => outcome,
        }
    }
}

/// How long obsolete components stay beside a unit that is not ready.
fn kept_beside(unit: &Unit) -> Duration {
    unit.workload.gate().timeout.map_or(KEPT_MAX, |limit| KEPT_MAX.min(limit / TIMEOUT_PARTS))
}
