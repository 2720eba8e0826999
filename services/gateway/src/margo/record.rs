//! The rules of the numbers of a device that keeps no outbox: pure functions on its record in the bucket.
//!
//! | a report is sent | what follows |
//! |---|---|
//! | with the content of the last confirmed one of its deployment | nothing: it is there, unless the receipt misses it |
//! | with the content of a number that is open | that number is published again; ingest drops a duplicate |
//! | with another content, or when the receipt misses it | the next number; it declares what it replaces as coalesced |
//!
//! A number replaces a lost one and the open ones of its deployment, and those that have been open for too long.
//!
//! A number is open from the moment it is taken until its report is confirmed, so a gateway that dies between leaves it open, and
//! the next request resumes or coalesces it. A report counts as confirmed only while its number is still open: a gateway that was
//! slow finds its number coalesced, and tells the device to try again.

use std::time::Duration;

use jiff::SignedDuration;
use muster_contract::canonical::Digest;
use muster_contract::desired::DesiredState;
use muster_contract::http_device::{
    ConfirmedReport, HTTP_DEPLOYMENTS_MAX, HTTP_TARGETS_MAX, HttpDeployment, HttpDevice, OpenReport,
};
use muster_contract::receipt::Receipt;
use muster_contract::version::ApiVersion;
use muster_contract::{DeploymentId, Epoch, Generation, Seq, SeqRanges, Timestamp};

use super::capabilities::agent_version;

/// Age after which an open number of another deployment counts as abandoned: longer than the confirmation of a report takes.
pub const OPEN_FOR: Duration = Duration::from_secs(30);
/// Numbers that may be open: reports of one device under way at once.
const OPEN_MAX: usize = 16;

const _: () = assert!(OPEN_FOR.as_secs() > 2 * muster_bus::publish::CONFIRM_TIMEOUT.as_secs());

/// The sent content, as far as a number depends on it.
#[derive(Debug, Clone, Copy)]
pub struct SentReport<'a> {
    /// The deployment; none for capabilities.
    pub deployment: Option<&'a DeploymentId>,
    /// Digest of what the device sent.
    pub content: Digest,
    /// The version of the manifest that a status names.
    pub adopted: Option<Generation>,
}

/// The decision about a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// UPLINK has it.
    Confirmed,
    /// Publish it under this number.
    Publish {
        /// The number and what belongs to it.
        open: OpenReport,
        /// The epoch of the number.
        epoch: Epoch,
        /// The highest number taken.
        head: Seq,
        /// Whether the number was taken now, so that the record must be stored first.
        is_new: bool,
    },
}

/// Why a report has no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too many of the device's reports are under way.
    TooManyOpen,
    /// Too many deployments are remembered.
    TooManyDeployments,
}

/// Why a version of the manifest is none that the device can have adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionRefusal {
    /// DOWNLINK is behind what was served, so nobody can say now.
    HubIsBehind,
    /// It is above the newest version, which is this.
    Above(u64),
}

/// A record that begins an epoch above that of the last receipt, whatever the clock says.
pub fn begin(receipt: Option<&Receipt>, now: Timestamp) -> HttpDevice {
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
    }
}

/// Whether the hub holds numbers that the record does not know: the bucket was set back, and would give numbers twice.
pub fn is_set_back(record: &HttpDevice, receipt: &Receipt) -> bool {
    (receipt.epoch, receipt.through) > (record.epoch, record.head)
}

/// The same record in a new epoch, without reports.
pub fn renew(record: &HttpDevice, receipt: &Receipt, now: Timestamp) -> HttpDevice {
    let mut renewed = begin(Some(receipt), now);
    renewed.epoch = renewed.epoch.max(record.epoch.next());
    renewed.generation = record.generation;
    let targets = |known: &HttpDeployment| HttpDeployment { reported: None, targets: known.targets.clone() };
    renewed.deployments = record.deployments.iter().map(|(id, known)| (id.clone(), targets(known))).collect();
    renewed
}

/// Remembers the contents that a desired state targets; true if the record has changed.
pub fn learn(record: &mut HttpDevice, desired: &DesiredState) -> bool {
    if record.generation >= desired.generation.get() {
        return false;
    }
    record.generation = desired.generation.get();
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

/// Whether the device was served a newer manifest than DOWNLINK's: DOWNLINK lags, or was set back.
pub const fn is_hub_behind(record: &HttpDevice, newest: u64) -> bool {
    record.generation > newest
}

/// Checks the version that a status names against the newest in DOWNLINK (0 if there is none) and the newest that was served.
///
/// # Errors
/// The version is above both.
pub fn check_adopted(record: &HttpDevice, newest: u64, adopted: Generation) -> Result<(), VersionRefusal> {
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

/// Removes deployments that are no target any more, those that were never reported first, while there are too many.
fn forget(record: &mut HttpDevice, desired: &DesiredState) {
    let is_target = |id: &DeploymentId| desired.deployments.iter().any(|entry| entry.id == *id);
    while record.deployments.len() > HTTP_DEPLOYMENTS_MAX {
        let spare = record.deployments.iter().filter(|(id, _)| !is_target(id));
        let spare = spare.min_by_key(|(_, known)| known.reported.map(|reported| reported.seq));
        let Some(id) = spare.map(|(id, _)| id.clone()) else { return };
        record.deployments.remove(&id);
    }
}

/// The digest of the content that a device applied with a version of its manifest: of the newest target that is not above it.
fn digest_of(record: &HttpDevice, deployment: &DeploymentId, adopted: Generation) -> Digest {
    let targets = record.deployments.get(deployment).map_or(&[][..], |known| &known.targets);
    let applied = targets.iter().rev().find(|(generation, _)| *generation <= adopted);
    // Nothing has the digest of nothing, so the report is of no target that the hub knows.
    applied.map_or_else(|| Digest::of_bytes(b""), |(_, digest)| *digest)
}

/// Whether the hub's receipt misses a confirmed report: UPLINK had it, and ingest did not store it.
pub fn is_lost(record: &HttpDevice, known: &ConfirmedReport, receipt: Option<&Receipt>) -> bool {
    receipt.is_some_and(|receipt| {
        let seq = known.seq.get();
        receipt.epoch == record.epoch && seq <= receipt.through && !receipt.covers(seq)
    })
}

/// Decides about a report, with the newest receipt of its device.
///
/// # Errors
/// The record has no room for it.
pub fn admit(
    record: &mut HttpDevice,
    sent: SentReport<'_>,
    receipt: Option<&Receipt>,
    now: Timestamp,
) -> Result<Admission, Refusal> {
    let SentReport { deployment, content, adopted } = sent;
    let newest =
        record.open.iter().filter(|open| open.deployment.as_ref() == deployment).max_by_key(|o| o.seq);
    if let Some(open) = newest.filter(|open| open.content == content) {
        return Ok(publish(record, open.clone(), false));
    }
    let known = confirmed(record, deployment).copied();
    let lost = known.filter(|known| is_lost(record, known, receipt));
    if newest.is_none() && lost.is_none() && known.is_some_and(|known| known.content == content) {
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
    };
    record.open.push(open.clone());
    Ok(publish(record, open, true))
}

/// Closes the open numbers of a deployment, and those that were abandoned; they, and all that they had coalesced.
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
pub fn confirmed<'a>(
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

/// UPLINK has the report of a number. False if the number is not open any more and another gateway has not confirmed the same
/// report: it was coalesced, and the device must send its state again.
pub fn confirm(record: &mut HttpDevice, (epoch, done): (Epoch, &OpenReport)) -> bool {
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
    }
    true
}

#[cfg(test)]
mod tests;
