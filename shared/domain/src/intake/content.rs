//! Digests of the content of a report: the fields that do not change when the device sends the report again. `head`, `current`
//! and `coalesced` may change, so they do not belong to it. Neither do `retries`: an ingest of an earlier release publishes
//! facts without them, and the report that comes again must not count as another one.
//!
//! A report and its fact have the same content. The digest is over a plain sequence of fields, not over canonical JSON: it is
//! compared with digests made here, and with those in LEDGER's `sequenceFork` incidents. An earlier release made those over JSON,
//! so a fork that it recorded may be recorded once more after an upgrade. The digest of a status report is over the values
//! themselves, each text with its length before it: every report has one, and writing it as JSON took as long as writing its fact.
//!
//! A rejected report may be unreadable, and its fact may show only the beginning: [`of_rejected`] takes the best that a fact
//! shows, and [`Contents`] has every digest that a fact may show of a message, so that another content is claimed only if it is
//! proven.

use std::collections::BTreeMap;
use std::fmt;

use muster_contract::canonical::Digest;
use muster_contract::fact::{DeviceFact, StatusFact};
use muster_contract::report::{CapabilitiesReport, Report, StatusReport};
use muster_contract::state::{ComponentStatus, DeploymentStatus, StatusError};
use muster_contract::{DeploymentId, Generation, Timestamp};
use serde::Serialize;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::{Map, Value};

/// Fields of a report that may change when its device sends it again. A field of a report is either in [`StatusContent`] (or
/// [`DeviceContent`]) or here. A field that is new in a release belongs here: facts of earlier releases lack it.
const VOLATILE_FIELDS: [&str; 6] = ["head", "current", "coalesced", "retries", "origin", "fidelity"];
/// The field by which two reports are told apart if only the beginning of one is known.
const OBSERVED_AT: &str = "observedAt";

/// Bytes of most contents, so that the text of one is not copied as it grows.
const CONTENT_BYTES: usize = 512;

/// The content of a status report.
struct StatusContent<'a> {
    observed_at: Timestamp,
    deployment: &'a DeploymentId,
    generation: Generation,
    digest: &'a Digest,
    status: &'a DeploymentStatus,
    components: &'a [ComponentStatus],
}

impl StatusContent<'_> {
    fn digest(&self) -> Digest {
        let Self { observed_at, deployment, generation, digest, status, components } = self;
        let DeploymentStatus { state, error, reason } = status;
        let mut values = Values(Vec::with_capacity(CONTENT_BYTES));
        values.text("status");
        values.bytes(&observed_at.as_nanosecond().to_le_bytes());
        values.text(deployment.as_str());
        values.bytes(&generation.get().to_le_bytes());
        values.bytes(digest.as_bytes());
        values.text(state.as_str());
        values.error(error.as_ref());
        values.optional(reason.as_deref());
        for ComponentStatus { name, state, error } in *components {
            values.text(name.as_str());
            values.text(state.as_str());
            values.error(error.as_ref());
        }
        Digest::of_bytes(&values.0)
    }
}

/// The values of a content, so that different values are different bytes.
struct Values(Vec<u8>);

impl Values {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(&(text.len() as u32).to_le_bytes());
        self.bytes(text.as_bytes());
    }

    fn optional(&mut self, text: Option<&str>) {
        self.0.push(text.is_some().into());
        text.into_iter().for_each(|text| self.text(text));
    }

    fn error(&mut self, error: Option<&StatusError>) {
        self.0.push(error.is_some().into());
        if let Some(StatusError { code, source, message }) = error {
            [code, source, message].into_iter().for_each(|text| self.text(text));
        }
    }
}

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
    let StatusReport {
        observed_at,
        ref deployment,
        generation,
        ref digest,
        ref status,
        ref components,
        api_version: _,
        kind: _,
        epoch: _,
        seq: _,
        // `VOLATILE_FIELDS`.
        head: _,
        retries: _,
        current: _,
        coalesced: _,
        origin: _,
        fidelity: _,
    } = *report;
    StatusContent { observed_at, deployment, generation, digest, status, components }.digest()
}

pub(super) fn of_status_fact(fact: &StatusFact) -> Digest {
    let StatusFact {
        observed_at, ref deployment, generation, ref digest, ref status, ref components, ..
    } = *fact;
    StatusContent { observed_at, deployment, generation, digest, status, components }.digest()
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
    let mut bytes = Vec::with_capacity(CONTENT_BYTES);
    match serde_json::to_writer(&mut bytes, content) {
        Ok(()) => Digest::of_bytes(&bytes),
        Err(_) => Digest::of_bytes(&[]),
    }
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
