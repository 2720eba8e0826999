//! The instances of plans in the newest desired state of each device, and the retired devices. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::{DeviceKey, InstanceName, PlanName};
use muster_domain::plans::{order, plan_of};
use serde::{Deserialize, Serialize};

/// The orders that devices have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredOrders", into = "StoredOrders")]
pub(crate) struct PlanOrders {
    /// The instances of each device, with the digests of their orders and their plans.
    ordered: BTreeMap<DeviceKey, BTreeMap<InstanceName, (Digest, PlanName)>>,
    retired: BTreeSet<DeviceKey>,
}

/// An instance in a checkpoint: its name, the digest of its order, and its plan.
type StoredInstance = (InstanceName, Digest, PlanName);

/// The orders in a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct StoredOrders {
    ordered: Vec<(DeviceKey, Vec<StoredInstance>)>,
    retired: Vec<DeviceKey>,
}

impl PlanOrders {
    /// Applies a desired state.
    pub(crate) fn apply(&mut self, key: &DeviceKey, document: &DesiredState) {
        let instances: BTreeMap<_, _> = document.deployments.iter().filter_map(instance).collect();
        if document.retired {
            self.retired.insert(key.clone());
        } else {
            self.retired.remove(key);
        }
        if instances.is_empty() {
            self.ordered.remove(key);
        } else {
            self.ordered.insert(key.clone(), instances);
        }
    }

    /// The digest of the order for an instance on a device.
    pub(crate) fn content(&self, node: &DeviceKey, instance: &InstanceName) -> Option<Digest> {
        self.ordered.get(node)?.get(instance).map(|(content, _)| *content)
    }

    /// Whether a device is retired.
    pub(crate) fn is_retired(&self, node: &DeviceKey) -> bool {
        self.retired.contains(node)
    }

    /// All instances, with their devices and plans.
    pub(crate) fn all(&self) -> impl Iterator<Item = (DeviceKey, InstanceName, PlanName)> + '_ {
        self.ordered.iter().flat_map(|(node, instances)| {
            instances.iter().map(move |(instance, (_, plan))| (node.clone(), instance.clone(), plan.clone()))
        })
    }
}

/// The instance of an entry, if the entry is of a plan.
fn instance(entry: &DesiredDeployment) -> Option<(InstanceName, (Digest, PlanName))> {
    let plan = plan_of(&entry.application_id)?;
    let name = entry.id.as_str().parse().ok()?;
    let content = order(Digest::of_value(&entry.profile), entry.stopped, entry.restart);
    Some((name, (content, plan)))
}

impl From<StoredOrders> for PlanOrders {
    fn from(StoredOrders { ordered, retired }: StoredOrders) -> Self {
        let of_device = |(key, instances): (DeviceKey, Vec<StoredInstance>)| {
            let instances = instances.into_iter().map(|(name, content, plan)| (name, (content, plan)));
            (key, instances.collect())
        };
        Self { ordered: ordered.into_iter().map(of_device).collect(), retired: retired.into_iter().collect() }
    }
}

impl From<PlanOrders> for StoredOrders {
    fn from(PlanOrders { ordered, retired }: PlanOrders) -> Self {
        let of_device = |(key, instances): (DeviceKey, BTreeMap<InstanceName, (Digest, PlanName)>)| {
            let instances = instances.into_iter().map(|(name, (content, plan))| (name, content, plan));
            (key, instances.collect())
        };
        Self { ordered: ordered.into_iter().map(of_device).collect(), retired: retired.into_iter().collect() }
    }
}
