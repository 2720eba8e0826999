//! The rules of the numbers of a device that keeps no outbox: pure functions on its record in the bucket.
//!
//! | a report is sent | what follows |
//! |---|---|
//! | with the content of the last confirmed one of its deployment | nothing: it is there |
//! | with the content of a number that is open | that number is published again; ingest drops a duplicate |
//! | with another content | the next number; it declares open numbers of its deployment, and those that are too old, as coalesced |
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

/// Age after which an open number of another deployment counts as abandoned: longer than the confirmation of a report takes.
pub const OPEN_FOR: Duration = Duration::from_secs(30);
/// Numbers that may be open: reports of one device under way at once.
const OPEN_MAX: usize = 16;

const _: () = assert!(OPEN_FOR.as_secs() > 2 * muster_bus::publish::CONFIRM_TIMEOUT.as_secs());

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
pub fn digest_of(record: &HttpDevice, deployment: &DeploymentId, adopted: Generation) -> Digest {
    let targets = record.deployments.get(deployment).map_or(&[][..], |known| &known.targets);
    let applied = targets.iter().rev().find(|(generation, _)| *generation <= adopted).or(targets.first());
    // Nothing has the digest of nothing, so the report is of no target that the hub knows.
    applied.map_or_else(|| Digest::of_bytes(b""), |(_, digest)| *digest)
}

/// Decides about a report; capabilities have no deployment.
///
/// # Errors
/// The record has no room for it.
pub fn admit(
    record: &mut HttpDevice,
    deployment: Option<&DeploymentId>,
    content: Digest,
    now: Timestamp,
) -> Result<Admission, Refusal> {
    let newest =
        record.open.iter().filter(|open| open.deployment.as_ref() == deployment).max_by_key(|o| o.seq);
    if let Some(open) = newest.filter(|open| open.content == content) {
        return Ok(publish(record, open.clone(), false));
    }
    if newest.is_none() && confirmed(record, deployment).is_some_and(|known| known.content == content) {
        return Ok(Admission::Confirmed);
    }
    if let Some(id) = deployment
        && !record.deployments.contains_key(id)
        && record.deployments.len() >= HTTP_DEPLOYMENTS_MAX
    {
        return Err(Refusal::TooManyDeployments);
    }
    let mut coalesced = SeqRanges::new();
    record.open.retain(|open| {
        let is_left = open.deployment.as_ref() != deployment && !is_abandoned(open, now);
        if !is_left {
            coalesced.insert(open.seq.get());
            coalesced.extend(&open.coalesced);
        }
        is_left
    });
    if record.open.len() >= OPEN_MAX {
        return Err(Refusal::TooManyOpen);
    }
    record.head += 1;
    let seq = Seq::new(record.head).unwrap_or(Seq::FIRST);
    let open = OpenReport { seq, deployment: deployment.cloned(), content, at: now, coalesced };
    record.open.push(open.clone());
    Ok(publish(record, open, true))
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
    let newest = match &done.deployment {
        None => &mut record.capabilities,
        Some(id) => &mut record.deployments.entry(id.clone()).or_default().reported,
    };
    if newest.is_none_or(|known| known.seq < report.seq) {
        *newest = Some(report);
    }
    true
}

#[cfg(test)]
mod tests;
