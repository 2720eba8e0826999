//! Reimplements times naively: when each standing changed, and when each device was last heard as facts prove it.

use std::collections::BTreeSet;

use muster_contract::fact::Fact;
use muster_contract::labels::Labels;
use muster_contract::subjects::LedgerSubject;
use muster_contract::{DeploymentId, DeviceKey, Timestamp};

use super::{Entry, World, newest_report, stored_at};

/// Times of all devices, retired ones too.
#[derive(Clone, Default)]
pub(super) struct Times {
    /// When each pair of device and deployment changed, also one that counts for nothing any more.
    changed: Vec<(DeviceKey, DeploymentId, Timestamp)>,
    heard: Vec<(DeviceKey, Timestamp)>,
    labels: Vec<(DeviceKey, Labels)>,
}

impl Times {
    pub(super) fn of(entries: &[Entry]) -> Self {
        let mut times = Self::default();
        let keys: BTreeSet<&DeviceKey> = entries.iter().filter_map(|entry| entry.subject.device()).collect();
        for key in keys {
            let own: Vec<(Timestamp, &Entry)> = (1..)
                .map(stored_at)
                .zip(entries)
                .filter(|(_, entry)| entry.subject.device() == Some(key))
                .collect();
            times.heard.extend(heard_at(&own).map(|at| (key.clone(), at)));
            let desired = own.iter().filter_map(|(_, entry)| match &entry.fact {
                Fact::Desired(fact) => Some(fact),
                _ => None,
            });
            let newest = desired.clone().max_by_key(|fact| fact.generation);
            times.labels.extend(newest.map(|fact| (key.clone(), fact.labels.clone())));
            let mut ids: BTreeSet<DeploymentId> =
                desired.flat_map(|fact| &fact.deployments).map(|entry| entry.id.clone()).collect();
            ids.extend(own.iter().filter_map(|(_, entry)| match &entry.subject {
                LedgerSubject::Status(_, id) => Some(id.clone()),
                _ => None,
            }));
            let changed =
                ids.into_iter().filter_map(|id| Some((key.clone(), id.clone(), changed_at(&own, &id)?)));
            times.changed.extend(changed);
        }
        times
    }

    /// Those of some devices.
    pub(super) fn at(&self, is_here: &dyn Fn(&DeviceKey) -> bool) -> Self {
        let mut here = self.clone();
        here.changed.retain(|(key, ..)| is_here(key));
        here.heard.retain(|(key, _)| is_here(key));
        here
    }

    pub(super) fn labels(&self, key: &DeviceKey) -> Option<&Labels> {
        self.labels.iter().find(|(of, _)| of == key).map(|(_, labels)| labels)
    }
}

impl World {
    pub(super) fn changed_at(&self, counts: &dyn Fn(&DeviceKey, &DeploymentId) -> bool) -> Option<Timestamp> {
        self.times.changed.iter().filter(|(key, id, _)| counts(key, id)).map(|(.., at)| *at).max()
    }

    pub(super) fn heard_at<'a>(&self, mut devices: impl Iterator<Item = &'a DeviceKey>) -> Option<Timestamp> {
        let heard = |key: &DeviceKey| self.times.heard.iter().find(|(of, _)| of == key).map(|(_, at)| *at);
        devices.by_ref().filter_map(heard).max()
    }
}

fn heard_at(own: &[(Timestamp, &Entry)]) -> Option<Timestamp> {
    let proofs = own.iter().filter_map(|(_, entry)| match &entry.fact {
        Fact::Status(fact) => Some(fact.received_at),
        Fact::Device(fact) => Some(fact.received_at),
        Fact::Quarantine(fact) => Some(fact.received_at),
        Fact::Liveness(fact) => Some(fact.last_heard_at),
        _ => None,
    });
    proofs.max()
}

/// The newest report came, or the target was set or withdrawn, to the second; a target withdrawn before any report
/// left no trace.
fn changed_at(own: &[(Timestamp, &Entry)], id: &DeploymentId) -> Option<Timestamp> {
    let (mut generation, mut target, mut since, mut reported) = (None, None, None, false);
    for (stored_at, entry) in own {
        match (&entry.subject, &entry.fact) {
            (LedgerSubject::Status(_, of), _) if of == id => reported = true,
            (_, Fact::Desired(fact)) if Some(fact.generation) > generation => {
                generation = Some(fact.generation);
                let entry = fact.deployments.iter().find(|entry| entry.id == *id);
                let next = entry.map(|entry| entry.target_generation);
                if next != target {
                    let at = Timestamp::from_second(fact.issued_at.min(*stored_at).as_second()).ok();
                    since = at.filter(|_| next.is_some() || reported);
                    target = next;
                }
            }
            _ => {}
        }
    }
    let entries: Vec<&Entry> = own.iter().map(|(_, entry)| *entry).collect();
    since.max(newest_report(&entries, id).map(|(fact, _)| fact.received_at))
}
