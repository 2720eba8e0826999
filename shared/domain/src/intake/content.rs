//! Digests of the content of a report: the fields that do not change when the device sends the report again. `head`, `current`
//! and `coalesced` may change, so they do not belong to it. Neither do `retries`: an ingest of an earlier release publishes
//! facts without them, and the report that comes again must not count as another one.
//!
//! A report and its fact have the same content. The digest is over a plain sequence of fields, not over canonical JSON: it is
//! compared only with digests made here.
//!
//! A rejected report may be unreadable, and its fact may show only the beginning: [`of_rejected`] takes the best that a fact
//! shows, and [`Contents`] has every digest that a fact may show of a message, so that another content is claimed only if it is
//! proven.

use std::collections::BTreeMap;
use std::fmt;

use muster_contract::canonical::Digest;
use muster_contract::fact::{DeviceFact, StatusFact};
use muster_contract::report::{CapabilitiesReport, Report, StatusReport};
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::{DeploymentId, Generation, Timestamp};
use serde::Serialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Fields of a report that may change when its device sends it again.
const VOLATILE_FIELDS: [&str; 4] = ["head", "current", "coalesced", "retries"];
/// The field by which two reports are told apart if only the beginning of one is known.
const OBSERVED_AT: &str = "observedAt";

/// The content of a status report.
#[derive(Serialize)]
struct StatusContent<'a>(
    &'static str,
    Timestamp,
    &'a DeploymentId,
    Generation,
    &'a Digest,
    &'a DeploymentStatus,
    &'a [ComponentStatus],
);

/// The content of a capabilities report.
#[derive(Serialize)]
struct DeviceContent<'a>(
    &'static str,
    Timestamp,
    &'a Map<String, Value>,
    &'a BTreeMap<String, String>,
    &'a str,
);

/// Digest of a report's content.
pub(super) fn of_report(report: &Report) -> Digest {
    match report {
        Report::Status(report) => of_status(report),
        Report::Capabilities(report) => of_capabilities(report),
    }
}

/// Digest of what a fact shows of a rejected report of `bytes` bytes: its content if it can be read, its fields if it cannot,
/// and its `observedAt` if the excerpt is not all of it. `None` if the excerpt shows none of these.
pub(super) fn of_rejected(excerpt: &[u8], bytes: u64) -> Option<Digest> {
    if excerpt.len() as u64 != bytes {
        return of_observed_at(&leading_members(excerpt));
    }
    match Report::parse(excerpt) {
        Ok(report) => Some(of_report(&report)),
        Err(_) => serde_json::from_slice(excerpt).ok().map(of_members),
    }
}

/// The digests by which a message can be recognised, the most exact one first.
#[derive(Debug, Clone)]
pub(super) struct Contents(Vec<Digest>);

impl Contents {
    /// The contents of a message, and of the report in it if it can be read.
    pub(super) fn of(report: Option<&Report>, payload: &[u8]) -> Self {
        let members: Option<Map<String, Value>> = serde_json::from_slice(payload).ok();
        let observed_at = members.as_ref().and_then(of_observed_at);
        let digests = [report.map(of_report), members.map(of_members), observed_at];
        Self(digests.into_iter().flatten().collect())
    }

    /// Whether the message has the content of which a fact shows this digest.
    pub(super) fn contains(&self, shown: Digest) -> bool {
        self.0.contains(&shown)
    }

    /// The most exact digest: the same whenever the same report is sent. `None` if the message is no JSON object.
    pub(super) fn exact(&self) -> Option<Digest> {
        self.0.first().copied()
    }
}

/// Digest of a status report's content.
fn of_status(report: &StatusReport) -> Digest {
    digest(&StatusContent(
        "status",
        report.observed_at,
        &report.deployment,
        report.generation,
        &report.digest,
        &report.status,
        &report.components,
    ))
}

pub(super) fn of_status_fact(fact: &StatusFact) -> Digest {
    digest(&StatusContent(
        "status",
        fact.observed_at,
        &fact.deployment,
        fact.generation,
        &fact.digest,
        &fact.status,
        &fact.components,
    ))
}

/// Digest of a capabilities report's content.
fn of_capabilities(report: &CapabilitiesReport) -> Digest {
    digest(&DeviceContent(
        "device",
        report.observed_at,
        &report.properties,
        &report.labels,
        &report.agent_version,
    ))
}

pub(super) fn of_device_fact(fact: &DeviceFact) -> Digest {
    digest(&DeviceContent("device", fact.observed_at, &fact.properties, &fact.labels, &fact.agent_version))
}

/// Every document of the contract can be serialised; otherwise this would be the digest of an empty text.
fn digest<T: Serialize>(content: &T) -> Digest {
    Digest::of_bytes(&serde_json::to_vec(content).unwrap_or_default())
}

/// Digest of the fields of a report that do not change when it is sent again.
fn of_members(mut members: Map<String, Value>) -> Digest {
    VOLATILE_FIELDS.iter().for_each(|field| _ = members.remove(*field));
    digest(&members)
}

fn of_observed_at(members: &Map<String, Value>) -> Option<Digest> {
    members.get(OBSERVED_AT).map(digest)
}

/// The members at the beginning of a JSON object that was cut off. The last one is left out: it may be cut, too.
fn leading_members(excerpt: &[u8]) -> Map<String, Value> {
    let mut members = Vec::new();
    // The result is the error at the cut.
    _ = serde_json::Deserializer::from_slice(excerpt).deserialize_map(LeadingMembers(&mut members));
    members.pop();
    members.into_iter().collect()
}

/// Collects the members of an object up to the first one that cannot be read.
struct LeadingMembers<'a>(&'a mut Vec<(String, Value)>);

impl<'de> Visitor<'de> for LeadingMembers<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(member) = map.next_entry()? {
            self.0.push(member);
        }
        Ok(())
    }
}
