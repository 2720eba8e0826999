//! Checks the rollouts of a run: each document that gave a governed device another content against the recorded decisions. It
//! reads documents from LEDGER, in their order, and decisions from the publisher.

use std::collections::{BTreeMap, BTreeSet};

use muster_bus::Bus;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::fact::Fact;
use muster_contract::rollout::{RolloutPhase, RolloutRecord, RolloutVerb, TargetsAnswer, TargetsQuery};
use muster_contract::subjects::{LedgerSubject, PUBLISHER_PREFIX};
use muster_contract::{DeploymentId, DeviceKey, Timestamp};
use muster_service::error::chain;

use super::violation::Violation;
use crate::ledger::Entry;

/// Time within which the publisher answers.
const ANSWER_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);

/// A governed device got a content at this time, at this generation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Release {
    key: DeviceKey,
    digest: Digest,
    at: Timestamp,
}

/// The releases of deployments to governed devices.
#[derive(Debug, Default)]
pub(super) struct Releases {
    governed: BTreeSet<DeviceKey>,
    documents: BTreeMap<DeviceKey, DesiredState>,
    of: BTreeMap<DeploymentId, Vec<Release>>,
    /// Devices that got the content that they had, as one of another generation.
    twice: Vec<Violation>,
}

/// Decisions by verb.
pub(super) type Decisions = BTreeMap<&'static str, u64>;

impl Releases {
    /// The releases to these devices.
    pub(super) fn to(governed: BTreeSet<DeviceKey>) -> Self {
        Self { governed, ..Self::default() }
    }

    /// Reads one entry.
    pub(super) fn read(&mut self, entry: &Entry) {
        let (LedgerSubject::Desired(key), Fact::Desired(document)) = (&entry.subject, &entry.fact) else {
            return;
        };
        let before = self.documents.insert(key.clone(), document.clone());
        // A re-asserted document is no other one.
        let is_newer = before.as_ref().is_none_or(|before| before.generation < document.generation);
        if !self.governed.contains(key) || !is_newer {
            return;
        }
        for entry in &document.deployments {
            let earlier = before.iter().flat_map(|before| &before.deployments).find(|one| one.id == entry.id);
            match earlier.filter(|earlier| earlier.digest == entry.digest) {
                Some(earlier) if earlier.target_generation == entry.target_generation => {}
                Some(_) => self.twice.push(format!("{key} got {} {} twice", entry.id, entry.digest)),
                None => {
                    let release = Release { key: key.clone(), digest: entry.digest, at: document.issued_at };
                    self.of.entry(entry.id.clone()).or_default().push(release);
                }
            }
        }
    }

    /// The violations by the publisher's record of decisions, which it asks for; and the decisions.
    pub(super) async fn violations(&self, bus: &Bus) -> (Vec<Violation>, Decisions) {
        let (mut found, mut decisions) = (self.twice.clone(), Decisions::new());
        for (id, releases) in &self.of {
            match records(bus, id).await {
                Ok(records) => {
                    for decision in records.iter().flat_map(|record| &record.decisions) {
                        *decisions.entry(decision.verb.as_str()).or_default() += 1;
                    }
                    found.extend(records.iter().filter_map(|record| begun_twice(id, record)));
                    found.extend(releases.iter().filter_map(|release| forbidden(id, release, &records)));
                }
                Err(error) => found.push(error),
            }
        }
        (found, decisions)
    }
}

/// The decisions about a deployment.
async fn records(bus: &Bus, id: &DeploymentId) -> Result<Vec<RolloutRecord>, Violation> {
    let subject = format!("{PUBLISHER_PREFIX}.targets");
    let query = TargetsQuery { deployment: id.clone(), limit: Some(1), after: None, revision: None };
    let unreadable = |error: serde_json::Error| format!("{subject} about {id} cannot be read: {error}");
    let payload = serde_json::to_vec(&query).map_err(unreadable)?;
    let reply = bus.request(&subject, payload.into(), ANSWER_WITHIN).await.map_err(|error| chain(&error))?;
    serde_json::from_slice(&reply).map(|answer: TargetsAnswer| answer.decisions).map_err(unreadable)
}

/// Whether a wave has begun twice in one run.
fn begun_twice(id: &DeploymentId, record: &RolloutRecord) -> Option<Violation> {
    let mut begun = BTreeSet::new();
    for decision in &record.decisions {
        match decision.verb {
            RolloutVerb::Retry | RolloutVerb::Supersede => begun.clear(),
            RolloutVerb::Begin if !begun.insert(&decision.wave) => {
                return Some(format!("{id} {}: wave {:?} began twice", record.digest, decision.wave));
            }
            _ => {}
        }
    }
    None
}

/// Whether a release lacks a begin, or came while its rollout was held. The record of a content that nobody has any more may have
/// made room.
fn forbidden(id: &DeploymentId, release: &Release, records: &[RolloutRecord]) -> Option<Violation> {
    let Release { key, digest, at } = release;
    let record = records.iter().find(|record| record.digest == *digest)?;
    let until = record.decisions.iter().take_while(|decision| decision.at <= *at).cloned().collect();
    let then = RolloutRecord { decisions: until, ..record.clone() };
    let has_begun = then.decisions.iter().any(|decision| decision.verb == RolloutVerb::Begin);
    match then.phase() {
        RolloutPhase::Paused | RolloutPhase::Stopped | RolloutPhase::Aborted | RolloutPhase::RolledBack => {
            Some(format!("{key} got {id} {digest} at {at}, and the rollout {}", then.phase().words()))
        }
        _ if !has_begun => Some(format!("{key} got {id} {digest} at {at}, before a wave has begun")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use muster_contract::rollout::RolloutDecision;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn record(verbs: &[(RolloutVerb, i64)]) -> RolloutRecord {
        let decision = |(verb, second): &(RolloutVerb, i64)| RolloutDecision {
            wave: verb.has_wave().then(|| "canary".parse().unwrap()),
            ..RolloutDecision::new(*verb, at(*second))
        };
        let decisions = verbs.iter().map(decision).collect();
        RolloutRecord { decisions, ..RolloutRecord::new(Digest::of_bytes(b"v2"), "x".to_owned()) }
    }

    #[test]
    fn a_release_needs_a_begin_and_no_pause_before_it() {
        let id = "web".parse().unwrap();
        let release = |second| Release {
            key: "a/one".parse().unwrap(),
            digest: Digest::of_bytes(b"v2"),
            at: at(second),
        };
        let records =
            [record(&[(RolloutVerb::Begin, 10), (RolloutVerb::Pause, 20), (RolloutVerb::Resume, 30)])];
        let is_forbidden = |second| forbidden(&id, &release(second), &records).is_some();
        assert_eq!([5, 10, 15, 25, 35].map(is_forbidden), [true, false, false, true, false]);
        assert!(begun_twice(&id, &records[0]).is_none());
        let again = record(&[(RolloutVerb::Begin, 1), (RolloutVerb::Begin, 2)]);
        assert!(begun_twice(&id, &again).is_some());
    }
}
