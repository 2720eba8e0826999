//! The components of a deployment that run and are not desired any more: another version had them. They are removed once in an
//! operation, before their successors start or after, as the runtime replaces versions.

use std::collections::BTreeSet;

use muster_contract::ComponentName;
use muster_contract::state::StatusError;
use tokio::sync::OnceCell;

use super::operation::Operation;
use crate::runtime::{Running, Started, Unit, code};

/// The obsolete components, and the outcome of their removal.
#[derive(Debug)]
pub(super) struct Obsolete {
    components: BTreeSet<ComponentName>,
    removed: OnceCell<Result<(), StatusError>>,
}

impl Obsolete {
    /// Those of the running components that are not desired.
    pub(super) fn among(running: &[Running], is_desired: impl Fn(&ComponentName) -> bool) -> Self {
        let names = running.iter().map(|found| &found.name.component);
        let components = names.filter(|name| !is_desired(name)).cloned().collect();
        Self { components, removed: OnceCell::new() }
    }

    /// Whether some were not removed yet.
    pub(super) fn is_left(&self) -> bool {
        !self.components.is_empty() && self.removed.get().is_none()
    }
}

impl Operation {
    /// Removes the obsolete components, unless that was tried before. The first failure ends it.
    pub(super) async fn prune(&self, obsolete: &Obsolete) -> Result<(), StatusError> {
        let removal = async || {
            for component in &obsolete.components {
                self.remove_component(component).await?;
            }
            Ok(())
        };
        obsolete.removed.get_or_init(removal).await.clone()
    }

    /// Has the runtime start a unit. If a cluster refuses it while obsolete components are left, one of these may hold its port or
    /// object: they are removed, and it is started once more.
    pub(super) async fn run_or_make_room(
        &self,
        unit: &Unit,
        obsolete: &Obsolete,
    ) -> Result<Started, StatusError> {
        let were_left = obsolete.is_left();
        let outcome = self.run(unit).await;
        let is_refused =
            outcome.as_ref().is_err_and(|error| code::CLUSTER_REFUSALS.contains(&error.code.as_str()));
        if !is_refused || !were_left {
            return outcome;
        }
        self.prune(obsolete).await?;
        self.run(unit).await
    }
}
