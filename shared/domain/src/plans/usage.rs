//! The part of a node that placements hold. It is derived by adding and retracting placements, and stored nowhere.

use std::collections::BTreeMap;

use muster_contract::ComponentName;
use muster_contract::plans::{ApplicationPort, PlanSpec, Resources};

/// The resources, payloads, ports and storage that placements of one node hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Their resources.
    pub resources: Resources,
    /// Placements by payload.
    pub payloads: BTreeMap<ComponentName, u32>,
    /// Placements by port; the protocol is in capital letters.
    pub ports: BTreeMap<ApplicationPort, u32>,
    /// GB by storage class.
    pub storage: BTreeMap<String, u64>,
    /// Placements by plan.
    pub placements: u32,
}

/// A port with its protocol in capital letters.
pub(super) fn normalised(port: &ApplicationPort) -> ApplicationPort {
    ApplicationPort { protocol: port.protocol.to_ascii_uppercase(), port: port.port }
}

/// GB that an instance needs of each storage class.
pub(super) fn storage(spec: &PlanSpec) -> BTreeMap<String, u64> {
    let mut needed = BTreeMap::new();
    for volume in spec.applications.iter().flat_map(|application| &application.persistent_volumes) {
        *needed.entry(volume.storage_class.clone()).or_insert(0) += volume.capacity;
    }
    needed
}

impl Usage {
    /// Adds a placement of an instance.
    pub(super) fn add(&mut self, spec: &PlanSpec) {
        self.resources = self.resources.plus(spec.resources());
        self.placements += 1;
        for application in &spec.applications {
            *self.payloads.entry(application.payload_name.clone()).or_insert(0) += 1;
            for port in &application.ports {
                *self.ports.entry(normalised(port)).or_insert(0) += 1;
            }
        }
        for (class, capacity) in storage(spec) {
            *self.storage.entry(class).or_insert(0) += capacity;
        }
    }

    /// Retracts a placement of an instance.
    pub(super) fn retract(&mut self, spec: &PlanSpec) {
        self.resources = self.resources.minus(spec.resources()).unwrap_or_default();
        self.placements = self.placements.saturating_sub(1);
        for application in &spec.applications {
            decrement(&mut self.payloads, &application.payload_name);
            for port in &application.ports {
                decrement(&mut self.ports, &normalised(port));
            }
        }
        for (class, capacity) in storage(spec) {
            let left = self.storage.get(&class).map_or(0, |used| used.saturating_sub(capacity));
            if left == 0 {
                self.storage.remove(&class);
            } else {
                self.storage.insert(class, left);
            }
        }
    }

    /// Whether nothing is placed.
    pub const fn is_empty(&self) -> bool {
        self.placements == 0
    }
}

fn decrement<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, key: &K) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => {
            counts.remove(key);
        }
    }
}
