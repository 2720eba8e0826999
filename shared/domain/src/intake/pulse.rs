//! Publishes the pulse of a partition: the fact that its owner receives from its devices.
//!
//! Only [`IntakeState::tick`] publishes one, and the caller ticks only while it receives: so a pulse is missing while ingest is
//! down, receives nothing, is fenced, or cannot write. The pulse is the last publication of its tick: every stale fact that is
//! due comes before it.
//!
//! A new owner gives every fresh device a new lease. So that owners which follow each other in less than a lease do not keep a
//! silent device fresh, each takes over since when no pulse was current: readers of LEDGER bound that time.

use std::time::Duration;

use muster_contract::Timestamp;
use muster_contract::fact::{Fact, Liveness, PulseFact};
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};

use super::device::DeviceIntake;
use super::state::{IntakeState, PulseTimer, UNNAMED};
use crate::lease::elapsed;

impl IntakeState {
    /// Lets ticks publish the pulses of a partition, in its owner's name, from now on. `unproven_since` is taken over from the last
    /// pulse in LEDGER.
    pub fn publish_pulses_as(&mut self, partition: u16, owner: &str, unproven_since: Option<Timestamp>) {
        let owner = owner.to_owned();
        self.pulse = Some(PulseTimer { partition, owner, published_at: None, unproven_since });
    }

    /// Publishes a pulse if one is due.
    pub(super) fn publish_pulse(&mut self, now: Timestamp) {
        let lease = self.rules.lease;
        let Some(PulseTimer { partition, owner, published_at, unproven_since }) = &mut self.pulse else {
            return;
        };
        if published_at.is_some_and(|at| elapsed(at, now) < PulseFact::interval(lease)) {
            return;
        }
        *published_at = Some(now);
        let current = self.devices.iter().all(|device| is_proven(device, now, lease));
        *unproven_since = (!current).then(|| unproven_since.map_or(now, |since| since.min(now)));
        let fact = PulseFact {
            api_version: ApiVersion::V1,
            kind: kind::PulseFact::PulseFact,
            owner: owner.clone(),
            at: now,
            lease_seconds: PulseFact::lease_seconds(lease),
            current,
            unproven_since: *unproven_since,
        };
        let subject = LedgerSubject::Hub(*partition);
        self.publish(UNNAMED, subject, Fact::Pulse(fact), None);
    }
}

/// Whether LEDGER is right about the device: a device that it calls fresh was heard within the lease. A device that LEDGER calls
/// fresh only because this process has not received for a whole lease yet is not proven.
fn is_proven(device: &DeviceIntake, now: Timestamp, lease: Duration) -> bool {
    let last = device.latest().last_published;
    // A liveness fact with an unknown outcome may call it fresh.
    let may_be_fresh = device.republish || last.is_some_and(|last| last.state == Liveness::Fresh);
    let is_heard = match device.contact.evidence_until() {
        Some(until) => now <= until,
        None => device.contact.last_at.is_some_and(|at| elapsed(at, now) <= lease),
    };
    !may_be_fresh || is_heard
}
