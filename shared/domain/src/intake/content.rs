//! Digests of the content of a report: the fields that do not change when the device sends the report again. `head`, `current`
//! and `coalesced` may change, so they do not belong to it. Neither do `retries`: an ingest of an earlier release publishes
//! facts without them, and the report that comes again must not count as another one.
//!
//! A report and its fact have the same content. The digest is over a plain sequence of fields, not over canonical JSON: it is
//! compared only with digests made here.

use std::collections::BTreeMap;

use muster_contract::canonical::Digest;
use muster_contract::fact::{DeviceFact, StatusFact};
use muster_contract::report::{CapabilitiesReport, StatusReport};
use muster_contract::state::{ComponentStatus, DeploymentStatus};
use muster_contract::{DeploymentId, Generation, Timestamp};
use serde::Serialize;
use serde_json::{Map, Value};

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

/// Digest of a status report's content.
pub(super) fn of_status(report: &StatusReport) -> Digest {
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
pub(super) fn of_capabilities(report: &CapabilitiesReport) -> Digest {
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
