//! The instances of plans in the newest desired state of each device, those that a document has withdrawn, and the retired devices.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use muster_contract::canonical::Digest;
use muster_contract::desired::{DesiredDeployment, DesiredState};
use muster_contract::partition::partition_of;
use muster_contract::{DeviceKey, Generation, InstanceName, PlanName, Timestamp};
use muster_domain::plans::{order, plan_of};
use serde::{Deserialize, Serialize};

/// Withdrawn instances of a device that are kept, those that were withdrawn last.
const WITHDRAWN_MAX: usize = 256;
/// Time after which they are forgotten: far longer than a node takes to be heard, or to remove what it runs.
const WITHDRAWN_KEPT: SignedDuration = SignedDuration::from_hours(31 * 24);

/// The orders that devices have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredOrders", into = "StoredOrders")]
pub(crate) struct PlanOrders {
    /// The instances of each device, with the digests of their orders and their plans.
    ordered: BTreeMap<DeviceKey, BTreeMap<InstanceName, (Digest, PlanName)>>,
    /// The instances that each device shall run no more.
    withdrawn: BTreeMap<DeviceKey, BTreeMap<InstanceName, Withdrawal>>,
    retired: BTreeSet<DeviceKey>,
}

/// The document that withdrew an instance from a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Withdrawal {
    /// Its generation.
    pub(crate) generation: Generation,
    /// Time at which LEDGER stored it.
    pub(crate) stored_at: Timestamp,
    /// The same time, or that at which the device was heard again after it.
    pub(crate) heard_since: Timestamp,
}

/// An instance in a checkpoint: its name, the digest of its order, and its plan.
type StoredInstance = (InstanceName, Digest, PlanName);

/// The orders in a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
struct StoredOrders {
    ordered: Vec<(DeviceKey, Vec<StoredInstance>)>,
    /// Absent in checkpoints of older releases: then only time shows that an unreported instance is gone.
    #[serde(default)]
    withdrawn: Vec<(DeviceKey, Vec<(InstanceName, Withdrawal)>)>,
    retired: Vec<DeviceKey>,
}

impl PlanOrders {
    /// Applies a desired state.
    pub(crate) fn apply(&mut self, key: &DeviceKey, document: &DesiredState, stored_at: Timestamp) {
        let instances: BTreeMap<_, _> = document.deployments.iter().filter_map(instance).collect();
        let withdrawal = Withdrawal { generation: document.generation, stored_at, heard_since: stored_at };
        self.note_withdrawn(key, &instances, withdrawal);
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

    /// Notes the instances that a document of a device has no more, and forgets those that it has again.
    fn note_withdrawn(
        &mut self,
        key: &DeviceKey,
        instances: &BTreeMap<InstanceName, (Digest, PlanName)>,
        withdrawal: Withdrawal,
    ) {
        let before = self.ordered.get(key).into_iter().flat_map(BTreeMap::keys);
        let gone: Vec<_> = before.filter(|name| !instances.contains_key(*name)).cloned().collect();
        if gone.is_empty() && !self.withdrawn.contains_key(key) {
            return;
        }
        let withdrawn = self.withdrawn.entry(key.clone()).or_default();
        withdrawn.extend(gone.into_iter().map(|name| (name, withdrawal)));
        let is_old = |by: &Withdrawal| withdrawal.stored_at.duration_since(by.stored_at) > WITHDRAWN_KEPT;
        withdrawn.retain(|name, by| !instances.contains_key(name) && !is_old(by));
        while withdrawn.len() > WITHDRAWN_MAX {
            let oldest = withdrawn.iter().min_by_key(|(_, withdrawal)| **withdrawal);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else { break };
            withdrawn.remove(&oldest);
        }
        if withdrawn.is_empty() {
            self.withdrawn.remove(key);
        }
    }

    /// Notes that a device is heard again.
    pub(crate) fn heard_again(&mut self, key: &DeviceKey, at: Timestamp) {
        for withdrawal in self.withdrawn.get_mut(key).into_iter().flat_map(BTreeMap::values_mut) {
            withdrawal.heard_since = withdrawal.heard_since.max(at);
        }
    }

    /// Notes that an ingest takes over a partition: its devices count as heard for a lease from then on.
    pub(crate) fn taken_over(&mut self, partition: u16, at: Timestamp) {
        let of_partition = self.withdrawn.iter_mut().filter(|(key, _)| partition_of(key) == partition);
        for withdrawal in of_partition.flat_map(|(_, withdrawn)| withdrawn.values_mut()) {
            withdrawal.heard_since = withdrawal.heard_since.max(at);
        }
    }

    /// The document that withdrew an instance from a device last; `None` if it is ordered, or none is known.
    pub(crate) fn withdrawal(&self, node: &DeviceKey, instance: &InstanceName) -> Option<Withdrawal> {
        self.withdrawn.get(node)?.get(instance).copied()
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
    fn from(StoredOrders { ordered, withdrawn, retired }: StoredOrders) -> Self {
        let of_device = |(key, instances): (DeviceKey, Vec<StoredInstance>)| {
            let instances = instances.into_iter().map(|(name, content, plan)| (name, (content, plan)));
            (key, instances.collect())
        };
        let collected =
            |(key, all): (DeviceKey, Vec<(InstanceName, Withdrawal)>)| (key, all.into_iter().collect());
        Self {
            ordered: ordered.into_iter().map(of_device).collect(),
            withdrawn: withdrawn.into_iter().map(collected).collect(),
            retired: retired.into_iter().collect(),
        }
    }
}

impl From<PlanOrders> for StoredOrders {
    fn from(PlanOrders { ordered, withdrawn, retired }: PlanOrders) -> Self {
        let of_device = |(key, instances): (DeviceKey, BTreeMap<InstanceName, (Digest, PlanName)>)| {
            let instances = instances.into_iter().map(|(name, (content, plan))| (name, content, plan));
            (key, instances.collect())
        };
        let listed =
            |(key, all): (DeviceKey, BTreeMap<InstanceName, Withdrawal>)| (key, all.into_iter().collect());
        Self {
            ordered: ordered.into_iter().map(of_device).collect(),
            withdrawn: withdrawn.into_iter().map(listed).collect(),
            retired: retired.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(generation: u64, instances: &[&str]) -> DesiredState {
        let entry = |name: &&str| {
            json!({ "id": name, "name": name, "applicationId": "muster-plan-web", "targetGeneration": 1,
                "digest": Digest::of_value(&json!(1)), "profile": { "type": "process", "components": [] } })
        };
        let deployments: Vec<_> = instances.iter().map(entry).collect();
        let document = json!({ "apiVersion": "muster/v1", "kind": "DesiredState", "generation": generation,
            "issuedAt": Timestamp::UNIX_EPOCH, "source": { "kind": "api", "revision": "r1" },
            "deployments": deployments });
        serde_json::from_value(document).unwrap()
    }

    #[test]
    fn a_withdrawn_instance_has_the_document_of_its_withdrawal() {
        let (key, name): (DeviceKey, InstanceName) =
            ("plant7/press-1".parse().unwrap(), "web-1".parse().unwrap());
        let mut orders = PlanOrders::default();
        let apply = |orders: &mut PlanOrders, generation: u64, instances: &[&str]| {
            let stored_at = Timestamp::constant(generation.cast_signed(), 0);
            orders.apply(&key, &document(generation, instances), stored_at);
            orders.withdrawal(&key, &name).map(|withdrawal| withdrawal.stored_at.as_second())
        };
        assert_eq!(apply(&mut orders, 2, &["web-1"]), None);
        assert_eq!(apply(&mut orders, 3, &["web-2"]), Some(3));
        assert_eq!(apply(&mut orders, 4, &[]), Some(3), "a later document withdraws nothing anew");
        let stored = serde_json::to_string(&orders).unwrap();
        assert_eq!(serde_json::from_str::<PlanOrders>(&stored).unwrap(), orders);
        let heard_since =
            |orders: &PlanOrders| orders.withdrawal(&key, &name).unwrap().heard_since.as_second();
        assert_eq!(heard_since(&orders), 3);
        orders.heard_again(&key, Timestamp::constant(9, 0));
        assert_eq!(
            (heard_since(&orders), orders.withdrawal(&key, &name).unwrap().stored_at.as_second()),
            (9, 3)
        );
        orders.taken_over(partition_of(&key), Timestamp::constant(11, 0));
        assert_eq!(heard_since(&orders), 11);
        assert_eq!(apply(&mut orders, 5, &["web-1"]), None, "it is ordered again");
        assert_eq!(apply(&mut orders, 6, &[]), Some(6));
        for generation in 7..7 + 2 * WITHDRAWN_MAX as u64 {
            apply(&mut orders, generation, &[&format!("x-{generation}")]);
        }
        assert_eq!(orders.withdrawn[&key].len(), WITHDRAWN_MAX, "the newest are kept");
    }
}
