//! The pulse: that the owner of the partition hears its devices, as a fact for everybody who reads LEDGER.
//!
//! Only [`Border::tick`] makes one, and only a hub that hears lets time pass: so a pulse is missing where ingest is dead, deaf,
//! fenced off or cannot write. It is the last publication of its tick: every stale fact that is due comes before it.

use muster_contract::Timestamp;
use muster_contract::fact::{Fact, Liveness, PulseFact};
use muster_contract::subjects::LedgerSubject;
use muster_contract::version::{ApiVersion, kind};

use super::device::Device;
use super::{Border, NOBODY};
use crate::lease::elapsed;

/// Whose pulse it is, and when it was last made.
#[derive(Debug)]
pub(super) struct Pulse {
    partition: u16,
    owner: String,
    made_at: Option<Timestamp>,
}

impl Pulse {
    /// The next tick makes one, whatever became of the last.
    pub(super) const fn is_due_again(&mut self) {
        self.made_at = None;
    }

    /// The hub's clock says that the last one cannot be later than this.
    pub(super) fn not_after(&mut self, now: Timestamp) {
        self.made_at = self.made_at.map(|at| at.min(now));
    }
}

impl Border {
    /// From now on ticks make the pulses of a partition, in its owner's name.
    pub fn pulse_as(&mut self, partition: u16, owner: &str) {
        self.pulse = Some(Pulse { partition, owner: owner.to_owned(), made_at: None });
    }

    /// Makes a pulse if one is due.
    pub(super) fn make_pulse(&mut self, now: Timestamp) {
        let interval = PulseFact::interval(self.rules.lease);
        let Some(Pulse { partition, owner, made_at }) = &mut self.pulse else { return };
        if made_at.is_some_and(|at| elapsed(at, now) < interval) {
            return;
        }
        *made_at = Some(now);
        let lease = self.rules.lease;
        let fact = PulseFact {
            api_version: ApiVersion::V1,
            kind: kind::PulseFact::PulseFact,
            owner: owner.clone(),
            at: now,
            lease_seconds: PulseFact::lease_seconds(lease),
            current: self.devices.iter().all(|device| is_proven(device, now, lease)),
        };
        let subject = LedgerSubject::Hub(*partition);
        self.publish(NOBODY, subject, &Fact::Pulse(fact), None);
    }
}

/// Whether LEDGER is right about the device: one that it calls fresh was heard within the lease. One that it calls fresh
/// because the hub has not listened for long enough yet to say otherwise is not proven.
fn is_proven(device: &Device, now: Timestamp, lease: std::time::Duration) -> bool {
    let is_fresh = device.latest().told.is_some_and(|told| told.state == Liveness::Fresh);
    // A liveness fact of unknown fate may say that it is fresh.
    let may_be_fresh = is_fresh || device.retell;
    !may_be_fresh || device.heard.last_at.is_some_and(|at| elapsed(at, now) <= lease)
}
