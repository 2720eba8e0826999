//! Numbers the reports of a device that keeps no outbox: pure functions on its record in the bucket.
//!
//! | a report arrives | then |
//! |---|---|
//! | with the content of the last confirmed one of its deployment | it counts as confirmed, unless the receipt misses that one |
//! | with the content of an open number | the gateway publishes that number again; ingest drops a duplicate |
//! | of a snapshot behind one that came already | it counts as confirmed, and changes nothing |
//! | with another content, or when the receipt misses the last one | it gets the next number, which declares the replaced ones as coalesced |
//!
//! A number replaces a lost one, the open ones of its deployment, and abandoned ones of any deployment.
//!
//! A number is open from its assignment until its report is confirmed. A gateway that dies in between leaves it open, and the next
//! request resumes or coalesces it. A report counts as confirmed only while its number is still open: a slow gateway finds its
//! number coalesced, and answers that the device must try again.

use std::time::Duration;

use jiff::SignedDuration;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::http_device::{
    ConfirmedReport, HTTP_DEPLOYMENTS_MAX, HTTP_TARGETS_MAX, HttpDeployment, HttpDevice, OpenReport, Snapshot,
};
use muster_contract::limits::EVIDENCE_LEASE_MS_MAX;
use muster_contract::receipt::Receipt;
use muster_contract::version::ApiVersion;
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, Timestamp};
use muster_service::VERSION;

/// Age after which an open number of another deployment counts as abandoned: longer than the confirmation of a report takes.
pub(crate) const OPEN_FOR: Duration = Duration::from_secs(30);
/// Most open numbers: reports of one device under way at once.
const OPEN_MAX: usize = 16;

const _: () = assert!(OPEN_FOR.as_secs() > 2 * muster_bus::publish::CONFIRM_TIMEOUT.as_secs());

/// The parts of a report that decide its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SentReport<'a> {
    /// The deployment; none for capabilities.
    pub deployment: Option<&'a DeploymentId>,
    /// The digest of the report's body.
    pub content: Digest,
    /// The generation of the manifest that a status names.
    pub adopted: Option<Generation>,
    /// Whether a status says that its client does not reach the device; none where that cannot be.
    pub unreachable: Option<bool>,
    /// The snapshot that a status is made of, if it is of one.
    pub snapshot: Option<Snapshot>,
}

/// How long a heartbeat of a device may count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeartbeatLease {
    /// As long as that of any other device.
    Hub,
    /// So many milliseconds: until the oldest snapshot of a targeted deployment is older than its period.
    Evidence(u64),
    /// It is older: there is no heartbeat.
    Expired,
}

/// The decision about a report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one lives as long as a request")]
pub(crate) enum Admission {
    /// UPLINK has stored it.
    Confirmed,
    /// Publish it under this number.
    Publish {
        /// The number with its report.
        open: OpenReport,
        /// The epoch of the number.
        epoch: Epoch,
        /// The highest assigned number.
        head: Seq,
        /// Whether the number is new, so that the record must be stored first.
        is_new: bool,
    },
}

/// The number under which a report is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbered {
    /// The number with its report.
    pub open: OpenReport,
    /// Its epoch.
    pub epoch: Epoch,
    /// The highest assigned number.
    pub head: Seq,
}

/// Why a report has no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many of the device's reports are under way.
    TooManyOpen,
    /// Too many deployments are remembered.
    TooManyDeployments,
}

/// Why a device cannot have adopted a version of the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VersionRefusal {
    /// DOWNLINK is behind the served version, so the gateway cannot decide now.
    HubIsBehind,
    /// It is above this newest version.
    Above(u64),
}

/// A record with a new epoch, above that of the last receipt also if the clock was set back.
pub(crate) fn begin(receipt: Option<&Receipt>, now: Timestamp) -> HttpDevice {
    let clock = u64::try_from(now.as_second()).ok().and_then(Epoch::new).unwrap_or(Epoch::FIRST);
    let above = receipt.map_or(Epoch::FIRST, |receipt| receipt.epoch.next());
    HttpDevice {
        api_version: ApiVersion::V1,
        epoch: clock.max(above),
        head: 0,
        open: Vec::new(),
        capabilities: None,
        generation: 0,
        deployments: Default::default(),
        span: None,
        unreachable: false,
    }
}

/// Whether the hub has numbers that the record lacks: the bucket was set back, and would assign numbers twice.
pub(crate) fn is_set_back(record: &HttpDevice, receipt: &Receipt) -> bool {
    (receipt.epoch, receipt.through) > (record.epoch, record.head)
}

/// The record in a new epoch, without reports.
pub(crate) fn renew(record: &HttpDevice, receipt: &Receipt, now: Timestamp) -> HttpDevice {
    let mut renewed = begin(Some(receipt), now);
    renewed.epoch = renewed.epoch.max(record.epoch.next());
    renewed.generation = record.generation;
    (renewed.span, renewed.unreachable) = (record.span.clone(), record.unreachable);
    let targets = |known: &HttpDeployment| HttpDeployment { reported: None, ..known.clone() };
    renewed.deployments = record.deployments.iter().map(|(id, known)| (id.clone(), targets(known))).collect();
    renewed
}

/// Records the contents that a desired state targets; true if the record has changed.
pub(crate) fn learn(record: &mut HttpDevice, desired: &DesiredState) -> bool {
    if record.generation >= desired.generation.get() {
        return false;
    }
    record.generation = desired.generation.get();
    for (id, known) in &mut record.deployments {
        let is_target = desired.deployments.iter().any(|entry| entry.id == *id);
        // A target again: the snapshot from before may be of other content.
        let fresh_until = |snapshot: Snapshot| snapshot.fresh_until.unwrap_or(Timestamp::UNIX_EPOCH);
        known.snapshot = known
            .snapshot
            .map(|snapshot| Snapshot { fresh_until: is_target.then(|| fresh_until(snapshot)), ..snapshot });
    }
    for entry in &desired.deployments {
        let targets = &mut record.deployments.entry(entry.id.clone()).or_default().targets;
        if targets.last() != Some(&(entry.target_generation, entry.digest)) {
            targets.push((entry.target_generation, entry.digest));
        }
        let surplus = targets.len().saturating_sub(HTTP_TARGETS_MAX);
        targets.drain(..surplus);
    }
    forget(record, desired);
    true
}

/// Whether a gateway has served a newer manifest than DOWNLINK's: DOWNLINK lags, or was set back.
pub(crate) const fn is_hub_behind(record: &HttpDevice, newest: u64) -> bool {
    record.generation > newest
}

/// Checks the version that a status names against the newest in DOWNLINK (0 if there is none) and the newest served one.
///
/// # Errors
/// The version is above both.
pub(crate) fn check_adopted(
    record: &HttpDevice,
    newest: u64,
    adopted: Generation,
) -> Result<(), VersionRefusal> {
    let limit = record.generation.max(newest);
    if limit == 0 || adopted.get() <= limit {
        return Ok(());
    }
    Err(if is_hub_behind(record, newest) {
        VersionRefusal::HubIsBehind
    } else {
        VersionRefusal::Above(newest)
    })
}

/// Removes deployments that are no longer a target while there are too many: never reported ones first, then by number.
fn forget(record: &mut HttpDevice, desired: &DesiredState) {
    let is_target = |id: &DeploymentId| desired.deployments.iter().any(|entry| entry.id == *id);
    while record.deployments.len() > HTTP_DEPLOYMENTS_MAX {
        let spare = record.deployments.iter().filter(|(id, _)| !is_target(id));
        let spare = spare.min_by_key(|(_, known)| known.reported.map(|reported| reported.seq));
        let Some(id) = spare.map(|(id, _)| id.clone()) else { return };
        record.deployments.remove(&id);
    }
}

/// The digest of the content that a device applied with a version of its manifest: the newest target up to that version.
fn digest_of(record: &HttpDevice, deployment: &DeploymentId, adopted: Generation) -> Digest {
    let targets = record.deployments.get(deployment).map_or(&[][..], |known| &known.targets);
    let applied = targets.iter().rev().find(|(generation, _)| *generation <= adopted);
    // No content is empty, so with this digest the report matches no target of the hub.
    applied.map_or_else(|| Digest::of_bytes(b""), |(_, digest)| *digest)
}

/// Whether the hub's receipt misses a confirmed report: UPLINK stored it, and ingest did not.
pub(crate) fn is_lost(record: &HttpDevice, known: &ConfirmedReport, receipt: Option<&Receipt>) -> bool {
    receipt.is_some_and(|receipt| {
        let seq = known.seq.get();
        receipt.epoch == record.epoch && seq <= receipt.through && !receipt.covers(seq)
    })
}

/// How long a heartbeat of the device may count now.
pub(crate) fn heartbeat_lease(record: &HttpDevice, now: Timestamp) -> HeartbeatLease {
    let confirmed = record.deployments.values().filter_map(|known| known.snapshot);
    let all = confirmed.chain(record.open.iter().filter_map(|open| open.snapshot));
    let left = |until: Timestamp| {
        let left = u64::try_from(until.duration_since(now).as_millis()).unwrap_or(0);
        left.min(EVIDENCE_LEASE_MS_MAX)
    };
    match all.filter_map(|snapshot| snapshot.fresh_until).map(left).min() {
        None => HeartbeatLease::Hub,
        Some(0) => HeartbeatLease::Expired,
        Some(left) => HeartbeatLease::Evidence(left),
    }
}

/// Decides about a report by the newest receipt of its device.
///
/// # Errors
/// The record has no room for it.
pub(crate) fn admit(
    record: &mut HttpDevice,
    sent: SentReport<'_>,
    receipt: Option<&Receipt>,
    now: Timestamp,
) -> Result<Admission, Refusal> {
    let SentReport { deployment, content, adopted, unreachable, snapshot } = sent;
    record.unreachable = unreachable.unwrap_or(record.unreachable);
    if is_superseded(record, deployment, snapshot, now) {
        return Ok(Admission::Confirmed);
    }
    let newest =
        record.open.iter().filter(|open| open.deployment.as_ref() == deployment).max_by_key(|o| o.seq);
    if let Some(open) = newest.filter(|open| open.content == content) {
        return Ok(publish(record, OpenReport { snapshot, ..open.clone() }, false));
    }
    let known = confirmed(record, deployment).copied();
    let lost = known.filter(|known| is_lost(record, known, receipt));
    if newest.is_none() && lost.is_none() && known.is_some_and(|known| known.content == content) {
        if let Some(known) = deployment.and_then(|id| record.deployments.get_mut(id)) {
            known.snapshot = snapshot;
        }
        return Ok(Admission::Confirmed);
    }
    if let Some(id) = deployment
        && !record.deployments.contains_key(id)
        && record.deployments.len() >= HTTP_DEPLOYMENTS_MAX
    {
        return Err(Refusal::TooManyDeployments);
    }
    let mut coalesced = coalesce(record, deployment, now);
    if record.open.len() >= OPEN_MAX {
        return Err(Refusal::TooManyOpen);
    }
    if let Some(lost) = lost {
        coalesced.insert(lost.seq.get());
        *last_of(record, deployment) = None;
    }
    record.head += 1;
    let open = OpenReport {
        seq: Seq::new(record.head).unwrap_or(Seq::FIRST),
        deployment: deployment.cloned(),
        content,
        at: now,
        target: deployment.zip(adopted).map(|(id, adopted)| digest_of(record, id, adopted)),
        agent_version: deployment.is_none().then(agent_version),
        coalesced,
        snapshot,
    };
    record.open.push(open.clone());
    Ok(publish(record, open, true))
}

/// Whether a snapshot that counts before this one has come already. One of the future does not count: a clock was ahead.
fn is_superseded(
    record: &HttpDevice,
    deployment: Option<&DeploymentId>,
    snapshot: Option<Snapshot>,
    now: Timestamp,
) -> bool {
    let confirmed = deployment.and_then(|id| record.deployments.get(id)?.snapshot);
    let open = record.open.iter().filter(|open| open.deployment.as_ref() == deployment);
    let held = confirmed.into_iter().chain(open.filter_map(|open| open.snapshot));
    let mut held = held.filter(|held| held.taken_at.is_none_or(|at| at <= now));
    snapshot.is_some_and(|snapshot| held.any(|held| snapshot.is_behind(&held)))
}

/// The version in a device's reports: the gateway's, because the protocol has no field for the device's.
pub(crate) fn agent_version() -> String {
    format!("muster-gateway {VERSION}")
}

/// Closes the open numbers of a deployment and abandoned ones; returns them with all numbers that they had coalesced.
fn coalesce(record: &mut HttpDevice, deployment: Option<&DeploymentId>, now: Timestamp) -> SeqRanges {
    let mut coalesced = SeqRanges::new();
    record.open.retain(|open| {
        let is_left = open.deployment.as_ref() != deployment && !is_abandoned(open, now);
        if !is_left {
            coalesced.insert(open.seq.get());
            coalesced.extend(&open.coalesced);
        }
        is_left
    });
    coalesced
}

fn publish(record: &HttpDevice, open: OpenReport, is_new: bool) -> Admission {
    let head = Seq::new(record.head).unwrap_or(open.seq);
    Admission::Publish { open, epoch: record.epoch, head, is_new }
}

fn is_abandoned(open: &OpenReport, now: Timestamp) -> bool {
    let limit = SignedDuration::try_from(OPEN_FOR).unwrap_or(SignedDuration::MAX);
    now.duration_since(open.at) > limit
}

/// The last confirmed report of a deployment, or of the capabilities.
pub(crate) fn confirmed<'a>(
    record: &'a HttpDevice,
    deployment: Option<&DeploymentId>,
) -> Option<&'a ConfirmedReport> {
    match deployment {
        None => record.capabilities.as_ref(),
        Some(id) => record.deployments.get(id)?.reported.as_ref(),
    }
}

fn last_of<'a>(
    record: &'a mut HttpDevice,
    deployment: Option<&DeploymentId>,
) -> &'a mut Option<ConfirmedReport> {
    match deployment {
        None => &mut record.capabilities,
        Some(id) => &mut record.deployments.entry(id.clone()).or_default().reported,
    }
}

/// Records that UPLINK has stored the report of a number. False if the number is no longer open and another gateway has not
/// confirmed the same report: it was coalesced, and the device must send its state again.
pub(crate) fn confirm(record: &mut HttpDevice, epoch: Epoch, done: &OpenReport) -> bool {
    let report = ConfirmedReport { seq: done.seq, content: done.content };
    if record.epoch != epoch {
        return false;
    }
    let Some(at) = record.open.iter().position(|open| open.seq == done.seq) else {
        return confirmed(record, done.deployment.as_ref()) == Some(&report);
    };
    record.open.remove(at);
    let newest = last_of(record, done.deployment.as_ref());
    if newest.is_none_or(|known| known.seq < report.seq) {
        *newest = Some(report);
        if let Some(known) = done.deployment.as_ref().and_then(|id| record.deployments.get_mut(id)) {
            known.snapshot = done.snapshot;
        }
    }
    true
}

#[cfg(test)]
mod tests;
