//! The unheard partitions of the fleet: applies facts about them, and finds those of devices, sites and deployments.
//!
//! A change of a partition alters all of its devices at once, so it visits every device; it is rare. Between changes, counts by
//! partition tell which views depend on partitions that are not heard.

use std::collections::BTreeSet;

use muster_contract::fact::{Hearing, HearingFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::pulse::{HubHearing, UnheardPartition};
use muster_contract::status::StatusQuery;
use muster_contract::why::{Evidence, EvidenceKind};
use muster_contract::{SiteId, Timestamp, partition};

use super::super::delta::Delta;
use super::super::device::Device;
use super::super::fleet::{Fleet, Outcome, Position, Scope};
use super::{HearingState, PartitionHearing, UnheardCounts};

impl Fleet {
    /// The hearing state of the hub's partitions.
    pub const fn hearing_state(&self) -> &HearingState {
        &self.hearing
    }

    /// Applies a hearing fact: the newest one of a partition holds.
    pub(in crate::fold) fn apply_hearing(
        &mut self,
        at: Position,
        partition: u16,
        fact: &HearingFact,
    ) -> Outcome {
        if partition >= PARTITIONS {
            return Outcome::Skipped;
        }
        let before = self.hearing.stopped(partition);
        let after = (fact.state == Hearing::Stopped).then_some(fact.since);
        self.hearing.0.insert(partition, PartitionHearing { stopped: after, ledger_seq: at.ledger_seq });
        if before == after {
            return Outcome::Duplicate;
        }
        self.change_log.mark_hearing_changed(at.ledger_seq);
        for number in 0..self.devices.len() as u32 {
            let device = &self.devices[number as usize];
            if partition::of(self.site_of(device), &device.state.name) == partition {
                // Retracted and added again, because its views show the time also where only that differs.
                self.set_unheard_in(number, None);
                self.set_unheard_in(number, after.map(|_| partition as u8));
            }
        }
        Outcome::Applied
    }

    /// Sets the unheard partition that a device is in, or none. This is not part of the device's record.
    fn set_unheard_in(&mut self, number: u32, unheard_in: Option<u8>) {
        let before = self.context(number);
        if before.unheard_in != unheard_in {
            self.devices[number as usize].state.unheard_in = unheard_in;
            self.recount_device(number, before, Scope::Device, |_| {});
        }
    }

    /// The partition of a new device, if the hub does not hear it.
    pub(in crate::fold) fn unheard_in(&self, site: u32, device: &Device) -> Option<u8> {
        if self.hearing.0.is_empty() {
            return None;
        }
        let partition = partition::of(&self.totals.site(site).id, &device.state.name);
        self.hearing.stopped(partition).map(|_| partition as u8)
    }

    /// The partitions in these counts that the hub does not hear.
    pub(in crate::fold) fn hub_hearing(&self, counts: &UnheardCounts) -> HubHearing {
        HubHearing::of(
            counts.partitions().filter_map(|partition| self.unheard_partition(partition)).collect(),
        )
    }

    /// The same, each with the LEDGER sequence of its fact.
    pub(in crate::fold) fn hub_evidence(&self, hub: HubHearing) -> HubHearing {
        let named = |unheard: UnheardPartition| UnheardPartition {
            ledger_seq: self.hearing.0.get(&unheard.partition).map(|word| word.ledger_seq),
            ..unheard
        };
        HubHearing { unheard: hub.unheard.into_iter().map(named).collect(), ..hub }
    }

    fn unheard_partition(&self, partition: u16) -> Option<UnheardPartition> {
        let since = self.hearing.stopped(partition)?;
        Some(UnheardPartition { hub: None, partition, since, ledger_seq: None })
    }

    /// The partition of one device, if the hub does not hear it.
    pub(in crate::fold) fn hub_hearing_of(&self, device: &Device) -> HubHearing {
        let unheard = device.state.unheard_in.and_then(|partition| self.unheard_partition(partition.into()));
        HubHearing::of(Vec::from_iter(unheard))
    }

    /// The unheard partitions of these sites' devices, or of the whole fleet if none is named.
    pub(in crate::fold) fn hub_hearing_at<'a>(
        &self,
        sites: impl IntoIterator<Item = &'a SiteId>,
    ) -> HubHearing {
        let mut sites = sites.into_iter().peekable();
        if sites.peek().is_none() {
            return self.hub_hearing(&self.totals.fleet.unheard);
        }
        let numbers = sites.filter_map(|site| self.totals.site_numbers.get(site));
        let counts = numbers.map(|number| &self.totals.site(*number).whole.unheard);
        let partitions: BTreeSet<u16> = counts.flat_map(UnheardCounts::partitions).collect();
        HubHearing::of(partitions.into_iter().filter_map(|at| self.unheard_partition(at)).collect())
    }

    /// The unheard partitions of a status question's subject, independent of its other filters.
    pub(in crate::fold) fn hub_hearing_for(&self, query: &StatusQuery) -> HubHearing {
        let StatusQuery { id, site, device, .. } = query;
        if !device.is_empty() {
            let devices = device.iter().filter_map(|path| self.find(&path.0));
            let partitions: BTreeSet<u8> = devices.filter_map(|device| device.state.unheard_in).collect();
            return HubHearing::of(
                partitions.into_iter().filter_map(|at| self.unheard_partition(at.into())).collect(),
            );
        }
        match id.as_ref().and_then(|id| self.totals.deployment_numbers.get(id)) {
            Some(number) => self.hub_hearing_on(*number, site),
            None => self.hub_hearing_at(site),
        }
    }

    /// The partitions of a deployment's targets and leaving devices, at these sites if any is named.
    pub(in crate::fold) fn hub_hearing_on<'a>(
        &self,
        deployment: u32,
        sites: impl IntoIterator<Item = &'a SiteId>,
    ) -> HubHearing {
        let whole = self.hub_hearing(&self.totals.deployment(deployment).unheard);
        let mut sites = sites.into_iter().peekable();
        if whole.is_whole() || sites.peek().is_none() {
            return whole;
        }
        let mut here = UnheardCounts::default();
        for device in sites.flat_map(|site| self.devices_after(move |at| at == site, None, Some(deployment)))
        {
            let context = device.state.context();
            let mut rows = device.rows.iter().filter(|row| row.deployment == deployment);
            if rows.any(|row| row.is_counted(&context)) {
                here.shift(Delta::Add, context.unheard_in);
            }
        }
        self.hub_hearing(&here)
    }

    /// The newest hearing fact of a device's partition.
    pub(in crate::fold) fn hearing_evidence(&self, device: &Device) -> Option<Evidence> {
        let partition = partition::of(self.site_of(device), &device.state.name);
        let word = self.hearing.0.get(&partition)?;
        let says = match self.unheard_partition(partition) {
            Some(unheard) => unheard.words(),
            None => format!("the hub listens to partition {partition} again"),
        };
        Some(Evidence { at: word.stopped, ..Evidence::of(EvidenceKind::Hearing, word.ledger_seq, says) })
    }

    /// When a device was last heard, as far as facts say. A device that was fresh when the hub stopped hearing its
    /// partition was heard until then.
    pub(in crate::fold) fn last_heard_at(&self, device: &Device) -> Option<Timestamp> {
        let state = &device.state;
        let stopped = state.unheard_in.filter(|_| state.is_masked());
        state.heard_at().max(stopped.and_then(|partition| self.hearing.stopped(partition.into())))
    }
}
