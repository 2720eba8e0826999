//! The table of devices: the published state of each, the last accepted commit, and the devices whose next document is due.
//! No I/O: the announcer publishes due documents and reports the results until none is due.

mod commit_guard;
mod coverage;
mod fleet_counts;
mod rollout_index;
mod rollouts;

use std::collections::{BTreeMap, BTreeSet};

use muster_contract::desired::{Source, SourceKind};
use muster_contract::query::{HeldBack, SomeDevices};
use muster_contract::{DeviceKey, Generation, Timestamp};

use self::commit_guard::ForeignCommitGuard;
use self::coverage::Coverage;
pub(crate) use self::coverage::LedgerCopy;
use self::fleet_counts::FleetCounts;
use self::rollout_index::RolloutIndex;
pub(crate) use self::rollouts::{ChangeKey, targets_of};
use crate::compose::{self, Changes, Git};
use crate::plan::{Draft, LimitExceeded, draft};
use crate::problems::Problems;
use crate::published::PublishedState;
use crate::source::Fleet;

/// Devices that a list in the status names.
pub(crate) const NAMED_MAX: usize = 20;

/// Counts of devices, and lists of those that need attention.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FleetSummary {
    /// Devices in the fleet.
    pub devices: usize,
    /// Those of them with a folder in the last good commit, if there was one.
    pub in_git: Option<usize>,
    /// Retired devices.
    pub retired: usize,
    /// Devices from Git without a folder any more and without deployments.
    pub left_over: SomeDevices,
    /// Devices with an unreadable message in DOWNLINK.
    pub unreadable: SomeDevices,
}

/// The table of devices.
#[derive(Debug, Default)]
pub(crate) struct DeviceTable {
    held: BTreeMap<DeviceKey, PublishedState>,
    fleet: Option<Fleet>,
    due: BTreeSet<DeviceKey>,
    /// Devices for which the commit, with their requested deployments, exceeds a limit.
    over: BTreeMap<DeviceKey, LimitExceeded>,
    guard: ForeignCommitGuard,
    coverage: Coverage,
    index: RolloutIndex,
    counts: FleetCounts,
}

impl DeviceTable {
    /// The table at the start. Documents that must be published again are due.
    pub(crate) fn recovered(held: BTreeMap<DeviceKey, PublishedState>) -> Self {
        let (due, counts) = (due_again(&held).collect(), FleetCounts::of(&held, None));
        Self { held, due, counts, ..Self::default() }
    }

    /// Accepts a commit; returns the number of devices whose documents are due.
    ///
    /// # Errors
    /// The commit is refused; the table is unchanged.
    pub(crate) fn accept(&mut self, fleet: Fleet) -> Result<usize, Problems> {
        Changes { due: self.due, over: self.over } = compose::changes(&fleet, &self.held)?;
        self.due.extend(due_again(&self.held));
        self.guard.add_own(&fleet.revision);
        self.coverage.reset();
        self.fleet = Some(fleet);
        self.build_index();
        Ok(self.due.len())
    }

    /// Makes devices due whose documents another publisher made of one of `older`, which are ancestors of the last accepted
    /// commit; returns their number.
    pub(crate) fn follows(&mut self, older: &BTreeSet<String>) -> usize {
        let overtaken = self.guard.remove_ancestors(older);
        let count = overtaken.len();
        self.due.extend(overtaken);
        if count > 0 {
            self.build_index();
        }
        count
    }

    /// Accepts a good commit after a start with a bad one. `older` has its known ancestors. A commit that would change a document of
    /// any other commit or of a request may be older, so it is refused: published documents must not go back.
    ///
    /// # Errors
    /// The commit is refused; the table is unchanged.
    pub(crate) fn resume(&mut self, fleet: Fleet, older: &BTreeSet<String>) -> Result<usize, Problems> {
        let changed = compose::changes(&fleet, &self.held)?.due;
        let of_another = |key: &&DeviceKey| {
            let document = self.held.get(*key).and_then(|held| held.document.as_ref());
            let is_known = |revision: &String| *revision == fleet.revision || older.contains(revision);
            document.is_some_and(|document| !is_known(&document.source.revision))
        };
        if let Some(key) = changed.iter().find(of_another) {
            let mut problems = Problems::default();
            let rule = "would go back behind a document that was published for the device since: the commit is refused, and \
                        devices keep their desired state until a good commit comes";
            problems.push(&format!("sites/{key}"), || None, "", rule);
            return problems.or(0);
        }
        self.accept(fleet)
    }

    /// Plans up to `max` due documents on the current states; devices that need no document any more are not due any more.
    pub(crate) fn next(&mut self, max: usize) -> Vec<(DeviceKey, Draft)> {
        let mut drafts = Vec::new();
        let (fleet, held, nothing) = (self.fleet.as_ref(), &self.held, PublishedState::default());
        let guard = &self.guard;
        self.due.retain(|key| {
            if drafts.len() == max {
                return true;
            }
            let held = held.get(key).unwrap_or(&nothing);
            let fleet = fleet.filter(|_| !guard.has(key));
            let wanted = fleet.and_then(|fleet| compose::commit(key, fleet, held));
            let next = wanted.or_else(|| compose::current(held)).and_then(|wanted| draft(held, &wanted));
            let due = next.is_some();
            drafts.extend(next.map(|draft| (key.clone(), draft)));
            due
        });
        drafts
    }

    /// Records that a document of a device was stored at a time.
    pub(crate) fn stored(&mut self, key: &DeviceKey, draft: Draft, sequence: u64, at: Timestamp) {
        let held = PublishedState { issued_at: Some(at), ..draft.stored(sequence) };
        self.change_device(key, |table| table.held.insert(key.clone(), held));
        self.due.remove(key);
        self.over.remove(key);
    }

    /// Awaits in LEDGER the document of a device that a release has stored.
    pub(crate) fn await_release_in_ledger(&mut self, key: &DeviceKey) {
        if let Some(document) = self.held.get(key).and_then(|held| held.document.as_ref()) {
            self.coverage.await_document(key, document.generation);
        }
    }

    /// Records that a device's document was re-asserted, if no other message was stored before it.
    pub(crate) fn renewed(&mut self, key: &DeviceKey, before: u64, now: u64) {
        if let Some(held) = self.held.get_mut(key).filter(|held| held.sequence == before) {
            held.sequence = now;
        }
    }

    /// Records a new read of a device's subject. The device is due if another publisher has put it back to an older commit of
    /// this one.
    pub(crate) fn read_again(&mut self, key: &DeviceKey, held: PublishedState) {
        self.change_device(key, |table| table.replace_held(key, held));
    }

    fn replace_held(&mut self, key: &DeviceKey, held: PublishedState) {
        let (before, now) =
            (self.held.get(key).and_then(|before| before.document.as_ref()), held.document.as_ref());
        self.guard.observe(key, self.fleet.as_ref(), before, now);
        let is_older = |fleet: &Fleet, source: &Source| {
            source.kind == SourceKind::Git && source.revision != fleet.revision && !self.guard.has(key)
        };
        if let (Some(fleet), Some(document)) = (&self.fleet, now.filter(|_| now != before))
            && is_older(fleet, &document.source)
        {
            self.due.insert(key.clone());
        }
        self.held.insert(key.clone(), held);
    }

    /// Records a verified subject. The device is due if its document is missing or replaced.
    pub(crate) fn verified(&mut self, key: &DeviceKey, held: PublishedState) {
        let is_due = held.must_republish();
        self.read_again(key, held);
        if is_due {
            self.due.insert(key.clone());
        }
    }

    /// Devices with a document in DOWNLINK.
    pub(crate) fn published(&self) -> impl Iterator<Item = &DeviceKey> {
        self.held.iter().filter(|(_, held)| is_published(held)).map(|(key, _)| key)
    }

    /// True if the device has a document in DOWNLINK.
    pub(crate) fn has_published(&self, key: &DeviceKey) -> bool {
        self.held.get(key).is_some_and(is_published)
    }

    /// The last accepted commit, unless another publisher knows a newer one for the device.
    pub(crate) fn fleet_of(&self, key: &DeviceKey) -> Option<&Fleet> {
        self.fleet.as_ref().filter(|_| !self.guard.has(key))
    }

    /// True if a device's generation is above all that were published for it.
    pub(crate) fn is_behind(&self, key: &DeviceKey, generation: Generation) -> bool {
        self.held.get(key).and_then(|held| held.generation) < Some(generation)
    }

    /// Records a device's generation; true if its document is due now, above it.
    pub(crate) fn note_generation(&mut self, key: &DeviceKey, generation: Generation) -> bool {
        let held = self.held(key).with_generation_at_least(Some(generation));
        let again = held.must_republish();
        self.held.insert(key.clone(), held);
        if again {
            self.due.insert(key.clone());
        }
        again
    }

    /// The published state of a device.
    pub(crate) fn held(&self, key: &DeviceKey) -> PublishedState {
        self.held.get(key).cloned().unwrap_or_default()
    }

    /// The known content of Git for a device, if Git is `configured`.
    pub(crate) fn git(&self, key: &DeviceKey, configured: bool) -> Git<'_> {
        match &self.fleet {
            Some(_) if self.guard.has(key) => Git::Behind,
            Some(fleet) if fleet.held_back.contains(key) => Git::HeldBack,
            Some(fleet) => Git::Known(fleet),
            None if configured => Git::Unknown,
            None => Git::Absent,
        }
    }

    /// The number of devices in the fleet.
    pub(crate) fn devices(&self) -> usize {
        self.summary().devices
    }

    /// Counts the devices.
    pub(crate) fn summary(&self) -> FleetSummary {
        self.counts.summary(self.fleet.is_some())
    }

    /// Devices for which the last accepted commit has problems, with the problems; `None` if there are none.
    pub(crate) fn held_back(&self) -> Option<HeldBack> {
        let fleet = self.fleet.as_ref()?;
        let devices: BTreeSet<_> = fleet.held_back.iter().chain(self.over.keys()).collect();
        let mut problems = fleet.withheld.clone();
        problems.extend(compose::too_much(&self.over));
        (!devices.is_empty()).then(|| HeldBack {
            revision: fleet.revision.clone(),
            devices: SomeDevices::of(devices, NAMED_MAX),
            problems: problems.into_list(),
        })
    }

    /// Devices from Git that have no folder any more and no deployments, and were not retired.
    pub(crate) fn left_over(&self) -> impl Iterator<Item = &DeviceKey> {
        self.counts.left_over.iter()
    }

    /// Retired devices with a folder in a commit, which brings them back.
    pub(crate) fn returning<'a>(&'a self, fleet: &'a Fleet) -> impl Iterator<Item = &'a DeviceKey> {
        let retired = |key: &&DeviceKey| {
            let held = self.held.get(*key).and_then(|held| held.document.as_ref());
            held.is_some_and(|document| document.retired)
        };
        fleet.devices.keys().filter(|key| !fleet.held_back.contains(*key)).filter(retired)
    }

    /// The number of due documents.
    pub(crate) fn due(&self) -> usize {
        self.due.len()
    }

    /// The number of devices whose document another publisher made of an unknown commit.
    pub(crate) fn guarded(&self) -> usize {
        self.guard.len()
    }

    /// Those commits. A document that a request has replaced since may name none.
    pub(crate) fn unseen(&self) -> BTreeSet<String> {
        self.guard.commits()
    }

    /// The last accepted commit.
    pub(crate) fn revision(&self) -> Option<&str> {
        self.fleet.as_ref().map(|fleet| fleet.revision.as_str())
    }

    /// The last accepted commit, if it is completely published.
    pub(crate) fn applied(&self) -> Option<&str> {
        self.revision().filter(|_| self.due.is_empty() && self.guard.len() == 0)
    }

    /// Awaits all current documents in LEDGER once the commit is completely published. While it is not, also because another
    /// publisher's documents came between, it awaits none.
    pub(crate) fn follow_ledger(&mut self) {
        match (self.applied().is_some(), self.coverage.is_under_way()) {
            (true, true) => self.coverage.await_documents(documents(&self.held)),
            (false, false) => self.coverage.reset(),
            (true, false) | (false, true) => {}
        }
    }

    /// Adds copies in LEDGER; true if they complete the commit.
    pub(crate) fn in_ledger(&mut self, copies: Vec<LedgerCopy>) -> bool {
        self.coverage.add_copies(copies)
    }

    /// Discards the copies: LEDGER is read from its beginning, and may be another stream.
    pub(crate) fn ledger_restarted(&mut self) {
        self.coverage.restart(documents(&self.held));
    }

    /// The sequence up to which LEDGER has every document of the last accepted commit, once that is known.
    pub(crate) const fn applied_through(&self) -> Option<u64> {
        self.coverage.through()
    }

    /// The commit of the newest document from Git. It may not be the last published commit: a re-asserted document of an older
    /// one has a newer sequence, and the documents of a commit may all have been replaced. [`Self::resume`] therefore checks
    /// all documents.
    pub(crate) fn last_published(&self) -> Option<&str> {
        let documents = self.held.values().filter_map(|held| Some((held.sequence, held.document.as_ref()?)));
        let git_contents = documents.filter(|(_, document)| document.source.kind == SourceKind::Git);
        let newest = git_contents.max_by_key(|(sequence, _)| *sequence);
        newest.map(|(_, document)| document.source.revision.as_str())
    }
}

/// The published documents, by device.
fn documents(held: &BTreeMap<DeviceKey, PublishedState>) -> impl Iterator<Item = (DeviceKey, Generation)> {
    held.iter().filter_map(|(key, held)| Some((key.clone(), held.document.as_ref()?.generation)))
}

fn due_again(held: &BTreeMap<DeviceKey, PublishedState>) -> impl Iterator<Item = DeviceKey> {
    held.iter().filter(|(_, held)| held.must_republish()).map(|(key, _)| key.clone())
}

/// True if DOWNLINK is known to have this document.
fn is_published(held: &PublishedState) -> bool {
    held.document.is_some() && held.sequence > 0
}

#[cfg(test)]
mod tests;
