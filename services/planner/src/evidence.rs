//! The evidence of rollouts: the fold of LEDGER, and whether the fold is current. Pure: it reads no stream and no clock.
//!
//! The planner decides only while it has read LEDGER's end within [`BEHIND_AFTER`] and every partition has a pulse. A planner that
//! is behind LEDGER or cut off from it, or whose hub no longer hears its devices, decides nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;
use muster_contract::canonical::Digest;
use muster_contract::desired::{DesiredState, SourceKind};
use muster_contract::fact::{Fact, Liveness, PulseFact};
use muster_contract::limits::{LEASE, PARTITIONS};
use muster_contract::subjects::LedgerSubject;
use muster_contract::view::{AsOf, Freshness};
use muster_contract::{DeploymentId, DeviceKey, Generation, Timestamp};
use muster_domain::fold::{DeviceHearing, DeviceNumber, DeviceRecord, Fleet, HearingState};
use muster_domain::rollout::Line;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::ledger::event::{LedgerEvent, LedgerFact};
use crate::plan_orders::PlanOrders;
use crate::read_end::{self, BEHIND_AFTER, Lag, ReadEnd};

/// Delay of a pulse beyond its lease that is tolerated.
const PULSE_GRACE: SignedDuration = SignedDuration::from_secs(5);

/// The planner's own projection of LEDGER, in addition to the fleet; a checkpoint keeps it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlannerProjection {
    pulses: BTreeMap<u16, Pulse>,
    /// When LEDGER stored the first record of an owner of each partition.
    owned_since: BTreeMap<u16, Timestamp>,
    /// The instances of plans in desired states.
    orders: PlanOrders,
}

/// The first line of a copy.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) records: u64,
    /// Digest of the fleet's view.
    pub(crate) fleet: Digest,
    pub(crate) hearing: HearingState,
    pub(crate) projection: PlannerProjection,
}

/// The evidence.
#[derive(Debug)]
pub(crate) struct Evidence {
    fleet: Fleet,
    /// Sequence up to which every message is read.
    read_through: u64,
    /// The ends of LEDGER, with their moments by the own clock and by the server's.
    end: ReadEnd<(Instant, Timestamp)>,
    projection: PlannerProjection,
    /// The server's time when LEDGER was first read to its end, and the newest known one.
    times: Option<(Timestamp, Timestamp)>,
}

/// The newest pulse of a partition that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pulse {
    stored_at: Timestamp,
    lease: SignedDuration,
    /// Since when no pulse was current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unproven_since: Option<Timestamp>,
}

/// The devices and documents that facts have touched.
#[derive(Debug, Default)]
pub(crate) struct ChangedByFacts {
    /// Devices that have changed.
    pub(crate) devices: Vec<DeviceKey>,
    /// Documents of devices, in order.
    pub(crate) documents: Vec<Document>,
    /// Whether any device may have changed.
    pub(crate) all: bool,
}

/// The contents that a document gives a device.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    pub(crate) key: DeviceKey,
    pub(crate) generation: Generation,
    pub(crate) at: Timestamp,
    pub(crate) is_retired: bool,
    pub(crate) entries: Vec<DocumentEntry>,
}

/// The content of a deployment in a document.
#[derive(Debug, Clone)]
pub(crate) struct DocumentEntry {
    pub(crate) id: DeploymentId,
    pub(crate) digest: Digest,
    pub(crate) generation: Generation,
    /// Whether a request replaces the content that Git wants.
    pub(crate) is_requested: bool,
}

/// Why nothing is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behind {
    /// LEDGER was never read to its end.
    Reading,
    /// LEDGER's end was not read in time, or LEDGER does not answer.
    Late,
    /// The hub has no pulse of a partition.
    NoPulse(u16),
}

impl From<Lag> for Behind {
    fn from(lag: Lag) -> Self {
        match lag {
            Lag::Reading => Self::Reading,
            Lag::Late => Self::Late,
        }
    }
}

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reading => f.write_str("reading LEDGER for the first time"),
            Self::Late => {
                write!(f, "LEDGER's end was not read within {BEHIND_AFTER:?}: check the link to NATS")
            }
            Self::NoPulse(partition) => {
                write!(f, "no pulse of partition {partition}: check that muster-ingest owns it")
            }
        }
    }
}

impl Default for Evidence {
    fn default() -> Self {
        Self::restore(Fleet::default(), PlannerProjection::default())
    }
}

impl Evidence {
    /// The evidence of a checkpoint. It is not current before LEDGER's end is read.
    pub(crate) fn restore(fleet: Fleet, projection: PlannerProjection) -> Self {
        let read_through = fleet.as_of().ledger_seq;
        let (fleet, end) = (fleet.without_change_log(), ReadEnd::default());
        Self { fleet, read_through, end, projection, times: None }
    }

    /// Begins a copy of all devices, and gives up a running one. Returns the last message in it, and its first line.
    pub(crate) fn start_copy(&mut self) -> (AsOf, Head) {
        self.fleet.start_capture_of_all();
        let head = Head {
            records: self.fleet.devices_known() as u64,
            fleet: self.fleet.fleet_view().tally.digest,
            hearing: self.fleet.hearing_state().clone(),
            projection: self.projection.clone(),
        };
        (self.fleet.as_of(), head)
    }

    /// The next records of the copy, at most `max` beside those that facts have pushed ahead; none once all are copied.
    pub(crate) fn copy(&mut self, max: usize) -> Vec<DeviceRecord> {
        self.fleet.capture(max)
    }

    /// Applies an event.
    pub(crate) fn apply(&mut self, event: LedgerEvent) -> ChangedByFacts {
        let mut touched = ChangedByFacts::default();
        match event {
            LedgerEvent::Facts(facts) => self.fold(facts, &mut touched),
            LedgerEvent::Opened { .. } => {}
            LedgerEvent::Through(through) => self.advance_to(through),
            LedgerEvent::End { last_seq, at, asked_at } => {
                self.end.observe(last_seq, (asked_at, at));
                if let Some((_, now)) = &mut self.times {
                    *now = at;
                }
                self.advance_to(self.read_through);
            }
            LedgerEvent::Restarted => (*self, touched.all) = (Self::default(), true),
        }
        touched
    }

    fn fold(&mut self, facts: Vec<LedgerFact>, touched: &mut ChangedByFacts) {
        let mut through = self.read_through;
        for (at, read) in facts {
            through = at.ledger_seq;
            let Some((subject, fact)) = read else {
                self.fleet.pass(at);
                continue;
            };
            match (&subject, &fact) {
                (LedgerSubject::Hub(partition), Fact::Pulse(pulse)) => {
                    self.record_pulse(*partition, pulse, at.stored_at);
                }
                (LedgerSubject::Desired(key), Fact::Desired(document)) => {
                    self.projection.orders.apply(key, document, at.stored_at);
                    touched.documents.push(Document::of(key, document));
                }
                (LedgerSubject::Owner { partition, .. }, _) => {
                    self.projection.orders.taken_over(*partition, at.stored_at);
                    self.projection.owned_since.entry(*partition).or_insert(at.stored_at);
                }
                (LedgerSubject::Liveness(key), Fact::Liveness(fact)) => {
                    let was_heard = |heard: DeviceHearing| heard.freshness == Freshness::Fresh;
                    if fact.state == Liveness::Fresh && !self.fleet.heard(key).is_some_and(was_heard) {
                        self.projection.orders.heard_again(key, at.stored_at);
                    }
                }
                // The devices of a partition change at once.
                (LedgerSubject::Hearing(_), _) => touched.all = true,
                _ => {}
            }
            self.fleet.apply(at, &subject, fact);
        }
        touched.devices = self.fleet.drain_changed_devices();
        self.advance_to(through);
    }

    /// Records a pulse. A pulse that is not `current` prolongs one that has not ended, for [`PulseFact::unproven_max`] at most; it
    /// does not start one.
    fn record_pulse(&mut self, partition: u16, pulse: &PulseFact, stored_at: Timestamp) {
        let has_pulse =
            || self.projection.pulses.get(&partition).is_some_and(|before| !before.is_over(stored_at));
        if pulse.current || has_pulse() {
            self.projection.pulses.insert(partition, Pulse::of(pulse, stored_at));
        }
    }

    fn advance_to(&mut self, through: u64) {
        self.read_through = self.read_through.max(through);
        if let Some((_, at)) = self.end.advance_to(self.read_through) {
            self.times.get_or_insert((at, at));
        }
    }

    /// Checks that the evidence is current.
    ///
    /// # Errors
    /// Why nothing may be decided.
    pub(crate) fn check_current(&self, now: Instant) -> Result<(), Behind> {
        read_end::check_current(self.end.current_at().map(|(read_at, _)| read_at), now)?;
        let (first, newest) = self.times.ok_or(Behind::Reading)?;
        let is_over = |partition: &u16| self.is_over(*partition, first, newest);
        (0..PARTITIONS).find(is_over).map_or(Ok(()), |partition| Err(Behind::NoPulse(partition)))
    }

    /// Whether the pulse of a partition has stopped.
    fn is_over(&self, partition: u16, first: Timestamp, now: Timestamp) -> bool {
        // The devices of a partition that LEDGER calls unheard are no evidence.
        if self.fleet.hearing_state().is_stopped(partition) {
            return false;
        }
        let lease = SignedDuration::try_from(LEASE).unwrap_or_default();
        // LEDGER forgets a pulse soon after its lease, so an owner of old without a pulse has stopped already.
        let owned_since =
            self.projection.owned_since.get(&partition).map_or(first, |since| first.min(*since));
        let pulse = self.projection.pulses.get(&partition).copied().unwrap_or(Pulse {
            stored_at: owned_since,
            lease,
            unproven_since: None,
        });
        pulse.is_over(now)
    }

    /// The time of a judgement: the own clock's, at most [`BEHIND_AFTER`] ahead of the evidence. So a clock that runs fast ends no
    /// soak time without evidence.
    pub(crate) fn judgement_time(&self, clock: Timestamp) -> Timestamp {
        let latest = |(_, at): (Instant, Timestamp)| at.checked_add(BEHIND_AFTER).unwrap_or(Timestamp::MAX);
        self.end.current_at().map_or(clock, |current_at| clock.min(latest(current_at)))
    }

    /// LEDGER's time at a moment, by the last end that is read; `None` before one is.
    pub(crate) fn ledger_time(&self, now: Instant) -> Option<Timestamp> {
        let (read_at, at) = self.end.current_at()?;
        Some(at.checked_add(now.duration_since(read_at)).unwrap_or(Timestamp::MAX))
    }

    /// The last moment at which the evidence is current, unless LEDGER's end is read again.
    pub(crate) fn ends_at(&self) -> Option<Instant> {
        Some(self.end.current_at()?.0 + BEHIND_AFTER)
    }

    /// The last sequence that is folded.
    pub(crate) const fn ledger_seq(&self) -> u64 {
        self.fleet.as_of().ledger_seq
    }

    /// The fleet and the planner's own projection, for a comparison.
    #[cfg(test)]
    pub(crate) const fn parts(&self) -> (&Fleet, &PlannerProjection) {
        (&self.fleet, &self.projection)
    }

    /// The instances of plans in desired states, and the retired devices.
    pub(crate) const fn orders(&self) -> &PlanOrders {
        &self.projection.orders
    }

    /// The number of known devices.
    pub(crate) fn devices(&self) -> usize {
        self.fleet.devices_known()
    }

    /// How well a device is known.
    pub(crate) fn heard(&self, key: &DeviceKey) -> Option<DeviceHearing> {
        self.fleet.heard(key)
    }

    /// The number of a device, for [`Self::target_lines`].
    pub(crate) fn number(&self, key: &DeviceKey) -> Option<DeviceNumber> {
        self.fleet.device_number(key)
    }

    /// The key of a device, with the names that the fold holds if it knows the device.
    pub(crate) fn shared_key(&self, key: DeviceKey) -> DeviceKey {
        self.number(&key).and_then(|number| self.fleet.shared_key(number)).unwrap_or(key)
    }

    /// A deployment on many devices for a rollout, by their numbers.
    pub(crate) fn target_lines<'a>(
        &'a self,
        id: &DeploymentId,
    ) -> impl Fn(Option<DeviceNumber>) -> Line<'a> + use<'a> {
        self.fleet.target_lines(id)
    }

    /// A deployment on a device for a rollout.
    pub(crate) fn target_line(&self, id: &DeploymentId, key: &DeviceKey) -> Line<'_> {
        self.fleet.target_line(id, key)
    }

    /// The generation of a device's last report of a deployment, if it says that the device has removed the deployment.
    pub(crate) fn removed(&self, id: &DeploymentId, key: &DeviceKey) -> Option<Generation> {
        self.fleet.removed(id, key)
    }

    /// A deployment on a device.
    pub(crate) fn line(&self, id: &DeploymentId, key: &DeviceKey) -> Option<Line<'_>> {
        self.fleet.rollout_line(id, key)
    }
}

impl Pulse {
    fn of(pulse: &PulseFact, stored_at: Timestamp) -> Self {
        let lease = SignedDuration::try_from(pulse.lease()).unwrap_or(SignedDuration::MAX);
        Self { stored_at, lease, unproven_since: pulse.unproven_since(stored_at) }
    }

    fn is_over(&self, now: Timestamp) -> bool {
        let is_unproven_too_long = |since| {
            let lease = Duration::try_from(self.lease).unwrap_or(Duration::MAX);
            Duration::try_from(now.duration_since(since))
                .is_ok_and(|age| age > PulseFact::unproven_max(lease))
        };
        now.duration_since(self.stored_at) > self.lease.saturating_add(PULSE_GRACE)
            || self.unproven_since.is_some_and(is_unproven_too_long)
    }
}

impl Document {
    fn of(key: &DeviceKey, document: &DesiredState) -> Self {
        let entries = document.deployments.iter().map(|entry| DocumentEntry {
            id: entry.id.clone(),
            digest: entry.digest,
            generation: entry.target_generation,
            is_requested: entry.source.as_ref().is_some_and(|source| source.kind == SourceKind::Api),
        });
        Self {
            key: key.clone(),
            generation: document.generation,
            at: document.issued_at,
            is_retired: document.retired,
            entries: entries.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
