//! A hostile device in each partition: it has no desired document, and its reports name ever new deployments and epochs. The
//! law holds what LEDGER takes of it against its quota.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::canonical::Digest;
use muster_contract::fact::{Fact, IncidentKind};
use muster_contract::limits::{EPOCH_RISES_PER_HOUR, UNSOLICITED_DEFAULT};
use muster_contract::{DeploymentId, DeviceKey, Epoch, Timestamp};
use serde_json::json;

use super::hub::{Stored, StoredFact};
use super::law::{Lawful, must};
use super::world::World;

/// Reports at once.
const BURST: u64 = 12;
const HOUR_SECONDS: i64 = 3_600;

/// The facts of one hostile device in LEDGER.
#[derive(Debug, Default)]
struct Taken {
    deployments: BTreeSet<DeploymentId>,
    rises: BTreeMap<Epoch, Timestamp>,
}

/// The facts of hostile devices in LEDGER.
#[derive(Debug, Default)]
pub(crate) struct Inventions(BTreeMap<DeviceKey, Taken>);

/// The hostile device of a partition.
pub(crate) fn rogue(part: usize) -> DeviceKey {
    format!("rogue/d{part}").parse().unwrap()
}

/// The partition of a hostile device.
pub(crate) fn rogue_of(key: &DeviceKey) -> Option<usize> {
    (key.site.as_str() == "rogue").then(|| key.device.as_str()[1..].parse().unwrap())
}

impl World {
    /// The hostile device of a partition sends a burst.
    pub(crate) fn invent(&mut self, device: usize) {
        let now = self.agenda.now();
        for _ in 0..BURST {
            self.inventions += 1;
            let number = self.inventions;
            let (epoch, seq) = (1 + number / 5, 1 + number % 5);
            let report = json!({
                "apiVersion": "muster/v1", "kind": "StatusReport", "epoch": epoch, "seq": seq, "head": seq,
                "observedAt": self.hub.time(now).to_string(), "deployment": format!("invented-{number}"),
                "generation": 1, "digest": Digest::of_bytes(b"web").to_string(),
                "status": {"state": "installed"}, "components": [{"name": "main", "state": "installed"}],
                "current": true,
            });
            let bytes = report.to_string().into_bytes().into();
            let at = self.hub.time(now);
            let stored = Stored { device, bytes, numbers: Vec::new(), reports: None, at, invented: true };
            self.hub.report(now, stored);
        }
        self.expect_reports(self.hub.partition(device));
    }
}

impl Inventions {
    /// LEDGER holds another fact of somebody who is no honest device.
    pub(crate) fn stored(&mut self, said: &StoredFact) -> Lawful {
        let Some(key) = said.subject.device().filter(|key| rogue_of(key).is_some()) else { return Ok(()) };
        let taken = self.0.entry(key.clone()).or_default();
        match &said.fact {
            Fact::Status(fact) => _ = taken.deployments.insert(fact.deployment.clone()),
            Fact::Incident(fact) => {
                if let IncidentKind::Amnesia { epoch, .. } = fact.what {
                    taken.rises.entry(epoch).or_insert(fact.at);
                }
            }
            _ => {}
        }
        let deployments = taken.deployments.len();
        let law = "a device without a document speaks of no more deployments than its quota";
        must(deployments <= UNSOLICITED_DEFAULT, law, || format!("{key}: {deployments}"))?;
        let within = |from: &Timestamp| {
            let hour = from.as_second()..from.as_second() + HOUR_SECONDS;
            taken.rises.values().filter(|at| hour.contains(&at.as_second())).count()
        };
        let most = taken.rises.values().map(within).max().unwrap_or(0);
        must(most <= EPOCH_RISES_PER_HOUR, "an epoch rises at most so often an hour", || {
            format!("{key}: {:?}", taken.rises)
        })
    }
}
