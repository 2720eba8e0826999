//! Which partitions the hub does not listen to, and what that does to their devices: none of them is fresh. The rollup says so
//! in LEDGER; here nothing is concluded from what is missing there.
//!
//! A change of a partition alters all of its devices at once, and nothing else does: so it costs a look at every device, and is
//! rare. Between two changes, counts by partition say which views are about partitions that are not listened to.

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::fact::{Hearing, HearingFact};
use muster_contract::limits::PARTITIONS;
use muster_contract::partition;
use muster_contract::pulse::{HubHearing, UnheardPartition};
use muster_contract::status::StatusQuery;
use muster_contract::why::{Evidence, EvidenceKind};
use muster_contract::{SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use super::device::Device;
use super::fleet::{Fleet, Outcome, Position, Scope};
use super::standing::Share;
use super::tally::Way;

/// The newest word on each partition of which there is any, as a snapshot keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HearingState(BTreeMap<u16, Word>);

/// The newest word on a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Word {
    /// Since when the hub does not listen to it; none where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stopped: Option<Timestamp>,
    /// Where LEDGER holds the fact that says so.
    ledger_seq: u64,
}

/// How many of whatever is counted are in each partition that is not listened to. Most of the time that is none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnheardCounts(Option<Box<[u32; PARTITIONS as usize]>>);

impl HearingState {
    fn stopped(&self, partition: u16) -> Option<Timestamp> {
        self.0.get(&partition)?.stopped
    }
}

impl UnheardCounts {
    /// Counts one more or one less, in the partition it is in if that is not listened to.
    pub(super) fn shift(&mut self, way: Way, partition: Option<u8>) {
        let Some(partition) = partition else { return };
        let counts = self.0.get_or_insert_default();
        way.by(&mut counts[usize::from(partition)], 1);
        if counts.iter().all(|count| *count == 0) {
            self.0 = None;
        }
    }

    fn partitions(&self) -> impl Iterator<Item = u16> {
        let counts = self.0.iter().flat_map(|counts| counts.iter());
        (0..PARTITIONS).zip(counts).filter(|(_, count)| **count > 0).map(|(partition, _)| partition)
    }
}

impl Fleet {
    /// What the hub listens to.
    pub const fn hearing_state(&self) -> &HearingState {
        &self.hearing
    }

    /// The newest word on a partition holds.
    pub(super) fn hear_hub(&mut self, at: Position, partition: u16, fact: &HearingFact) -> Outcome {
        if partition >= PARTITIONS {
            return Outcome::Skipped;
        }
        let before = self.hearing.stopped(partition);
        let after = (fact.state == Hearing::Stopped).then_some(fact.since);
        self.hearing.0.insert(partition, Word { stopped: after, ledger_seq: at.ledger_seq });
        if before == after {
            return Outcome::Again;
        }
        self.shifts.turn(at.ledger_seq);
        for number in 0..self.devices.len() as u32 {
            let device = &self.devices[number as usize];
            if partition::of(self.site_of(device), &device.about.name) == partition {
                // Every view of it says since when, also where only that is another.
                self.turn(number, None);
                self.turn(number, after.map(|_| partition as u8));
            }
        }
        Outcome::Taken
    }

    /// From now on a device is in a partition that is not listened to, or in none such. That is no part of its record.
    fn turn(&mut self, number: u32, unheard_in: Option<u8>) {
        let before = self.facet(number);
        if before.unheard_in != unheard_in {
            self.devices[number as usize].about.unheard_in = unheard_in;
            self.recount_device(number, before, Scope::Device, |_| {});
        }
    }

    /// The partition that a new device is in, if it is not listened to.
    pub(super) fn unheard_in(&self, site: u32, device: &Device) -> Option<u8> {
        if self.hearing.0.is_empty() {
            return None;
        }
        let partition = partition::of(&self.totals.site(site).id, &device.about.name);
        self.hearing.stopped(partition).map(|_| partition as u8)
    }

    /// Of those that are counted here, the partitions that the hub does not listen to.
    pub(super) fn hub_hearing(&self, counts: &UnheardCounts) -> HubHearing {
        HubHearing::of(
            counts.partitions().filter_map(|partition| self.unheard_partition(partition)).collect(),
        )
    }

    /// The same, each with the fact that says so.
    pub(super) fn hub_evidence(&self, hub: HubHearing) -> HubHearing {
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

    /// The partition of one device, if the hub does not listen to it.
    pub(super) fn hub_hearing_of(&self, device: &Device) -> HubHearing {
        let unheard = device.about.unheard_in.and_then(|partition| self.unheard_partition(partition.into()));
        HubHearing::of(Vec::from_iter(unheard))
    }

    /// The partitions of these sites' devices, and of the whole fleet where none is named.
    pub(super) fn hub_hearing_at<'a>(&self, sites: impl IntoIterator<Item = &'a SiteId>) -> HubHearing {
        let mut sites = sites.into_iter().peekable();
        if sites.peek().is_none() {
            return self.hub_hearing(&self.totals.fleet.unheard);
        }
        let numbers = sites.filter_map(|site| self.totals.site_numbers.get(site));
        let counts = numbers.map(|number| &self.totals.site(*number).whole.unheard);
        let partitions: BTreeSet<u16> = counts.flat_map(UnheardCounts::partitions).collect();
        HubHearing::of(partitions.into_iter().filter_map(|at| self.unheard_partition(at)).collect())
    }

    /// The partitions of what a question about status is about, whatever the other filters let pass.
    pub(super) fn hub_hearing_for(&self, query: &StatusQuery) -> HubHearing {
        let StatusQuery { id, site, device, .. } = query;
        if !device.is_empty() {
            let devices = device.iter().filter_map(|path| self.find(&path.0));
            let partitions: BTreeSet<u8> = devices.filter_map(|device| device.about.unheard_in).collect();
            return HubHearing::of(
                partitions.into_iter().filter_map(|at| self.unheard_partition(at.into())).collect(),
            );
        }
        match id.as_ref().and_then(|id| self.totals.deployment_numbers.get(id)) {
            Some(number) => self.hub_hearing_on(*number, site),
            None => self.hub_hearing_at(site),
        }
    }

    /// The partitions of a deployment's targets and of the devices it is leaving: of these sites, if any is named.
    pub(super) fn hub_hearing_on<'a>(
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
        for device in sites.flat_map(|site| self.devices_after(Some(site), None, Some(deployment))) {
            let facet = device.about.facet();
            let mut rows = device.rows.iter().filter(|row| row.deployment == deployment);
            if rows.any(|row| row.share(&facet) != Share::Nothing) {
                here.shift(Way::In, facet.unheard_in);
            }
        }
        self.hub_hearing(&here)
    }

    /// The newest word on a device's partition.
    pub(super) fn hearing_evidence(&self, device: &Device) -> Option<Evidence> {
        let partition = partition::of(self.site_of(device), &device.about.name);
        let word = self.hearing.0.get(&partition)?;
        let says = match self.unheard_partition(partition) {
            Some(unheard) => unheard.words(),
            None => format!("the hub listens to partition {partition} again"),
        };
        Some(Evidence { at: word.stopped, ..Evidence::of(EvidenceKind::Hearing, word.ledger_seq, says) })
    }

    /// When a device that is not heard now was heard last, as far as facts tell. One that was fresh when the hub stopped to
    /// listen was heard until then.
    pub(super) fn silent_since(&self, device: &Device) -> Option<Timestamp> {
        let about = &device.about;
        let stopped = about.unheard_in.filter(|_| about.is_masked());
        about.silent_since().max(stopped.and_then(|partition| self.hearing.stopped(partition.into())))
    }
}
