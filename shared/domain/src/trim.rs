//! Which acknowledged reports of a partition may be removed from UPLINK, and when.
//!
//! UPLINK holds a bounded number of reports of each device, its share, and refuses more. So the speed at which a device's
//! reports are removed is the speed at which it may send. Reports of a device within its [`Quota`] are removed at once; those of
//! a device beyond it are held, and removed one by one as its token bucket fills.
//!
//! Invariants: a report is removed only after it was acknowledged; a report of a throttled device only for tokens; every
//! report is removed in the end. One purge covers the whole partition where nothing is held; where something is, devices
//! that have used a good part of their share are purged by themselves. Each purge costs the server time, so the partition is
//! purged as soon as a device has used a good part of its share, and otherwise once a second.
//!
//! It does not purge, and it reads no clock. Its state is lost with the process: every bucket is full again then.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_contract::limits::{
    DEVICE_BURST_REPORTS, DEVICE_BYTES_PER_SECOND, DEVICE_PEAK_BYTES_PER_SECOND, DEVICE_REPORTS_PER_SECOND,
    UPLINK_SHARE,
};

use crate::token_bucket::{Rate, TokenBucket};

/// Least removable reports of a device for a purge of its own, while another device holds the partition's purge back.
pub const OWN_PURGE_FROM: u32 = UPLINK_SHARE / 8;
/// Purges of devices that use a good part of their share, and of throttled ones, in one turn: each is a request to the server.
pub const DEVICE_PURGES_MAX: usize = 4;
/// Time between two purges of a partition in which no device has used a good part of its share.
pub const PURGE_EVERY: Duration = Duration::from_secs(1);
/// Least time between two removals of reports of a throttled device.
pub const RELEASE_EVERY: Duration = Duration::from_millis(500);
/// Time between two log lines about a throttled device.
pub const NOTICE_EVERY: Duration = Duration::from_secs(60);
/// Time between two searches for devices that need not be remembered.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// The reports and bytes that a device may send: a sustained rate and a burst of each, and a rate of bytes within the burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Reports.
    pub reports: Rate,
    /// Bytes, headers and subject included.
    pub bytes: Rate,
    /// The same bytes within a burst: a second's worth may come at once.
    pub peak_bytes: Rate,
}

impl Quota {
    /// A quota whose burst of bytes lasts as long as its burst of reports.
    pub const fn new(reports_per_second: u64, bytes_per_second: u64, burst_reports: u64) -> Self {
        let burst_bytes = burst_reports as u128 * bytes_per_second as u128 / reports_per_second as u128;
        let burst_bytes = if burst_bytes > u64::MAX as u128 { u64::MAX } else { burst_bytes as u64 };
        Self {
            reports: Rate { per_second: reports_per_second, burst: burst_reports },
            bytes: Rate { per_second: bytes_per_second, burst: burst_bytes },
            peak_bytes: peak(bytes_per_second),
        }
    }
}

/// The peak: the contract's, or the sustained rate where an operator has set a higher one.
const fn peak(bytes_per_second: u64) -> Rate {
    let is_higher = bytes_per_second > DEVICE_PEAK_BYTES_PER_SECOND;
    let per_second = if is_higher { bytes_per_second } else { DEVICE_PEAK_BYTES_PER_SECOND };
    Rate { per_second, burst: per_second }
}

impl Default for Quota {
    fn default() -> Self {
        Self::new(DEVICE_REPORTS_PER_SECOND, DEVICE_BYTES_PER_SECOND, DEVICE_BURST_REPORTS)
    }
}

/// A removal from UPLINK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purge {
    /// All reports of the partition up to a position.
    Partition {
        /// The last position.
        through: u64,
    },
    /// All reports of one device up to a position.
    Device {
        /// The subject under which UPLINK stores its reports.
        subject: Arc<str>,
        /// The last position.
        through: u64,
    },
}

/// A message with one report or several that waits for tokens.
#[derive(Debug, Clone, Copy)]
struct HeldMessage {
    position: u64,
    weight: Weight,
}

/// The charge of a message: a batch costs as much as its reports would cost one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// Its reports.
    pub reports: u64,
    /// Their bytes, headers and subject included.
    pub bytes: u64,
}

#[derive(Debug)]
struct DeviceReports {
    reports: TokenBucket,
    bytes: TokenBucket,
    peak_bytes: TokenBucket,
    held: VecDeque<HeldMessage>,
    /// The last report that may be removed.
    removable_through: u64,
    /// Removable reports since the last purge that covered all of them.
    removable: u32,
    released_at: Option<Duration>,
    noticed_at: Option<Duration>,
}

/// The acknowledged reports of one partition that are still in UPLINK.
#[derive(Debug)]
pub struct PartitionTrim {
    quota: Quota,
    devices: HashMap<Arc<str>, DeviceReports>,
    /// Devices with held reports, in the order of their turns.
    throttled: VecDeque<Arc<str>>,
    /// Devices that are to be purged by themselves if the partition's purge does not cover them.
    crowded: VecDeque<Arc<str>>,
    /// Devices whose throttling is to be logged, with the reports that each has held.
    notices: Vec<(Arc<str>, usize)>,
    settled_through: u64,
    acknowledged_through: u64,
    purged_through: u64,
    /// When the partition was purged last; none where the next purge waits for nothing.
    purged_at: Option<Duration>,
    forgotten_at: Duration,
}

impl PartitionTrim {
    /// A list without reports.
    pub fn new(quota: Quota) -> Self {
        Self {
            quota,
            devices: HashMap::new(),
            throttled: VecDeque::new(),
            crowded: VecDeque::new(),
            notices: Vec::new(),
            settled_through: 0,
            acknowledged_through: 0,
            purged_through: 0,
            purged_at: None,
            forgotten_at: Duration::ZERO,
        }
    }

    /// Forgets every position, because the stream may be another one now. The buckets stay.
    pub fn reset_positions(&mut self) {
        for device in self.devices.values_mut() {
            device.held.clear();
            (device.removable_through, device.removable) = (0, 0);
        }
        self.throttled.clear();
        self.crowded.clear();
        (self.settled_through, self.acknowledged_through, self.purged_through) = (0, 0, 0);
    }

    /// Records that LEDGER has everything that follows from a report. Positions rise; a lower one means that deliveries began
    /// again.
    pub fn record_settled(&mut self, subject: &str, position: u64, weight: Weight, now: Duration) {
        let quota = self.quota;
        if position <= self.settled_through {
            self.reset_positions();
        }
        self.settled_through = position;
        if !self.devices.contains_key(subject) {
            self.devices.insert(Arc::from(subject), DeviceReports::new(quota, now));
        }
        let Some(device) = self.devices.get_mut(subject) else { return };
        if device.held.is_empty() && device.has_credit(quota, now) {
            device.release(HeldMessage { position, weight }, quota, now, self.purged_through);
            if device.removable == OWN_PURGE_FROM {
                self.crowded.push_back(Arc::from(subject));
            }
            return;
        }
        if device.held.is_empty() {
            self.throttled.push_back(Arc::from(subject));
        }
        device.held.push_back(HeldMessage { position, weight });
        if device.noticed_at.is_none_or(|at| now.saturating_sub(at) >= NOTICE_EVERY) {
            device.noticed_at = Some(now);
            self.notices.push((Arc::from(subject), device.held.len()));
        }
    }

    /// Records that every report up to a position is acknowledged; no report beyond it may be removed.
    pub fn acknowledged(&mut self, through: u64) {
        self.acknowledged_through = self.acknowledged_through.max(through);
    }

    /// Whether a turn may have reports to remove, now or later.
    pub fn has_work(&self) -> bool {
        self.acknowledged_through > self.purged_through || !self.throttled.is_empty()
    }

    /// The removals that are due. Each purge counts as done until [`failed`](Self::failed) says otherwise.
    pub fn purges(&mut self, now: Duration) -> Vec<Purge> {
        let released = self.release_held(now);
        self.forget(now);
        let held_from = self.throttled.iter().filter_map(|subject| self.devices.get(subject)?.held.front());
        let held_from = held_from.map(|held| held.position).min();
        let through = held_from.map_or(self.acknowledged_through, |held_from| {
            self.acknowledged_through.min(held_from.saturating_sub(1))
        });
        let mut purges = Vec::new();
        let is_urgent = !self.crowded.is_empty() || !released.is_empty();
        if through > self.purged_through && (is_urgent || self.is_purge_due(now)) {
            (self.purged_through, self.purged_at) = (through, Some(now));
            purges.push(Purge::Partition { through });
        }
        let crowded: Vec<_> = self.crowded.drain(..self.crowded.len().min(DEVICE_PURGES_MAX)).collect();
        for subject in crowded.into_iter().chain(released) {
            purges.extend(self.purge_device(subject));
        }
        purges
    }

    fn is_purge_due(&self, now: Duration) -> bool {
        self.purged_at.is_none_or(|at| now.saturating_sub(at) >= PURGE_EVERY)
    }

    /// Records that a purge failed: it is due again.
    pub fn failed(&mut self, purge: Purge) {
        match purge {
            Purge::Partition { .. } => (self.purged_through, self.purged_at) = (0, None),
            Purge::Device { subject, .. } => self.crowded.push_back(subject),
        }
    }

    /// Releases held reports regardless of quotas, because UPLINK needs the room.
    pub fn release_all(&mut self) {
        self.purged_at = None;
        for subject in self.throttled.drain(..) {
            if let Some(device) = self.devices.get_mut(&subject) {
                device.removable_through = device.held.back().map_or(0, |last| last.position);
                device.held.clear();
            }
        }
    }

    /// The number of devices that are beyond their quota now.
    pub fn throttled(&self) -> usize {
        self.throttled.len()
    }

    /// Devices whose throttling is to be logged now, by subject, with the reports that each has held.
    pub fn drain_notices(&mut self) -> Vec<(Arc<str>, usize)> {
        std::mem::take(&mut self.notices)
    }

    /// Releases the reports that the buckets of the next devices in turn allow; returns the devices of released reports.
    fn release_held(&mut self, now: Duration) -> Vec<Arc<str>> {
        let (mut released, mut served) = (Vec::new(), VecDeque::new());
        for _ in 0..self.throttled.len() {
            let Some(subject) = self.throttled.pop_front() else { break };
            let Some(device) = self.devices.get_mut(&subject) else { continue };
            let is_recent = device.released_at.is_some_and(|at| now.saturating_sub(at) < RELEASE_EVERY);
            if is_recent || released.len() >= DEVICE_PURGES_MAX {
                self.throttled.push_back(subject);
                continue;
            }
            let before = device.held.len();
            while let Some(report) = device.held.front().copied()
                && device.has_credit(self.quota, now)
            {
                device.held.pop_front();
                device.release(report, self.quota, now, self.purged_through);
            }
            if device.held.len() < before {
                device.released_at = Some(now);
                released.push(subject.clone());
            }
            if !device.held.is_empty() {
                served.push_back(subject);
            }
        }
        // Behind the devices that had no turn.
        self.throttled.append(&mut served);
        released
    }

    /// The purge of one device, if the partition's purge does not cover its reports.
    fn purge_device(&mut self, subject: Arc<str>) -> Option<Purge> {
        let device = self.devices.get_mut(&subject)?;
        device.removable = 0;
        let through = device.removable_through.min(self.acknowledged_through);
        if device.removable_through > through {
            // The rest is acknowledged soon.
            self.crowded.push_back(subject.clone());
        }
        (through > self.purged_through).then_some(Purge::Device { subject, through })
    }

    /// Forgets devices without reports and with a full bucket.
    fn forget(&mut self, now: Duration) {
        if now.saturating_sub(self.forgotten_at) >= FORGET_EVERY {
            self.forgotten_at = now;
            let (quota, purged_through) = (self.quota, self.purged_through);
            self.devices.retain(|_, device| {
                let is_noticed = device.noticed_at.is_some_and(|at| now.saturating_sub(at) < NOTICE_EVERY);
                let has_reports = !device.held.is_empty() || device.removable_through > purged_through;
                is_noticed || has_reports || !device.is_full(quota, now)
            });
        }
    }
}

impl DeviceReports {
    fn new(quota: Quota, now: Duration) -> Self {
        Self {
            reports: TokenBucket::full(quota.reports, now),
            bytes: TokenBucket::full(quota.bytes, now),
            peak_bytes: TokenBucket::full(quota.peak_bytes, now),
            held: VecDeque::new(),
            removable_through: 0,
            removable: 0,
            released_at: None,
            noticed_at: None,
        }
    }

    fn has_credit(&mut self, quota: Quota, now: Duration) -> bool {
        self.reports.has_credit(quota.reports, now)
            && self.bytes.has_credit(quota.bytes, now)
            && self.peak_bytes.has_credit(quota.peak_bytes, now)
    }

    fn is_full(&mut self, quota: Quota, now: Duration) -> bool {
        self.reports.is_full(quota.reports, now)
            && self.bytes.is_full(quota.bytes, now)
            && self.peak_bytes.is_full(quota.peak_bytes, now)
    }

    /// Pays for the reports of a message, which may be removed now.
    fn release(&mut self, message: HeldMessage, quota: Quota, now: Duration, purged_through: u64) {
        let Weight { reports, bytes } = message.weight;
        self.reports.withdraw(reports, quota.reports, now);
        self.bytes.withdraw(bytes, quota.bytes, now);
        self.peak_bytes.withdraw(bytes, quota.peak_bytes, now);
        if self.removable_through <= purged_through {
            self.removable = 0;
        }
        self.removable_through = message.position;
        self.removable += 1;
    }
}

/// The device of a stored subject as logs name it: `<site>/<device>`.
pub fn device_of(subject: &str) -> String {
    let mut tokens = subject.splitn(4, '.').skip(3);
    tokens.next().unwrap_or(subject).replacen('.', "/", 1)
}

const _: () = {
    assert!(OWN_PURGE_FROM > 0 && 4 * OWN_PURGE_FROM <= UPLINK_SHARE);
};

#[cfg(test)]
mod tests;
